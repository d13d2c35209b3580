"""A cursor over the header of a GGUF file: every read is checked against the end of the file before it is made."""

import mmap
import struct

import numpy as np
from gguf import GGUFValueType

from vkprefill.display import printable
from vkprefill.errors import GGUFError, UnsupportedModelError

MAX_NAME_BYTES = 255  # of a key or a tensor name; ggml itself stops at 64 for tensors
MAX_ARRAY_ITEMS = 1 << 22  # sixteen times the largest vocabulary in use

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

NUMBER_DTYPES = {
    GGUFValueType.UINT8: np.dtype("u1"),
    GGUFValueType.INT8: np.dtype("i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("u1"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}


class Header:
    """A cursor over the header. Every read is checked against the end of the file; `what` names the part read."""

    def __init__(self, mapped: mmap.mmap, label: str) -> None:
        self.mapped = mapped
        self.label = label
        self.position = 0

    @property
    def bytes_left(self) -> int:
        return len(self.mapped) - self.position

    def error(self, message: str) -> GGUFError:
        return GGUFError(f"{self.label}: {message}")

    def advance(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes`; the position before them."""
        if num_bytes > self.bytes_left:
            raise self.error(
                f"{what}: the file ends too early (at byte {len(self.mapped)}, {num_bytes} bytes are wanted at byte"
                f" {self.position}); is the download complete?"
            )
        start = self.position
        self.position += num_bytes
        return start

    def u32(self, what: str) -> int:
        return U32.unpack_from(self.mapped, self.advance(4, what))[0]

    def u64(self, what: str) -> int:
        return U64.unpack_from(self.mapped, self.advance(8, what))[0]

    def name(self, what: str) -> str:
        """A key or the name of a tensor: short and printable, so that messages can show it."""
        length = self.u64(what)
        if not 1 <= length <= MAX_NAME_BYTES:
            raise self.error(f"{what}: name of {length} bytes, wanted 1 to {MAX_NAME_BYTES}")
        start = self.advance(length, what)
        raw = self.mapped[start : start + length]
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = ""
        if not text.isprintable() or not text:
            raise self.error(f"{what}: name {printable(raw)} is not printable UTF-8")
        return text

    def strings(self, count: int, what: str) -> list[str]:
        """`count` strings. One tight loop: a vocabulary has half a million."""
        mapped, size, unpack = self.mapped, len(self.mapped), U64.unpack_from
        position, texts = self.position, []
        try:
            for _ in range(count):
                end = position + 8 + unpack(mapped, position)[0]
                if end > size:
                    break
                texts.append(mapped[position + 8 : end].decode())
                position = end
        except struct.error:  # fewer than 8 bytes are left for a length
            pass
        except UnicodeDecodeError:
            raise self.error(f"{what}: string {len(texts)} is not UTF-8") from None
        if len(texts) < count:
            raise self.error(f"{what}: string {len(texts)} of {count} goes beyond the end of the file")
        self.position = position
        return texts

    def numbers(self, count: int, value_type: GGUFValueType, what: str) -> np.ndarray:
        """`count` numbers as an own read-only array; bool for BOOL."""
        dtype = NUMBER_DTYPES[value_type]
        values = np.frombuffer(self.mapped, dtype, count, self.advance(count * dtype.itemsize, what))
        if value_type == GGUFValueType.BOOL:
            if values.size and values.max() > 1:
                raise self.error(f"{what}: bool of value {values.max()}, wanted 0 or 1")
            dtype = np.dtype(bool)
        values = values.astype(dtype)
        values.flags.writeable = False
        return values

    def value_type(self, what: str) -> GGUFValueType:
        number = self.u32(what)
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self.error(f"{what}: value type {number}, wanted 0 to {max(GGUFValueType).value}") from None

    def value(self, what: str) -> object:
        value_type = self.value_type(what)
        if value_type == GGUFValueType.ARRAY:
            return self.array(what)
        if value_type == GGUFValueType.STRING:
            return self.strings(1, what)[0]
        return self.numbers(1, value_type, what)[0].item()

    def array(self, what: str) -> list[str] | np.ndarray:
        item_type = self.value_type(what)
        count = self.u64(what)
        if item_type == GGUFValueType.ARRAY:
            raise UnsupportedModelError(f"{self.label}: {what}: arrays of arrays are not supported")
        item_bytes = 8 if item_type == GGUFValueType.STRING else NUMBER_DTYPES[item_type].itemsize
        if count > MAX_ARRAY_ITEMS or count * item_bytes > self.bytes_left:
            wanted = min(MAX_ARRAY_ITEMS, self.bytes_left // item_bytes)
            raise self.error(f"{what}: array of {count} items, wanted at most {wanted}")
        if item_type == GGUFValueType.STRING:
            return self.strings(count, what)
        return self.numbers(count, item_type, what)
