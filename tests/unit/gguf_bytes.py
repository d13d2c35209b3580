"""GGUF files byte by byte, so that tests can write every kind of damage."""

import struct
from collections.abc import Sequence

from gguf import GGMLQuantizationType, GGUFValueType


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def key(name: str | bytes, value_type: int, payload: bytes) -> bytes:
    return string(name) + u32(value_type) + payload


def u32_key(name: str, value: int) -> bytes:
    return key(name, GGUFValueType.UINT32, u32(value))


def array_key(name: str, item_type: int, payload: bytes, count: int) -> bytes:
    return key(name, GGUFValueType.ARRAY, u32(item_type) + u64(count) + payload)


def record(
    name: str | bytes, sizes: Sequence[int] = (8,), tensor_type: int = GGMLQuantizationType.F32, offset: int = 0
) -> bytes:
    """A tensor record; `sizes` innermost first."""
    return string(name) + u32(len(sizes)) + b"".join(map(u64, sizes)) + u32(tensor_type) + u64(offset)


def gguf_bytes(
    keys: Sequence[bytes] = (),
    records: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_keys: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file; the counts are right unless given."""
    num_tensors = len(records) if num_tensors is None else num_tensors
    num_keys = len(keys) if num_keys is None else num_keys
    header = magic + u32(version) + u64(num_tensors) + u64(num_keys) + b"".join(keys) + b"".join(records)
    return header + bytes(-len(header) % alignment) + data
