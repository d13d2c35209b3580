"""Scalar ALU on 32 and 64 bits, with SCC; EXEC kept and changed."""

from itertools import product

import pytest

from tests.emu780m.machine import EXEC, M0, VCC
from tests.emu780m.values import WORDS

FULL = 0xFFFFFFFF
FULL64 = 2**64 - 1


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def field(a: int, b: int) -> int:
    return a >> (b & 31) & ((1 << (b >> 16 & 127)) - 1)


def signed_field(a: int, b: int) -> int:
    width = min(b >> 16 & 127, 32)
    return signed(signed(a) >> (b & 31), width) if width else 0


def overflows(x: int) -> bool:
    return not -(2**31) <= x < 2**31


def nonzero(function):
    """SCC says whether the result is not 0."""

    def both(*operands: int) -> tuple[int, bool]:
        value = function(*operands) & FULL
        return value, value != 0

    return both


def kept(function):
    """SCC stays as it was."""
    return lambda *operands: (function(*operands), None)


# (a, b) -> (result, SCC; None: as before). SCC before the instruction is 1.
BINARY = {
    "s_add_u32": lambda a, b: (a + b, a + b > FULL),
    "s_addc_u32": lambda a, b: (a + b + 1, a + b + 1 > FULL),
    "s_sub_u32": lambda a, b: (a - b, a < b),
    "s_subb_u32": lambda a, b: (a - b - 1, a < b + 1),
    "s_add_i32": lambda a, b: (a + b, overflows(signed(a) + signed(b))),
    "s_sub_i32": lambda a, b: (a - b, overflows(signed(a) - signed(b))),
    "s_mul_i32": kept(lambda a, b: a * b),
    "s_mul_hi_u32": kept(lambda a, b: a * b >> 32),
    "s_mul_hi_i32": kept(lambda a, b: signed(a) * signed(b) >> 32),
    "s_lshl1_add_u32": lambda a, b: ((a << 1) + b, (a << 1) + b >> 32 & 1),
    "s_lshl4_add_u32": lambda a, b: ((a << 4) + b, (a << 4) + b >> 32 & 1),
    "s_min_u32": lambda a, b: (min(a, b), a < b),
    "s_max_u32": lambda a, b: (max(a, b), a > b),
    "s_min_i32": lambda a, b: (min(signed(a), signed(b)), signed(a) < signed(b)),
    "s_max_i32": lambda a, b: (max(signed(a), signed(b)), signed(a) > signed(b)),
    "s_and_b32": nonzero(lambda a, b: a & b),
    "s_or_b32": nonzero(lambda a, b: a | b),
    "s_xor_b32": nonzero(lambda a, b: a ^ b),
    "s_and_not1_b32": nonzero(lambda a, b: a & ~b),
    "s_or_not1_b32": nonzero(lambda a, b: a | ~b),
    "s_xnor_b32": nonzero(lambda a, b: ~(a ^ b)),
    "s_nor_b32": nonzero(lambda a, b: ~(a | b)),
    "s_nand_b32": nonzero(lambda a, b: ~(a & b)),
    "s_lshl_b32": nonzero(lambda a, b: a << (b & 31)),
    "s_lshr_b32": nonzero(lambda a, b: a >> (b & 31)),
    "s_ashr_i32": nonzero(lambda a, b: signed(a) >> (b & 31)),
    "s_bfe_u32": nonzero(field),
    "s_bfe_i32": nonzero(signed_field),
    "s_bfm_b32": kept(lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)),
    "s_cselect_b32": kept(lambda a, b: a),
    "s_pack_ll_b32_b16": kept(lambda a, b: a & 0xFFFF | b << 16),
    "s_pack_lh_b32_b16": kept(lambda a, b: a & 0xFFFF | b & 0xFFFF0000),
    "s_pack_hh_b32_b16": kept(lambda a, b: a >> 16 | b & 0xFFFF0000),
    "s_pack_hl_b32_b16": kept(lambda a, b: a >> 16 | b << 16),
}
UNARY = {
    "s_mov_b32": kept(lambda a: a),
    "s_not_b32": nonzero(lambda a: ~a),
    "s_abs_i32": nonzero(lambda a: abs(signed(a))),
    "s_sext_i32_i16": kept(lambda a: signed(a, 16)),
    "s_sext_i32_i8": kept(lambda a: signed(a, 8)),
    "s_bcnt1_i32_b32": nonzero(lambda a: a.bit_count()),
    "s_brev_b32": kept(lambda a: int(f"{a:032b}"[::-1], 2)),
    "s_ctz_i32_b32": kept(lambda a: (a & -a).bit_length() - 1),
    "s_clz_i32_u32": kept(lambda a: 32 - a.bit_length() if a else -1),
    "s_wqm_b32": nonzero(lambda a: sum(15 << 4 * k for k in range(8) if a >> 4 * k & 15)),
}
FIELDS = [0x00080004, 0x00200000, 0x001F0001, 0x00080018, 0x00400003]
COMPARED = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def run_all(machine, lines: list[str], s: dict, scc: bool = True):
    """Each line's result in s10, s11 ..., and its SCC in s60 ...; SCC is set again before each."""
    text = []
    for k, line in enumerate(lines):
        text += ["s_cmp_eq_u32 0, 0" if scc else "s_cmp_lg_u32 0, 0", line.format(f"s{10 + k}")]
        text += [f"s_cselect_b32 s{60 + k}, 1, 0"]
    return machine.run("\n".join(text), s=s)


@pytest.mark.parametrize("name", BINARY)
def test_two_operands(machine, name):
    values = [int(x) for x in WORDS]
    pairs = list(product(values, values + FIELDS))
    for start in range(0, len(pairs), 40):
        part = pairs[start : start + 40]
        lines = [f"{name} {{}}, {a:#x}, {b:#x}" for a, b in part]
        result = run_all(machine, lines, {})
        for k, (a, b) in enumerate(part):
            value, scc = BINARY[name](a, b)
            assert (result.s(10 + k), result.s(60 + k)) == (value & FULL, 1 if scc is None else int(scc)), (a, b)


@pytest.mark.parametrize("name", UNARY)
def test_one_operand(machine, name):
    values = [int(x) for x in WORDS]
    result = run_all(machine, [f"{name} {{}}, {a:#x}" for a in values], {})
    for k, a in enumerate(values):
        value, scc = UNARY[name](a)
        assert (result.s(10 + k), result.s(60 + k)) == (value & FULL, 1 if scc is None else int(scc)), a


@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.parametrize("kind", ["u32", "i32"])
def test_comparisons_set_scc_alone(machine, name, kind):
    values = [int(x) for x in WORDS]
    number = signed if kind == "i32" else int
    for a in values:
        for b in values:
            result = machine.run(f"s_cmp_{name}_{kind} s2, s3", s={2: a, 3: b})
            assert result.scc[0] == COMPARED[name](number(a), number(b)), (a, b)
            immediate = b & 0xFFFF
            result = machine.run(f"s_cmpk_{name}_{kind} s2, {immediate:#x}", s={2: a})
            extended = signed(immediate, 16) if kind == "i32" else immediate
            assert result.scc[0] == COMPARED[name](number(a), extended), (a, immediate)


def test_immediates_of_16_bits_have_signs(machine):
    lines = ["s_movk_i32 {}, 0x8000", "s_movk_i32 {}, 0x7fff", "s_addk_i32 {}, 0xffff", "s_mulk_i32 {}, 0xfffe"]
    result = run_all(machine, lines, {12: 0, 13: 5})
    assert [result.s(10 + k) for k in range(4)] == [0xFFFF8000, 0x7FFF, FULL, FULL - 9]
    assert machine.run("s_addk_i32 s2, 0x7fff", s={2: 0x7FFFFFFF}).scc[0]


@pytest.mark.parametrize("scc", [False, True])
def test_moves_on_condition(machine, scc):
    lines = """s_cmovk_i32 s2, 0xfffe
        s_cmov_b32 s3, 9
        s_cselect_b32 s4, 1, 2
        s_cselect_b64 s[6:7], -1, 5"""
    result = machine.run(lines, s={2: 7, 3: 7}, scc=scc)
    wanted = [FULL - 1, 9, 1] if scc else [7, 7, 2]
    assert [result.s(register) for register in (2, 3, 4)] == wanted
    assert result.s64(6) == (FULL64 if scc else 5)


def test_bits_set_cleared_and_tested(machine):
    lines = """s_bitset0_b32 s2, 3
        s_bitset1_b32 s3, 63
        s_bitcmp1_b32 s2, 2
        s_cselect_b32 s4, 1, 0
        s_bitcmp0_b32 s2, 2
        s_cselect_b32 s5, 1, 0"""
    result = machine.run(lines, s={2: 0xC, 3: 0})
    assert [result.s(register) for register in (2, 3, 4, 5)] == [4, 1 << 31, 1, 0]


WIDE = {
    "s_and_b64": lambda a, b: a & b,
    "s_or_b64": lambda a, b: a | b,
    "s_xor_b64": lambda a, b: a ^ b,
    "s_and_not1_b64": lambda a, b: a & ~b,
    "s_or_not1_b64": lambda a, b: a | ~b,
    "s_xnor_b64": lambda a, b: ~(a ^ b),
    "s_nor_b64": lambda a, b: ~(a | b),
    "s_nand_b64": lambda a, b: ~(a & b),
    "s_lshl_b64": lambda a, b: a << (b & 63),
    "s_lshr_b64": lambda a, b: a >> (b & 63),
}
LONG = [0, 1, 35, FULL, 1 << 32, 1 << 63, 0x123456789ABCDEF0, FULL64]


@pytest.mark.parametrize("name", WIDE)
def test_64_bits(machine, name):
    second = "s4" if "sh" in name else "s[4:5]"
    for a, b in product(LONG, LONG):
        s = {2: a & FULL, 3: a >> 32, 4: b & FULL, 5: b >> 32}
        result = machine.run(f"{name} s[2:3], s[2:3], {second}", s=s)
        wanted = WIDE[name](a, b & FULL if "sh" in name else b) & FULL64
        assert (result.s64(2), bool(result.scc[0])) == (wanted, wanted != 0), (a, b)


def test_more_of_64_bits(machine):
    for a in LONG:
        lines = """s_not_b64 s[6:7], s[2:3]
            s_bcnt1_i32_b64 s8, s[2:3]
            s_ctz_i32_b64 s9, s[2:3]
            s_mov_b64 vcc, s[2:3]
            s_cmp_eq_u64 s[2:3], vcc"""
        result = machine.run(lines, s={2: a & FULL, 3: a >> 32})
        assert result.s64(6) == a ^ FULL64
        assert (result.s(8), result.s(9)) == (a.bit_count(), ((a & -a).bit_length() - 1) & FULL)
        assert (result.s64(VCC), result.scc[0]) == (a, 1)
    assert machine.run("s_cmp_lg_u64 s[2:3], s[4:5]", s={2: 1, 3: 2, 4: 1, 5: 3}).scc[0]
    assert machine.run("s_bfm_b64 s[2:3], 40, 4").s64(2) == ((1 << 40) - 1) << 4


def test_constants_of_64_bits(machine):
    """Small integers are filled up with their sign, literals with zeros, floats are doubles."""
    for text, wanted in [("-1", FULL64), ("0xfffffffe", 0xFFFFFFFE), ("64", 64), ("1.0", 0x3FF0000000000000)]:
        assert machine.run(f"s_mov_b64 s[2:3], {text}").s64(2) == wanted


SAVED = {
    "and": lambda a, old: a & old,
    "or": lambda a, old: a | old,
    "xor": lambda a, old: a ^ old,
    "and_not1": lambda a, old: a & ~old,
    "and_not0": lambda a, old: ~a & old,
    "or_not1": lambda a, old: a | ~old,
}


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("a", [0, 0xF0F0F0F0F0F0F0F0, FULL64])
def test_exec_is_kept_and_changed(machine, name, a):
    on = 0x00FF00FF00FF00FF & machine.all
    short = machine.lanes == 32
    to, source = ("s4", "s2") if short else ("s[4:5]", "s[2:3]")
    result = machine.run(f"s_{name}_saveexec_b{machine.lanes} {to}, {source}", s={2: a & FULL, 3: a >> 32}, on=on)
    wanted = SAVED[name](a, on) & machine.all
    assert result.mask(4, machine.lanes) == on
    assert (result.mask(EXEC, machine.lanes), bool(result.scc[0])) == (wanted, wanted != 0)


def test_exec_may_be_kept_where_the_operand_was(machine):
    vcc = "vcc_lo" if machine.lanes == 32 else "vcc"
    result = machine.run(f"s_and_saveexec_b{machine.lanes} {vcc}, {vcc}", s={VCC: 6, VCC + 1: 0}, on=3)
    assert (result.mask(VCC, machine.lanes), result.mask(EXEC, machine.lanes)) == (3, 2)


def test_wrexec(machine):
    result = machine.run("s_and_not1_wrexec_b32 s4, s2", s={2: 0b110}, on=0b010)
    assert (result.s(4), result.s(EXEC), result.scc[0]) == (0b100, 0b100, 1)


def test_named_registers(machine):
    lines = """s_mov_b32 m0, 5
        s_add_u32 vcc_hi, m0, 1
        s_mov_b32 null, 7
        s_add_u32 s2, null, 3
        s_mov_b32 s3, scc
        s_mov_b32 s4, ttmp2"""
    result = machine.run(lines, s={110: 42})
    assert [result.s(register) for register in (M0, VCC + 1, 2, 3, 4)] == [5, 6, 3, 0, 42]
