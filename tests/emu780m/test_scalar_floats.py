"""Scalar ALU on floats, which chips from gfx1150 on have."""

import numpy as np
import pytest

from tests.emu780m.exact import same_floats
from tests.emu780m.values import FLOATS, WORDS, flushed

FIRST = 10  # register of the first result


def words(values: np.ndarray) -> list[int]:
    return [int(x) for x in values.view(np.uint32)]


def results(machine, line: str, operands: np.ndarray, s: dict[int, int] | None = None) -> np.ndarray:
    """The line with each operand in place of {}, as words."""
    lines = "\n".join(line.format(FIRST + k, f"{x:#x}") for k, x in enumerate(words(operands)))
    result = machine.run(lines, s=s)
    return np.array([result.s(FIRST + k) for k in range(len(operands))], np.uint32)


BINARY = {
    "s_add_f32": lambda a, b: a + b,
    "s_sub_f32": lambda a, b: a - b,
    "s_mul_f32": lambda a, b: a * b,
    "s_min_f32": np.fmin,
    "s_max_f32": np.fmax,
}


@pytest.mark.parametrize("name", BINARY)
def test_two_operands(machine, name):
    """Denormals count as zeros, in operands and results; a result is one by its exact value, which float64 has."""
    chooses = name in ("s_min_f32", "s_max_f32")  # which of denormals counts as 0 is not asked of these
    values = flushed(FLOATS) if chooses else FLOATS
    for b in flushed(FLOATS):
        got = results(machine, f"{name} s{{}}, {{}}, s2", values, {2: words(b[None])[0]})
        with np.errstate(all="ignore"):
            exact = BINARY[name](flushed(FLOATS).astype(np.float64), np.float64(b))
            small = np.abs(exact) < np.finfo(np.float32).tiny
            wanted = np.where(small, np.copysign(0.0, exact), exact).astype(np.float32)
        if chooses:  # of zeros of two signs: the next test
            got = np.where(wanted == 0, got & 0x7FFFFFFF, got).astype(np.uint32)
            wanted = np.where(wanted == 0, np.float32(0), wanted)
        assert same_floats(got, wanted), b


def test_least_and_most_of_zeros_of_two_signs(machine):
    lines = "s_min_f32 s2, 0, 0x80000000\ns_max_f32 s3, 0x80000000, 0\ns_min_f32 s4, 0x80000000, 0"
    result = machine.run(lines)
    assert [result.s(register) for register in (2, 3, 4)] == [0x80000000, 0, 0x80000000]


@pytest.mark.parametrize(
    "line", ["s_fmac_f32 s4, s2, s3", "s_fmaak_f32 s4, s2, s3, 2.0", "s_fmamk_f32 s4, s2, 0x40400001, s4"]
)
def test_products_and_sums_are_rounded_once(machine, line):
    a, b, c = np.float32(1.25), np.float32(3 + 2**-22), np.float32(2)
    s = {register: words(np.array([x]))[0] for register, x in ((2, a), (3, b), (4, c))}
    wanted = np.float32(float(a) * float(b) + 2)
    assert np.uint32(machine.run(line, s=s).s(4)).view(np.float32) == wanted
    assert wanted != a * b + c, "or the test says nothing"


ROUNDING = {"s_floor_f32": np.floor, "s_ceil_f32": np.ceil, "s_trunc_f32": np.trunc, "s_rndne_f32": np.rint}


@pytest.mark.parametrize("name", ROUNDING)
def test_whole_numbers(machine, name):
    values = np.array([0.5, 1.5, -0.5, -1.5, 2.5, 2.4, -2.6, 1e9, -0.0, np.inf, np.nan], np.float32)
    assert same_floats(results(machine, f"{name} s{{}}, {{}}", values), ROUNDING[name](values))


def test_conversions_of_integers(machine):
    assert same_floats(results(machine, "s_cvt_f32_u32 s{}, {}", WORDS), WORDS.astype(np.float32))
    assert same_floats(results(machine, "s_cvt_f32_i32 s{}, {}", WORDS), WORDS.view(np.int32).astype(np.float32))
    values = np.array([0.9, -0.9, 7.99, 2.0**31, -(2.0**31), 2.0**32, -1e20, 4294967040.0, np.nan], np.float32)
    unsigned = [0, 0, 7, 2**31, 0, 2**32 - 1, 0, 4294967040, 0]
    signed = [0, 0, 7, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2**31 - 1, 0]
    assert results(machine, "s_cvt_u32_f32 s{}, {}", values).tolist() == unsigned
    assert results(machine, "s_cvt_i32_f32 s{}, {}", values).view(np.int32).tolist() == signed


def test_conversions_of_halves(machine):
    values = np.array([1.0, -2.5, 65504.0, 65519.0, 2049.0, 2**-14, np.inf], np.float32)
    halves = values.astype(np.float16).view(np.uint16)
    assert (results(machine, "s_cvt_f16_f32 s{}, {}", values) & 0xFFFF).tolist() == halves.tolist()
    both = halves.astype(np.uint32) | np.uint32(0xC000) << 16
    assert same_floats(results(machine, "s_cvt_f32_f16 s{}, {}", both), halves.view(np.float16))
    assert set(results(machine, "s_cvt_hi_f32_f16 s{}, {}", both).view(np.float32)) == {-2.0}
    toward_zero = results(machine, "s_cvt_pk_rtz_f16_f32 s{}, {}, 0x40000000", values)
    assert (toward_zero >> 16 == 0x4000).all()
    assert [int(x) for x in toward_zero[3:5] & 0xFFFF] == [0x7BFF, 0x6800], "65504 and 2048"


COMPARED = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "lg": lambda a, b: a < b or a > b,
    "ge": lambda a, b: a >= b,
    "o": lambda a, b: a == a and b == b,
}
OPPOSITES = {"lt": "nlt", "eq": "neq", "le": "nle", "gt": "ngt", "lg": "nlg", "ge": "nge", "o": "u"}


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_set_scc_alone(machine, name):
    values = np.array([0.0, -0.0, 1.0, -1.0, np.inf, np.nan, 2**-140], np.float32)
    for a in values:
        for b in values:
            s = {2: words(a[None])[0], 3: words(b[None])[0]}
            wanted = COMPARED[name](*flushed(np.array([a, b])))
            assert machine.run(f"s_cmp_{name}_f32 s2, s3", s=s).scc[0] == wanted, (a, b)
            assert machine.run(f"s_cmp_{OPPOSITES[name]}_f32 s2, s3", s=s).scc[0] != wanted, (a, b)


def test_differences_without_sign(machine):
    lines = "s_absdiff_i32 s2, 3, 10\ns_absdiff_i32 s3, -5, 5\ns_absdiff_i32 s4, 7, 7"
    result = machine.run(lines, scc=True)
    assert [result.s(register) for register in (2, 3, 4)] == [7, 10, 0] and not result.scc[0]
    assert machine.run("s_absdiff_i32 s2, 3, 10").scc[0]
