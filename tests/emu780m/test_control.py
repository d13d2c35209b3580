"""Branches, barriers, orders of waves; what is not known is refused by its text."""

import numpy as np
import pytest

from tests.emu780m.machine import EXEC, VCC, InterpreterError


def lanes_of(machine) -> np.ndarray:
    return np.arange(machine.lanes, dtype=np.uint32)


def test_a_loop(machine):
    """A branch names words behind it, here lines."""
    lines = """s_mov_b32 s2, 0
        s_add_u32 s3, s3, s2
        s_add_u32 s2, s2, 1
        s_cmp_lt_u32 s2, 10
        s_cbranch_scc1 65532
        s_branch 1
        s_mov_b32 s3, 0"""
    result = machine.run(lines, s={3: 0})
    assert (result.s(2), result.s(3)) == (10, 45)
    assert result.counts["branches"] == 10  # taken: 9 back and one forth


@pytest.mark.parametrize(
    "name, state, taken",
    [
        ("scc0", {"scc": False}, True),
        ("scc0", {"scc": True}, False),
        ("scc1", {"scc": True}, True),
        ("scc1", {"scc": False}, False),
        ("vccz", {"s": {VCC: 0, VCC + 1: 0}}, True),
        ("vccz", {"s": {VCC: 2, VCC + 1: 0}}, False),
        ("vccnz", {"s": {VCC: 2, VCC + 1: 0}}, True),
        ("execz", {"on": 0}, True),
        ("execz", {"on": 1}, False),
        ("execnz", {"on": 1}, True),
        ("execnz", {"on": 0}, False),
    ],
)
def test_conditions(machine, name, state, taken):
    result = machine.run(f"s_cbranch_{name} 1\ns_mov_b32 s4, 1", **state | {"s": state.get("s", {}) | {4: 0}})
    assert result.s(4) == (0 if taken else 1)


def test_the_upper_halves_of_masks_count_in_waves_of_64(machine):
    wide = machine.lanes == 64
    result = machine.run("s_cbranch_vccz 1\ns_mov_b32 s4, 1", s={4: 0, VCC: 0, VCC + 1: 1})
    assert result.s(4) == wide
    result = machine.run("s_cbranch_execz 1\ns_mov_b32 s4, 1", s={4: 0, EXEC: 0, EXEC + 1: 1})
    assert result.s(4) == wide


def test_branches_out_of_the_code_are_refused(machine):
    with pytest.raises(InterpreterError, match="branch out of the code: s_branch 7"):
        machine.run("s_branch 7")


# Wave k writes word k and reads the word of the wave after it.
NEIGHBOURS = """v_lshlrev_b32_e32 v2, 2, v1
    ds_store_b32 v2, v1
    {}
    v_add_nc_u32_e32 v3, 1, v1
    v_and_b32_e32 v3, 7, v3
    v_lshlrev_b32_e32 v3, 2, v3
    ds_load_b32 v4, v3"""


def neighbours(machine, barrier: str, order: int | None) -> list[int]:
    number = np.arange(8, dtype=np.uint32)[:, None].repeat(machine.lanes, axis=1)
    lds = np.full(8, 99, np.uint32)
    result = machine.run(NEIGHBOURS.format(barrier), {1: number}, waves=8, lds=lds, order=order)
    return result.vectors[:, 4, 0].tolist()


def test_all_waves_come_to_a_barrier_before_one_goes_on(machine):
    for order in (None, *range(1, 20)):
        assert neighbours(machine, "s_barrier", order) == [1, 2, 3, 4, 5, 6, 7, 0]


def test_a_missing_barrier_shows_in_other_orders(machine):
    """In its own order the last wave alone reads what was written; random orders give many other results."""
    assert neighbours(machine, "s_nop 0", None) == [99] * 7 + [0]
    assert len({tuple(neighbours(machine, "s_nop 0", order)) for order in range(1, 20)}) > 10


def test_waves_may_end_before_others_reach_a_barrier(machine):
    lines = """v_readfirstlane_b32 s2, v1
        s_cmp_eq_u32 s2, 0
        s_cbranch_scc1 1
        s_barrier
        s_mov_b32 s3, 5"""
    number = np.arange(3, dtype=np.uint32)[:, None].repeat(machine.lanes, axis=1)
    result = machine.run(lines, {1: number}, waves=3)
    assert result.scalars[:, 3].tolist() == [5, 5, 5]
    assert result.issued["barrier"] == 2


def test_counts_by_kind(machine):
    lines = """v_mov_b32_e32 v1, 0
        v_exp_f32_e32 v2, v1
        v_dual_mov_b32 v1, v2 :: v_dual_mov_b32 v2, v1
        s_waitcnt lgkmcnt(0)
        s_delay_alu instid0(VALU_DEP_1) | instskip(NEXT) | instid1(SALU_CYCLE_1)
        s_mov_b32 s2, 0
        s_barrier"""
    assert machine.run(lines).issued == {
        "valu": 2, "pair": 1, "salu": 2, "smem": 0, "vmem": 0, "lds": 0, "barrier": 1, "nops": 2, "other": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "v_add_f64 v[0:1], v[2:3], v[4:5]",
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 3",
        "s_round_mode 0x1",
        "ds_add_rtn_u32 v0, v1, v2",
        "ds_load_i8 v0, v1",
        "scratch_load_u8 v0, off, s4",
        "buffer_load_format_x v0, v1, s[4:7], 0 offen",
        "global_atomic_cmpswap_b32 v0, v[1:2], s[2:3]",
        "image_load v0, v1, s[0:7]",
        "v_wmma_f16_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]",
        "exp mrt0 v0, v0, v0, v0",
    ],
)
def test_unknown_instructions_are_refused_by_their_text(machine, line):
    with pytest.raises(InterpreterError) as refused:
        machine.run(line)
    assert line in str(refused.value) or str(refused.value).startswith("operand ")


@pytest.mark.parametrize(
    "line",
    [
        "v_add_nc_u32_e64 v0, v1, v2 clamp",  # integers would saturate
        "v_add_f16_e64 v0.l, v1.l, v2.l mul:2",
        "v_pk_add_f16 v0, v1, v2 clamp",
        "v_dot4_i32_iu8 v0, v1, v2, v3 clamp",
        "v_dot4_i32_iu8 v0, v1, v2, v3 op_sel:[1,0,0]",
        "v_add_nc_u32_e64 v0, -v1, v2",
        "v_and_b32_e64 v0, |v1|, v2",
        "v_add_f32_e64 v0, v1.l, v2",
        "v_add_f32_e64 v0, v1, v2 op_sel:[1,0,0]",
        "v_and_b16 v0.l, v1.l, 1.0",
        "v_readlane_b32 s0, -v1, 3",
        "v_permlane16_b32 v0, v1, s2, s3 op_sel:[0,0,1]",
        "v_cmp_lt_u32_e64 s0, v1, v2 clamp",
        "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7] neg_lo:[1,0,0]",
        "ds_load_b32 v0, v1 gds",
        "buffer_load_b32 v0, v1, s[4:7], 0 offen lds",
        "buffer_load_b32 v0, off, s[4:7], 0 tfe",
        "buffer_atomic_add_u32 v0, v1, s[4:7], 0 offen glc",
        "s_load_b32 s0, s[2:3], 0x0 nv",
        "v_add_f32_e32 v0, v1, v2, v3",
        "v_add_f32_e32 v0, v1",
        "s_add_u32 s0, v1, s2",
        "s_mov_b32 s0, s1, s2",
        "v_mov_b32_e32 v256, v1",
        "v_mov_b32_e32 v0, vccz",
        "s_mov_b32 s0, src_shared_base",
        "s_mov_b32 s0, 0x1ffffffff",
    ],
)
def test_operands_and_modifiers_that_are_not_known_are_refused(machine, line):
    with pytest.raises(InterpreterError, match="operand|modifier|sign|half|unknown"):
        machine.run(line)


def test_several_unknown_lines_are_named_at_once(machine):
    with pytest.raises(InterpreterError, match=r"unknown: v_one v0 \| unknown: v_two v0"):
        machine.run("v_one v0\nv_mov_b32_e32 v0, 0\nv_two v0")


@pytest.mark.parametrize(
    "mode, why",
    [
        (0xC1, "floats rounded otherwise than to nearest"),
        (0xD0, "denormal floats allowed only as operands or only as results"),
        (0x00, "denormal halves not allowed"),
    ],
)
def test_modes_that_are_not_known_are_refused(machine, mode, why):
    with pytest.raises(InterpreterError, match=why):
        machine.run("s_nop 0", mode=mode)


def test_registers_start_as_given(machine):
    result = machine.run("s_nop 0", {5: lanes_of(machine)}, {5: 6})
    assert (result.v(5).tolist(), result.s(5)) == (lanes_of(machine).tolist(), 6)
