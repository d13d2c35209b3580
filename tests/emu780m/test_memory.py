"""Buffers with their range check, global addresses, scalar loads, scratch."""

import numpy as np
import pytest

from tests.emu780m.machine import ADDRESS, POISON, InterpreterError

ON = 0x8FFF0F0F12345679


def lanes_of(machine) -> np.ndarray:
    return np.arange(machine.lanes, dtype=np.uint32)


def on_of(machine) -> np.ndarray:
    return np.array([ON >> lane & 1 for lane in range(machine.lanes)], bool)


def descriptor(size: int, first: int = 8, offset: int = 0, stride: int = 0) -> dict[int, int]:
    """Of `size` bytes (records, with a stride) of the memory from `offset` on, in s[first:first + 3]."""
    base = ADDRESS + offset
    return {first: base, first + 1: base >> 32 & 0xFFFF | stride << 16, first + 2: size, first + 3: 3 << 28}


def registers(first: int, words: int) -> str:
    return f"v{first}" if words == 1 else f"v[{first}:{first + words - 1}]"


def words_of_memory(size: int = 1024) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2**32, size, dtype=np.uint32)


@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_buffer_loads_and_stores(machine, words):
    memory, lane = words_of_memory(), lanes_of(machine)
    address = np.random.default_rng(2).permutation(machine.lanes).astype(np.uint32) * 4 * words
    v = {1: address} | {10 + k: lane + 1000 * k for k in range(words)}
    lines = f"""buffer_load_b{32 * words} {registers(2, words)}, v1, s[8:11], s4 offen offset:16
        buffer_store_b{32 * words} {registers(10, words)}, v1, s[8:11], 0 offen offset:2048"""
    result = machine.run(lines, v, descriptor(4096) | {4: 32}, memory=memory, on=ON & machine.all)
    wanted = memory.copy()
    for k in range(words):
        loaded = np.where(on_of(machine), memory[address // 4 + 12 + k], POISON)
        assert result.v(2 + k).tolist() == loaded.tolist()
        wanted[(address // 4 + 512 + k)[on_of(machine)]] = v[10 + k][on_of(machine)]
    assert result.memory.view(np.uint32).tolist() == wanted.tolist()
    assert result.counts["out_of_bounds"] == 0
    assert result.counts["vmem_bytes"] == 2 * 4 * words * on_of(machine).sum()


def test_outside_a_buffer_is_0_and_counted(machine):
    memory = words_of_memory()
    inside = 20  # lanes
    s = descriptor(4 * inside + 64, offset=64)
    lines = """buffer_load_b32 v2, v1, s[8:11], 0 offen offset:64
        buffer_store_b32 v3, v1, s[8:11], 0 offen offset:64"""
    v = {1: lanes_of(machine) * 4, 3: np.full(machine.lanes, 9, np.uint32)}
    result = machine.run(lines, v, s, memory=memory)
    loaded = [*memory[32 : 32 + inside], *[0] * (machine.lanes - inside)]
    wanted = memory.copy()
    wanted[32 : 32 + inside] = 9
    assert result.v(2).tolist() == loaded
    assert result.memory.view(np.uint32).tolist() == wanted.tolist()
    assert result.counts["out_of_bounds"] == 2 * (machine.lanes - inside)


def test_a_word_that_is_partly_outside_is_outside(machine):
    result = machine.run("buffer_load_b64 v[2:3], off, s[8:11], 0", s=descriptor(7), memory=words_of_memory())
    assert result.counts["out_of_bounds"] == machine.lanes
    assert not result.v(2).any() and not result.v(3).any()


def test_the_scalar_offset_counts_in_the_range_check(machine):
    result = machine.run("buffer_load_b32 v2, off, s[8:11], s4", s=descriptor(64) | {4: 64}, memory=words_of_memory())
    assert result.counts["out_of_bounds"] == machine.lanes


def test_a_load_across_two_lines_touches_both(machine):
    s = descriptor(512, offset=-ADDRESS % 128)
    result = machine.run("buffer_load_b128 v[2:5], off, s[8:11], 0 offset:120", s=s, memory=words_of_memory())
    assert result.counts["vmem_lines"] == 2


def test_records(machine):
    """With a stride and an index the number of records is the limit."""
    memory = words_of_memory()
    lane = lanes_of(machine)
    line = "buffer_load_b32 v3, v[1:2], s[8:11], 0 idxen offen offset:4"
    result = machine.run(line, {1: lane, 2: lane % 2 * 4}, descriptor(30, stride=16), memory=memory)
    wanted = np.where(lane < 30, memory[lane * 4 + 1 + lane % 2], 0)
    assert result.v(3).tolist() == wanted.tolist()
    assert result.counts["out_of_bounds"] == machine.lanes - 30


def test_bytes_and_halves(machine):
    memory, address = words_of_memory(), lanes_of(machine)
    raw = memory.view(np.uint8)
    old = np.full(machine.lanes, 0x11112222, np.uint32)
    both = raw[address].astype(np.uint32) | raw[address + 1].astype(np.uint32) << 8
    cases = [
        ("load_u8 v2", raw[address]),
        ("load_i8 v2", raw[address].view(np.int8)),
        ("load_u16 v2", both),
        ("load_i16 v2", both.astype(np.int16)),
        ("load_d16_b16 v2", both | 0x11110000),
        ("load_d16_b16 v2.l", both | 0x11110000),
        ("load_d16_b16 v2.h", both << 16 | 0x2222),
        ("load_d16_hi_b16 v2", both << 16 | 0x2222),
        ("load_d16_u8 v2", raw[address] | np.uint32(0x11110000)),
        ("load_d16_hi_u8 v2", raw[address].astype(np.uint32) << 16 | 0x2222),
    ]
    for what, wanted in cases:
        line = f"buffer_{what}, v1, s[8:11], 0 offen"
        got = machine.run(line, {1: address, 2: old}, descriptor(4096), memory=memory).v(2)
        assert got.tolist() == np.asarray(wanted).astype(np.int64).astype(np.uint32).tolist(), what
    data = address * 0x01234567
    for what, width, value in [
        ("store_b8 v3", 1, data & 0xFF),
        ("store_b16 v3", 2, data & 0xFFFF),
        ("store_b16 v3.h", 2, data >> 16),
        ("store_d16_hi_b16 v3", 2, data >> 16),
        ("store_d16_hi_b8 v3", 1, data >> 16 & 0xFF),
    ]:
        line = f"buffer_{what}, v1, s[8:11], 0 offen"
        got = machine.run(line, {1: address * width, 3: data}, descriptor(4096), memory=memory).memory
        assert got.view([np.uint8, np.uint16][width - 1])[: machine.lanes].tolist() == value.tolist(), what


def test_buffer_sums_of_lanes_with_the_same_address(machine):
    v = {1: lanes_of(machine) % 4 * 4, 2: lanes_of(machine)}
    result = machine.run("buffer_atomic_add_u32 v2, v1, s[8:11], 0 offen", v, descriptor(12), memory=np.uint32([5] * 4))
    sums = [5 + sum(range(k, machine.lanes, 4)) for k in range(3)]
    assert result.memory.view(np.uint32).tolist() == [*sums, 5]
    assert result.counts["out_of_bounds"] == machine.lanes // 4


def test_global_addresses(machine):
    memory, lane = words_of_memory(), lanes_of(machine)
    low = np.uint32(ADDRESS & 0xFFFFFFFF) + lane * 8
    high = np.full(machine.lanes, ADDRESS >> 32, np.uint32)
    s = {4: ADDRESS, 5: ADDRESS >> 32}
    lines = """global_load_b64 v[4:5], v[1:2], off offset:-8
        global_load_b32 v6, v3, s[4:5] offset:16
        global_store_b64 v3, v[7:8], s[4:5] offset:2048
        global_load_u8 v9, v3, s[4:5] offset:1"""
    v = {1: low + 8, 2: high, 3: lane * 8, 7: lane, 8: lane + 500}
    result = machine.run(lines, v, s, memory=memory)
    assert result.v(4).tolist() == memory[lane * 2].tolist()
    assert result.v(5).tolist() == memory[lane * 2 + 1].tolist()
    assert result.v(6).tolist() == memory[lane * 2 + 4].tolist()
    assert result.v(9).tolist() == memory.view(np.uint8)[lane * 8 + 1].tolist()
    wanted = memory.copy()
    wanted[512 + lane * 2], wanted[513 + lane * 2] = lane, lane + 500
    assert result.memory.view(np.uint32).tolist() == wanted.tolist()


def test_global_addresses_where_there_is_nothing_are_refused(machine):
    lane = lanes_of(machine)
    with pytest.raises(
        InterpreterError, match=r"no memory at 0xffff900012341000 \(4 bytes, read\) in: global_load_b32"
    ):
        machine.run(
            "global_load_b32 v2, v1, s[4:5] offset:4096", {1: lane}, {4: ADDRESS, 5: ADDRESS >> 32}, memory=lane
        )


@pytest.mark.parametrize("stride, lines", [(4, 1), (64, 16), (128, 32), (256, 32), (0, 1)])
def test_lines_touched(machine, stride, lines):
    memory = np.zeros(64 * 256, np.uint8)
    start = -ADDRESS % 128  # of a line
    v = {1: lanes_of(machine) * stride}
    on = 0xFFFFFFFF
    result = machine.run(
        "buffer_load_b32 v2, v1, s[8:11], 0 offen", v, descriptor(16256, offset=start), memory=memory, on=on
    )
    assert result.counts["vmem_lines"] == lines


@pytest.mark.parametrize("words", [1, 2, 4, 8, 16])
def test_scalar_loads(machine, words):
    memory = words_of_memory()
    base = {4: ADDRESS, 5: ADDRESS >> 32, 6: 12, 7: 0xFFFF} | descriptor(4096, first=8)
    to = "s20" if words == 1 else f"s[20:{19 + words}]"
    for line, first in [
        (f"s_load_b{32 * words} {to}, s[4:5], 0x24", 9),
        (f"s_load_b{32 * words} {to}, s[4:5], null", 0),
        (f"s_load_b{32 * words} {to}, s[4:5], s6", 3),
        (f"s_load_b{32 * words} {to}, s[4:5], s6 offset:0x8", 5),
        (f"s_buffer_load_b{32 * words} {to}, s[8:11], 0x10", 4),
        (f"s_buffer_load_b{32 * words} {to}, s[8:11], s6 offset:0x4", 4),
    ]:
        result = machine.run(line, s=base, memory=memory)
        assert result.scalars[0, 20 : 20 + words].tolist() == memory[first : first + words].tolist(), line
        assert result.counts["smem_bytes"] == 4 * words


def test_an_offset_in_a_register_is_unsigned(machine):
    base = ADDRESS - 0x80000000
    result = machine.run(
        "s_load_b32 s2, s[4:5], s6", s={4: base, 5: base >> 32, 6: 0x80000004}, memory=words_of_memory()
    )
    assert result.s(2) == words_of_memory()[1]


def test_scalar_loads_outside_a_buffer_are_0_and_counted(machine):
    memory = words_of_memory()
    result = machine.run("s_buffer_load_b128 s[20:23], s[8:11], 0x8", s=descriptor(16), memory=memory)
    assert result.scalars[0, 20:24].tolist() == [*memory[2:4], 0, 0]
    assert result.counts["out_of_bounds"] == 2


@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_scratch_is_each_lane_s_own(machine, words):
    lane = lanes_of(machine)
    v = {10 + k: lane + 1000 * k for k in range(words)}
    lines = f"""scratch_store_b{32 * words} off, {registers(10, words)}, s4 offset:-4080
        scratch_load_b{32 * words} {registers(2, words)}, off, s4 offset:-4080
        scratch_load_b32 v20, off, s4 offset:-4096
        scratch_load_b32 v21, v22, off offset:4"""
    result = machine.run(lines, v | {22: np.full(machine.lanes, 12, np.uint32)}, {4: 4096}, on=ON & machine.all)
    for k in range(words):
        assert result.v(2 + k).tolist() == np.where(on_of(machine), v[10 + k], POISON).tolist()
    assert set(result.v(20).tolist()) == {POISON}  # nothing was written there
    assert result.v(21).tolist() == np.where(on_of(machine), v[10], POISON).tolist()


@pytest.mark.parametrize("offset", [2, 65536, -4])
def test_scratch_addresses_that_are_none_are_refused(machine, offset):
    with pytest.raises(InterpreterError, match=r"scratch address \d+ in: scratch_load_b32"):
        machine.run(f"scratch_load_b32 v1, off, s4 offset:{offset}", s={4: 0})
