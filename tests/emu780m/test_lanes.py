"""Which lanes are read and written: EXEC, pairs, single lanes, permutations, DPP."""

import numpy as np
import pytest

from tests.emu780m.machine import M0, POISON, VCC, InterpreterError

ON = 0x0123456789ABCDEF  # some of all rows


def lanes_of(machine) -> np.ndarray:
    return np.arange(machine.lanes, dtype=np.uint32)


def bits(mask: int, lanes: int) -> np.ndarray:
    return np.array([mask >> lane & 1 for lane in range(lanes)], bool)


def on_of(machine) -> int:
    return ON & machine.all


@pytest.mark.parametrize(
    "line", ["v_mov_b32_e32 v0, v1", "v_add_nc_u32_e32 v0, 0, v1", "v_pk_add_f16 v0, v1, 0", "v_add3_u32 v0, v1, 0, 0"]
)
def test_only_lanes_that_are_on_are_written(machine, line):
    lane = lanes_of(machine) + 100
    got = machine.run(line, {1: lane}, on=on_of(machine)).v(0)
    assert got.tolist() == np.where(bits(on_of(machine), machine.lanes), lane, POISON).tolist()


def test_halves_of_lanes_that_are_off_stay(machine):
    got = machine.run("v_mov_b16_e32 v0.h, v1.l", {0: lanes_of(machine), 1: lanes_of(machine)}, on=0b10).v(0)
    assert got.tolist() == [0, 0x10001, *range(2, machine.lanes)]


def test_a_pair_reads_before_it_writes(machine):
    one, two = np.full(machine.lanes, 1, np.uint32), np.full(machine.lanes, 2, np.uint32)
    result = machine.run("v_dual_mov_b32 v1, v2 :: v_dual_mov_b32 v2, v1", {1: one, 2: two}, on=0b101)
    assert result.v(1)[:3].tolist() == [2, 1, 2]
    assert result.v(2)[:3].tolist() == [1, 2, 1]
    assert (result.issued["pair"], result.issued["valu"]) == (1, 0)


def test_pairs_of_all_kinds(machine):
    a, b = np.float32(lanes_of(machine)), np.float32(lanes_of(machine)[::-1])
    lines = """v_dual_fmac_f32 v1, v2, v3 :: v_dual_cndmask_b32 v4, v2, v3
        v_dual_fmaak_f32 v5, v2, v3, 0x40000000 :: v_dual_add_nc_u32 v6, 3, v0
        v_dual_subrev_f32 v7, v2, v3 :: v_dual_lshlrev_b32 v8, 2, v0
        v_dual_max_f32 v9, v2, v3 :: v_dual_and_b32 v10, 5, v0"""
    v = {0: lanes_of(machine), 1: np.ones(machine.lanes, np.float32), 2: a, 3: b}
    mask = 0x5555AAAA5555AAAA
    result = machine.run(lines, v, {VCC: mask & 0xFFFFFFFF, VCC + 1: mask >> 32})
    assert result.v(1, np.float32).tolist() == (1 + a * b).tolist()
    assert result.v(4, np.float32).tolist() == np.where(bits(mask, machine.lanes), b, a).tolist()
    assert result.v(5, np.float32).tolist() == (a * b + 2).tolist()
    assert result.v(6).tolist() == (lanes_of(machine) + 3).tolist()
    assert result.v(7, np.float32).tolist() == (b - a).tolist()
    assert result.v(8).tolist() == (lanes_of(machine) << 2).tolist()
    assert result.v(9, np.float32).tolist() == np.maximum(a, b).tolist()
    assert result.v(10).tolist() == (lanes_of(machine) & 5).tolist()


def test_choice_by_a_mask(machine):
    mask = "s4" if machine.lanes == 32 else "s[4:5]"
    got = machine.run(f"v_cndmask_b32_e64 v0, 7, v1, {mask}", {1: lanes_of(machine)}, {4: 6, 5: 1 << 31}).v(0)
    wanted = [lane if lane in (1, 2, 63) else 7 for lane in range(machine.lanes)]
    assert got.tolist() == wanted


def test_single_lanes(machine):
    last = machine.lanes - 1
    lines = f"""v_readlane_b32 s4, v1, 5
        v_readlane_b32 s5, v1, s8
        v_readfirstlane_b32 s6, v1
        v_writelane_b32 v2, s8, {last % 64 if last < 64 else 63}
        v_writelane_b32 v2, 77, 0"""
    result = machine.run(lines, {1: lanes_of(machine) + 10, 2: lanes_of(machine)}, {8: last}, on=0b11000)
    assert [result.s(register) for register in (4, 5, 6)] == [15, last + 10, 13]
    assert result.v(2).tolist() == [77, *range(1, last), last]


def test_the_first_lane_where_none_is_on(machine):
    assert machine.run("v_readfirstlane_b32 m0, v1", {1: lanes_of(machine) + 10}, on=0).s(M0) == 10


def test_swap(machine):
    a, b = lanes_of(machine), lanes_of(machine) + 100
    result = machine.run("v_swap_b32 v1, v2", {1: a, 2: b}, on=0b110)
    assert result.v(1)[:4].tolist() == [0, 101, 102, 3]
    assert result.v(2)[:4].tolist() == [100, 1, 2, 103]


@pytest.mark.parametrize("other_row", [False, True])
@pytest.mark.parametrize("fetch, bound", [(0, 0), (1, 0), (0, 1)])
def test_permlane(machine, other_row, fetch, bound):
    places = np.random.default_rng(1).permutation(16)
    select = sum(int(place) << 4 * k for k, place in enumerate(places))
    name = "v_permlanex16_b32" if other_row else "v_permlane16_b32"
    v, s = {0: lanes_of(machine) + 500, 1: lanes_of(machine) + 100}, {4: select & 0xFFFFFFFF, 5: select >> 32}
    on = on_of(machine)
    got = machine.run(f"{name} v0, v1, s4, s5 op_sel:[{fetch},{bound}]", v, s, on=on).v(0)
    wanted = v[0].copy()
    for lane in range(machine.lanes):
        source = (lane & ~15 ^ (16 if other_row else 0)) + int(places[lane & 15])
        if not on >> lane & 1:
            continue
        if fetch or on >> source & 1:
            wanted[lane] = source + 100
        elif bound:
            wanted[lane] = 0
    assert got.tolist() == wanted.tolist()


def test_permlane64(machine):
    v = {0: lanes_of(machine) + 500, 1: lanes_of(machine) + 100}
    got = machine.run("v_permlane64_b32 v0, v1", v, on=on_of(machine)).v(0)
    on = bits(on_of(machine), machine.lanes) & (machine.lanes == 64)
    assert got.tolist() == np.where(on, (lanes_of(machine) ^ 32) + 100, v[0]).tolist()


PATTERNS = {
    "quad_perm:[3,1,0,2]": lambda row, place: (place & ~3) + [3, 1, 0, 2][place & 3],
    "row_shl:3": lambda row, place: place + 3,
    "row_shr:1": lambda row, place: place - 1,
    "row_ror:5": lambda row, place: (place - 5) % 16,
    "row_mirror": lambda row, place: 15 - place,
    "row_half_mirror": lambda row, place: place & 8 | 7 - (place & 7),
    "row_share:9": lambda row, place: 9,
    "row_xmask:6": lambda row, place: place ^ 6,
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("options", ["", "bound_ctrl:1", "bound_ctrl:1 fi:1", "fi:1"])
@pytest.mark.parametrize("masks", [(0xF, 0xF), (0x5, 0xB)])
@pytest.mark.parametrize("mask", [ON, 2**64 - 1], ids=["some", "all"])
def test_dpp(machine, pattern, options, masks, mask):
    on = mask & machine.all
    line = f"v_add_nc_u32_dpp v0, v1, v2 {pattern} row_mask:{masks[0]:#x} bank_mask:{masks[1]:#x} {options}"
    v = {0: lanes_of(machine) + 900, 1: lanes_of(machine) + 100, 2: lanes_of(machine) * 1000}
    got = machine.run(line, v, on=on).v(0)
    wanted = v[0].copy()
    for lane in range(machine.lanes):
        row, place = divmod(lane, 16)
        if not (on >> lane & 1 and masks[0] >> row & 1 and masks[1] >> place // 4 & 1):
            continue
        source = PATTERNS[pattern](row, place)
        if 0 <= source < 16 and ("fi:1" in options or on >> 16 * row + source & 1):
            wanted[lane] = 16 * row + source + 100 + v[2][lane]
        elif "bound_ctrl:1" in options:
            wanted[lane] = v[2][lane]
    assert got.tolist() == wanted.tolist()


def test_dpp_with_signs_three_operands_and_accumulation(machine):
    a = np.float32(lanes_of(machine))
    dpp = "row_xmask:1 row_mask:0xf bank_mask:0xf"
    got = machine.run(f"v_fma_f32_e64_dpp v0, -v1, v1, |v1| {dpp}", {1: a}).v(0, np.float32)
    other = np.float32(lanes_of(machine) ^ 1)
    assert got.tolist() == (-other * a + a).tolist()
    got = machine.run(f"v_fmac_f32_dpp v0, v1, v1 {dpp}", {0: a, 1: a}).v(0, np.float32)
    assert got.tolist() == (other * a + a).tolist()


@pytest.mark.parametrize(
    "line",
    [
        "v_cmp_lt_u32_e64_dpp s4, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf",
        "v_add_nc_u32_dpp v0, v1, v2 dpp8:[7,6,5,4,3,2,1,0]",
        "v_pk_add_f16_e64_dpp v0, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf",
        "v_dual_mov_b32 v1, v2 :: v_readfirstlane_b32 s2, v1",
    ],
)
def test_other_lanes_where_they_are_not_known_are_refused(machine, line):
    with pytest.raises(InterpreterError, match=r"unknown|modifier|dpp8"):
        machine.run(line)
