"""GGUF container -> checked metadata and tensor records over a read-only memory map.

Layout, all little-endian: "GGUF", u32 version, u64 tensor count, u64 key count; the keys with their values; the tensor
records (name, sizes innermost first, type, offset); then, from the next multiple of general.alignment, the data.
Nothing in the file is trusted: each count and length is compared with the bytes that are left before it is used, so a
damaged header costs neither memory nor time. Strings must be UTF-8 (a byte-level vocabulary stores printable
stand-ins of its bytes, so real files are).
"""

import math
import mmap
import os
import stat
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, quants

from vkprefill.display import printable, quoted
from vkprefill.errors import GGUFError, RequestError, UnsupportedModelError
from vkprefill.gguf.header import U32, Header
from vkprefill.gguf.split import Split, part_paths, split_of
from vkprefill.rounding import round_up

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_LABEL = 120  # characters of a path in a message
MIN_KEY_BYTES = 8 + 1 + 4 + 1  # name length, one character, type, one byte of value
MIN_RECORD_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, one character, dims, one size, type, offset


@dataclass(frozen=True)
class TensorInfo:
    """One tensor record. `shape` is in numpy order, outermost first; `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    num_bytes: int

    @property
    def num_rows(self) -> int:
        """Rows of the innermost dimension; 1 for a vector."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.num_bytes // self.num_rows


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """An open GGUF file whose header has been checked. The map is released with the last array made from it.

    `metadata` holds int, float, bool and str values, list[str] for arrays of strings, read-only numpy arrays for the
    other arrays. `tensors` keeps the order of the file. Of a split model this is the first part, with all
    tensors.
    """

    path: Path
    size_bytes: int
    metadata: dict[str, object]
    tensors: dict[str, TensorInfo]
    _bytes: np.ndarray = field(repr=False)  # uint8 [size_bytes], read-only view of the map
    _map: mmap.mmap | None = field(default=None, repr=False)
    _parts: dict[str, "GGUFFile"] = field(default_factory=dict, repr=False)  # of tensors that lie in another file

    @cached_property
    def label(self) -> str:
        """The path as error messages show it: one printable line."""
        return printable(self.path, MAX_LABEL)

    def info(self, name: str) -> TensorInfo:
        """The record of a tensor. Raises GGUFError when the file has none of that name."""
        try:
            return self.tensors[name]
        except KeyError:
            raise GGUFError(f"{self.label}: {name}: missing tensor") from None

    def data(self, name: str) -> np.ndarray:
        """uint8 [rows, row_bytes], a read-only view of the file. Raises GGUFError when the tensor is missing."""
        info = self.info(name)
        if name in self._parts:
            return self._parts[name].data(name)
        return self._bytes[info.offset : info.offset + info.num_bytes].reshape(info.num_rows, info.row_bytes)

    def release(self, name: str, rows: slice) -> None:
        """Let go of the memory behind rows of a tensor: it counts to this process once read, and comes back from the
        file when read again.
        """
        if name in self._parts:
            self._parts[name].release(name, rows)
        elif self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            info = self.info(name)
            start, end = (
                (info.offset + row * info.row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE for row in (rows.start, rows.stop)
            )
            if end > start:
                self._map.madvise(mmap.MADV_DONTNEED, start, end - start)

    def dequantize(self, name: str) -> np.ndarray:
        """float32 in the tensor's shape, a copy (the whole tensor: for vectors, tools and tests).

        Raises GGUFError when the tensor is missing, UnsupportedModelError for a type that package gguf cannot decode.
        """
        info = self.info(name)
        try:
            values = quants.dequantize(self.data(name), info.type)
        except NotImplementedError:
            raise UnsupportedModelError(f"{self.label}: {name}: type {info.type.name} cannot be decoded") from None
        return np.array(values, np.float32).reshape(info.shape)


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Map a GGUF file and read its header; no tensor data is touched. Given one part of a split model, all of it.

    Raises RequestError for what is no path; GGUFError when a file cannot be read, is damaged or is no GGUF file, and
    where parts of a model are missing or do not belong together; UnsupportedModelError for sound files outside what is
    handled: other versions, big-endian, unknown tensor types.
    """
    if not isinstance(path, str | os.PathLike) or path == "":
        raise RequestError(f"GGUF file: found {quoted(path)}, wanted a path")
    file = _open_one(Path(path))
    split = split_of(file.metadata, file.label)
    return file if split is None else _open_parts(file, split)


def _open_one(path: Path) -> GGUFFile:
    label = printable(path, MAX_LABEL)
    mapped = _map_file(path, label)
    header = Header(mapped, label)
    num_tensors, num_keys = _read_start(header)
    metadata = _read_metadata(header, num_keys)
    tensors = _read_tensors(header, num_tensors, _alignment(metadata, label))
    return GGUFFile(path, len(mapped), metadata, tensors, np.frombuffer(mapped, np.uint8), mapped)


def _open_parts(given: GGUFFile, split: Split) -> GGUFFile:
    """The model that a part belongs to."""
    parts = []
    for number, path in enumerate(part_paths(given.path, split, given.label), 1):
        part = given if number == split.number else _open_one(path)
        found = split_of(part.metadata, part.label)
        if (found and (found.number, found.count)) != (number, split.count):
            what = f"part {found.number} of {found.count}" if found else "a whole model"
            raise GGUFError(f"{part.label}: holds {what}, wanted part {number} of {split.count} as in its name")
        parts.append(part)
    first, *others = parts
    tensors, holders = dict(first.tensors), {}
    for part in others:
        for name, info in part.tensors.items():
            if name in tensors:
                raise GGUFError(f"{part.label}: {printable(name)}: tensor is in another part too")
            tensors[name], holders[name] = info, part
    if split.num_tensors not in (None, len(tensors)):
        raise GGUFError(
            f"{first.label}: {len(tensors)} tensors in {split.count} parts, wanted {split.num_tensors}; are they of the"
            " same model?"
        )
    return replace(first, size_bytes=sum(part.size_bytes for part in parts), tensors=tensors, _parts=holders)


def _map_file(path: Path, label: str) -> mmap.mmap:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise GGUFError(f"{label}: is a directory, wanted a GGUF file")
        if not stat.S_ISREG(mode):  # opening a FIFO would block
            raise GGUFError(f"{label}: is not a regular file, wanted a GGUF file")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise GGUFError(f"{label}: is empty, wanted a GGUF file")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(f"{label}: cannot be read: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:  # a NUL byte in the path
        raise GGUFError(f"{label}: cannot be read: {error}") from error


def _read_start(header: Header) -> tuple[int, int]:
    """Magic, version and the two counts -> (number of tensors, number of keys)."""
    magic = header.mapped[: len(MAGIC)]
    if magic != MAGIC:
        raise header.error(f"starts with {magic!r}, wanted {MAGIC!r}: not a GGUF file")
    header.advance(len(MAGIC), "magic")
    version = header.u32("version")
    if int.from_bytes(U32.pack(version), "big") in SUPPORTED_VERSIONS:
        raise UnsupportedModelError(f"{header.label}: big-endian GGUF file, wanted little-endian")
    if version not in SUPPORTED_VERSIONS:
        raise UnsupportedModelError(f"{header.label}: GGUF version {version}, wanted 2 or 3")
    num_tensors = header.u64("tensor count")
    num_keys = header.u64("key count")
    for what, count, min_bytes in (("key", num_keys, MIN_KEY_BYTES), ("tensor", num_tensors, MIN_RECORD_BYTES)):
        if count * min_bytes > header.bytes_left:
            raise header.error(
                f"{what} count {count}, but the {header.bytes_left} bytes that follow hold at most"
                f" {header.bytes_left // min_bytes}"
            )
    return num_tensors, num_keys


def _read_metadata(header: Header, num_keys: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for index in range(num_keys):
        key = header.name(f"key {index}")
        if key in metadata:
            raise header.error(f"{printable(key)}: key occurs twice")
        metadata[key] = header.value(printable(key))
    return metadata


def _alignment(metadata: dict[str, object], label: str) -> int:
    value = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if type(value) is not int or value < 8 or value & (value - 1):
        raise GGUFError(f"{label}: general.alignment: found {printable(value)}, wanted a power of two from 8")
    return value


def _read_tensors(header: Header, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    """All records, with offsets made absolute; inside the file and without overlap."""
    tensors: dict[str, TensorInfo] = {}
    for index in range(num_tensors):
        record = _read_record(header, index, alignment)
        if record.name in tensors:
            raise header.error(f"{printable(record.name)}: tensor name occurs twice")
        tensors[record.name] = record
    data_start = round_up(header.position, alignment)
    tensors = {
        name: TensorInfo(name, t.shape, t.type, data_start + t.offset, t.num_bytes) for name, t in tensors.items()
    }
    previous: TensorInfo | None = None
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        name = printable(tensor.name)
        if tensor.offset + tensor.num_bytes > len(header.mapped):
            raise header.error(
                f"{name}: data ends at byte {tensor.offset + tensor.num_bytes}, but the file ends at byte"
                f" {len(header.mapped)}; is the download complete?"
            )
        if previous and previous.offset + previous.num_bytes > tensor.offset:
            raise header.error(f"{name}: data overlaps that of {printable(previous.name)}")
        previous = tensor
    return tensors


def _read_record(header: Header, index: int, alignment: int) -> TensorInfo:
    """One tensor record, its offset still relative to the start of the data."""
    name = header.name(f"tensor {index}")
    what = printable(name)
    num_dims = header.u32(what)
    if not 1 <= num_dims <= MAX_DIMS:
        raise header.error(f"{what}: {num_dims} dimensions, wanted 1 to {MAX_DIMS}")
    sizes = [header.u64(what) for _ in range(num_dims)]  # innermost first
    if 0 in sizes:
        raise header.error(f"{what}: a dimension of size 0 in {printable(sizes)}, wanted at least 1")
    number = header.u32(what)
    offset = header.u64(what)
    try:
        tensor_type = GGMLQuantizationType(number)
    except ValueError:
        raise UnsupportedModelError(f"{header.label}: {what}: unknown tensor type {number}") from None
    block_size, block_bytes = GGML_QUANT_SIZES[tensor_type]
    if sizes[0] % block_size:
        raise header.error(
            f"{what}: row of {sizes[0]} values, wanted a multiple of {block_size}, the block of {tensor_type.name}"
        )
    if offset % alignment:
        raise header.error(f"{what}: data offset {offset}, wanted a multiple of {alignment}")
    num_bytes = math.prod(sizes) // block_size * block_bytes
    return TensorInfo(name, tuple(reversed(sizes)), tensor_type, offset, num_bytes)
