"""Run one kernel on guarded buffers and judge what comes out.

Every buffer is followed by guard words that must not change. Outputs start as NaN, so that elements never written show;
so do the rows past num_tokens, which must stay as they are. Guards and spare rows of inputs are another NaN (arithmetic
may keep its bits): a kernel that uses them gives NaN, and one that writes that NaN elsewhere is seen. Those of buffers
that are read and written are a number, since arithmetic on a NaN may leave it as it was. On the emulated GPU buffers
end without guards: it sees every access past an end, those too whose results are dropped.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from tests.emulated import is_emulated
from vkprefill.engine.sizes import ROW_TILE
from vkprefill.engine.step import STEP_WORDS, StepWord
from vkprefill.engine.weights import Matrix, MatrixPart
from vkprefill.gguf.quants import ROW_GROUP, layout_of, pack_part
from vkprefill.vulkan import profiles
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.profiles import INT64, SHUFFLE_SUBGROUPS, Profile
from vkprefill.vulkan.program import Program

ELEMENTWISE = 1e-5  # parts of the RMS: what one float32 kernel may be off on the same input
REDUCTION = 1e-4  # matmul, attention, delta rule

GUARD_WORDS = 64
WEIGHT_OFFSET = 20  # where weights start in their buffer: a multiple of 4 words, of nothing more
UNTOUCHED = 0x7FC0DEAD  # a NaN that no arithmetic on other numbers makes
FOREIGN = 0x7FC0BEEF  # another
FILL = {"output": UNTOUCHED, "input": FOREIGN, "scratch": FOREIGN, "in_out": int(np.float32(1234.5678).view(np.uint32))}


PROFILES = {profile.name: profile for profile in profiles.PROFILES}


@contextlib.contextmanager
def using_profile(device: Device, profile: str | Profile) -> Iterator[Profile]:
    """The device with the tile sizes of another class of device, by name or given; without the shuffles where its
    subgroups are not what they are written for, and without wide loads where the device has no integers of 64 bits.
    """
    own = device.profile
    chosen = PROFILES[profile] if isinstance(profile, str) else profile
    shuffle = chosen.shuffle and device.info.subgroup_size in SHUFFLE_SUBGROUPS
    wide = chosen.wide and shuffle and INT64 in device.abilities.features
    device.profile = dataclasses.replace(chosen, shuffle=shuffle, wide=wide)
    try:
        yield device.profile
    finally:
        device.profile = own


def used_and_closed() -> tuple[Device, Buffer, Program]:
    """A device of its own that was closed, with a buffer and a program of it, which ran before."""
    own = Device.open()
    buffer = own.host_array("some", np.zeros(4, np.uint32))
    program = own.program("test")
    program.fill(buffer)
    program.run()
    own.close()
    return own, buffer, program


def padded(rows: int) -> int:
    return -(-rows // ROW_TILE) * ROW_TILE


class KernelRun:
    """Buffers and a program of num_rows rows, num_tokens of them in use: add buffers, run kernels on it, `finish`.

    By-row buffers get num_rows rows (pad: rounded up to whole tiles, as the engine has); their values have num_tokens.
    """

    def __init__(
        self,
        device: Device,
        num_tokens: int,
        num_rows: int | None = None,
        *,
        cache_len: int = 0,
        penalty: float = 0.0,
        num_candidates: int = 0,
        step_role: str = "input",
        words: dict[StepWord, int] | None = None,
    ) -> None:
        self.device, self.num_tokens, self.num_rows = device, num_tokens, num_rows or num_tokens
        self._buffers: dict[str, tuple[Buffer, np.ndarray, str, bool]] = {}
        step = np.full(STEP_WORDS, FOREIGN, np.uint32)
        step[:4] = num_tokens, cache_len, np.float32(penalty).view(np.uint32), num_candidates
        for word, value in (words or {}).items():
            step[word] = value
        self.program = device.program(
            "test", step=self._add("step", step, step_role, False, False), num_rows=self.num_rows
        )

    def input(self, name: str, values: np.ndarray, *, by_row: bool = True, pad: bool = False) -> Buffer:
        return self._add(name, np.asarray(values), "input", by_row, pad)

    def in_out(self, name: str, values: np.ndarray, *, by_row: bool = True) -> Buffer:
        return self._add(name, np.asarray(values), "in_out", by_row, False)

    def output(self, name: str, *shape: int, by_row: bool = True, pad: bool = False) -> Buffer:
        """By row: shape of one row; the buffer is all NaN."""
        values = np.full((self.num_tokens, *shape) if by_row else shape, UNTOUCHED, np.uint32).view(np.float32)
        return self._add(name, values, "output", by_row, pad)

    def scratch(self, name: str, *shape: int) -> Buffer:
        """For kernels to hand values to each other."""
        return self._add(name, np.full(shape, FOREIGN, np.uint32).view(np.float32), "scratch", False, False)

    def weight(self, name: str, values: np.ndarray) -> Buffer:
        """A part of a larger buffer, as weights are, with guards on both sides."""
        values = np.ascontiguousarray(values, np.float32 if np.asarray(values).dtype.kind == "f" else np.uint32)
        before = np.full(WEIGHT_OFFSET, FOREIGN, np.uint32)
        whole = self.input(name, np.concatenate([before, values.reshape(-1).view(np.uint32)]), by_row=False)
        return whole.part(name, WEIGHT_OFFSET, values.shape)

    def matrix(self, name: str, data: np.ndarray, weight_type: str, *, part_rows: int | None = None) -> Matrix:
        """Blocks uint8 [rows, row bytes] packed, in parts of at most part_rows (a multiple of 32)."""
        kind = GGMLQuantizationType[weight_type]
        parts = []
        for first in range(0, len(data), part_rows or len(data)):
            rows = data[first : first + (part_rows or len(data))]
            parts.append(MatrixPart(first, len(rows), self.weight(f"{name}[{first}:]", pack_part(rows, kind))))
        assert all(part.first_row % ROW_GROUP == 0 for part in parts)
        block_weights, block_bytes = GGML_QUANT_SIZES[kind]
        columns = data.shape[1] // block_bytes * block_weights
        return Matrix(name, layout_of(kind).name, len(data), columns, tuple(parts))

    def finish(self) -> dict[str, np.ndarray]:
        """Run; check guards, inputs and spare rows; return the outputs by name, rows in use only."""
        self.program.run()
        results = {}
        for name, (buffer, before, role, by_row) in self._buffers.items():
            after = buffer.tensor.data().view(np.uint32)
            words = buffer.num_bytes // 4
            past = np.flatnonzero(after[words:] != FILL[role])
            assert not past.size, f"{name}: written past its end, at words {past}"
            if role == "input":
                kept = 0  # from here on the words must stay
            else:
                kept = words // buffer.shape[0] * self.num_tokens if by_row else words
            changed = np.flatnonzero(after[kept:words] != before[kept:words])
            assert not changed.size, (
                f"{name}: {role} changed where it must not, first at word {kept + changed[0]} of {buffer.shape}"
            )
            if role in ("output", "in_out"):
                results[name] = buffer.read()[: self.num_tokens if by_row else None]
        for buffer, *_ in self._buffers.values():
            buffer.free()
        return results

    def _add(self, name: str, values: np.ndarray, role: str, by_row: bool, pad: bool) -> Buffer:
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        values = np.ascontiguousarray(values)
        shape = values.shape
        if by_row:
            assert len(values) == self.num_tokens, f"{name}: {len(values)} rows"
            shape = (padded(self.num_rows) if pad else self.num_rows, *shape[1:])
        count = int(np.prod(shape))
        guard = 0 if is_emulated(self.device) else GUARD_WORDS
        whole = self.device.buffer(name, (count + guard,), np.uint32, memory="host", kind="test")
        content = whole.view()
        content[:] = FILL[role]
        content[: values.size] = values.reshape(-1).view(np.uint32)
        buffer = dataclasses.replace(whole, shape=shape, dtype=values.dtype)
        self._buffers[name] = buffer, content.copy(), role, by_row
        return buffer


def error_of(case: str, got: np.ndarray, expected: np.ndarray) -> tuple[float, str]:
    """(largest difference / RMS of expected, message). Asserts shapes, and that nothing is NaN or infinite."""
    assert got.shape == expected.shape, f"{case}: shape {got.shape}, expected {expected.shape}"
    bad = np.argwhere(~np.isfinite(got))
    if len(bad):
        first = tuple(bad[0].tolist())
        bits = np.ascontiguousarray(got, np.float32)[first].view(np.uint32)
        what = "never written" if bits == UNTOUCHED else f"{got[first]}"
        raise AssertionError(f"{case}: {len(bad)} of {got.size} not finite, first at {first}: {what}")
    difference = np.abs(got.astype(np.float64) - expected)
    rms = float(np.sqrt(np.mean(np.square(expected, dtype=np.float64))))
    worst = np.unravel_index(int(difference.argmax()), difference.shape)
    error = float(difference[worst]) / max(rms, 1e-30)
    where = tuple(int(i) for i in worst)
    values = f"{got[worst]:.8g}, expected {expected[worst]:.8g}"
    return error, f"{case}: error {error:.2e} of the RMS {rms:.3g}, worst at {where}: {values}"


def check(case: str, got: np.ndarray, expected: np.ndarray, limit: float) -> None:
    error, message = error_of(case, got, expected)
    assert error <= limit, f"{message}; limit {limit:.0e}"
