"""Vector operations on floats: IEEE arithmetic, with denormals or without; conversions; what follows a result."""

from fractions import Fraction

import numpy as np
import pytest

from tests.emu780m.exact import same_floats, single
from tests.emu780m.machine import DENORMALS, NO_DENORMALS, grid
from tests.emu780m.values import FLOATS, WORDS, flushed

TINY = np.finfo(np.float32).tiny
MODES = pytest.mark.parametrize("mode", [NO_DENORMALS, DENORMALS], ids=["flush", "denormals"])


def in_mode(mode: int, function, *operands: np.ndarray) -> np.ndarray:
    """function of the operands; those that are denormal, and results that were so before rounding, are 0 where the
    mode has no denormals.
    """
    with np.errstate(all="ignore"):
        if mode == DENORMALS:
            return np.asarray(function(*operands), np.float32)
        operands = [flushed(x) for x in operands]
        wanted = np.asarray(function(*operands), np.float32)
        exact = function(*[x.astype(np.float64) for x in operands])
        return np.where(np.abs(exact) < TINY, np.copysign(np.float32(0), wanted), wanted)


@MODES
@pytest.mark.parametrize(
    "name, function",
    [
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: a - b),
        ("subrev", lambda a, b: b - a),
        ("mul", lambda a, b: a * b),
        ("mul_dx9_zero", lambda a, b: np.where((a == 0) | (b == 0), np.float32(0), a * b)),
    ],
)
def test_arithmetic(machine, mode, name, function):
    a, b = grid(FLOATS, 2)
    got = machine.each(f"v_{name}_f32_e32 v0, v1, v2", a, b, mode=mode)
    assert same_floats(got, in_mode(mode, function, a, b))


def smallest(*operands: np.ndarray) -> np.ndarray:
    """A NaN loses, -0 is less than 0."""
    result = operands[0]
    for x in operands[1:]:
        less = np.where(x == result, np.signbit(x), x < result)
        result = np.where(np.isnan(result) | less, x, result)
    return result


def largest(*operands: np.ndarray) -> np.ndarray:
    return -smallest(*[-x for x in operands])


def middle(a, b, c):
    return np.where(
        np.isnan(a) | np.isnan(b) | np.isnan(c),
        smallest(a, b, c),
        largest(smallest(a, b), smallest(largest(a, b), c)),
    )


@pytest.mark.parametrize(
    "name, operands, function",
    [
        ("min_f32_e32", 2, smallest),
        ("max_f32_e32", 2, largest),
        ("min3_f32", 3, smallest),
        ("max3_f32", 3, largest),
        ("med3_f32", 3, middle),
    ],
)
def test_choices(machine, name, operands, function):
    values = FLOATS[np.abs(flushed(FLOATS)) == np.abs(FLOATS)]  # which of denormals counts as 0 is not asked here
    values = np.append(values, np.float32(np.nan))
    chosen = grid(values, operands)
    got = machine.each(f"v_{name} v0, " + ", ".join(f"v{k + 1}" for k in range(operands)), *chosen)
    assert same_floats(got, function(*chosen))


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c, of floats rounded once, of doubles as they come."""
    plain = np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c, a * b + c)
    if a.dtype == np.float64:
        return plain
    for k in np.flatnonzero(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        exact = Fraction(float(a[k])) * Fraction(float(b[k])) + Fraction(float(c[k]))
        if exact:
            plain[k] = single(exact)
    return plain


@MODES
@pytest.mark.parametrize(
    "line",
    ["v_fma_f32 v0, v1, v2, v3", "v_fmaak_f32 v0, v1, v2, 0x3f9d70a4", "v_fmamk_f32 v0, v1, 0x3f9d70a4, v3"],
)
def test_products_with_a_sum_are_rounded_once(machine, mode, line):
    rng = np.random.default_rng(1)
    near = np.float32(1) + rng.integers(-8, 8, (2, 256)).astype(np.float32) * np.float32(2**-23)
    cancelling = [*near, -near[0] * near[1]]
    a, b, c = (np.append(x, y) for x, y in zip(grid(FLOATS[::2], 3), cancelling, strict=True))
    constant = np.full_like(a, np.array(0x3F9D70A4, np.uint32).view(np.float32))
    got = machine.each(line, a, b, c, mode=mode)
    if "fmaak" in line:
        c = constant
    elif "fmamk" in line:
        b = constant
    assert same_floats(got, in_mode(mode, fma, a, b, c))


def test_accumulation_reads_its_result(machine):
    a, b = grid(FLOATS[:8], 2)
    got = machine.each("v_fmac_f32_e32 v0, v1, v2", a, b, old=0x40400000)
    assert same_floats(got, fma(a, b, np.full_like(a, 3)))


@pytest.mark.parametrize(
    "name, function",
    [
        ("rcp", lambda a: 1 / a),
        ("rsq", lambda a: 1 / np.sqrt(a)),
        ("sqrt", np.sqrt),
        ("exp", np.exp2),
        ("log", np.log2),
    ],
)
def test_special_functions_are_rounded_right_and_flush(machine, name, function):
    rng = np.random.default_rng(2)
    a = np.concatenate([FLOATS, rng.normal(0, 40, 400).astype(np.float32), np.float32([-126, -127, 127.5, 128])])
    got = machine.each(f"v_{name}_f32_e32 v0, v1", a)
    with np.errstate(all="ignore"):
        exact = function(flushed(a).astype(np.float64))
    with np.errstate(all="ignore"):
        wanted = flushed(exact.astype(np.float32))
    # numpy's exp2 and log2 may be off in a double's last bit, which rounds otherwise once in 2^29.
    assert same_floats(got, wanted)


def test_angles_are_turns(machine):
    a = np.linspace(-2, 2, 101, dtype=np.float32)
    sine = machine.each("v_sin_f32_e32 v0, v1", a).view(np.float32)
    cosine = machine.each("v_cos_f32_e32 v0, v1", a).view(np.float32)
    np.testing.assert_allclose(sine, np.sin(2 * np.pi * a.astype(np.float64)), atol=1e-7)
    np.testing.assert_allclose(cosine, np.cos(2 * np.pi * a.astype(np.float64)), atol=1e-7)


@pytest.mark.parametrize(
    "name, function",
    [
        ("floor", np.floor),
        ("ceil", np.ceil),
        ("trunc", np.trunc),
        ("rndne", np.rint),
        ("fract", lambda a: a - np.floor(a)),
    ],
)
def test_parts(machine, name, function):
    a = np.concatenate(
        [np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9, 0.1, -0.1]), FLOATS[np.abs(FLOATS) != 2**-127]]
    )
    a = a[(np.abs(a) >= 2**-126) | (a == 0) | np.isnan(a)]
    with np.errstate(all="ignore"):
        assert same_floats(machine.each(f"v_{name}_f32_e32 v0, v1", a), function(a))


def test_exponents(machine):
    a = np.float32([1, 0.75, -3, 1e30, 0, -0.0, np.inf, -np.inf, 2**-126])
    mantissa, exponent = np.frexp(a)
    assert same_floats(machine.each("v_frexp_mant_f32_e32 v0, v1", a), mantissa)
    assert machine.each("v_frexp_exp_i32_f32_e32 v0, v1", a).view(np.int32).tolist() == [1, 0, 2, 100, 0, 0, 0, 0, -125]
    n = np.array([0, 1, -1, 5, 3, 2, 1, 1, 100], np.int32)
    assert exponent.shape == n.shape
    assert same_floats(machine.each("v_ldexp_f32 v0, v1, v2", a, n), np.ldexp(a, n))


def test_conversions_from_integers(machine):
    assert same_floats(machine.each("v_cvt_f32_u32_e32 v0, v1", WORDS), WORDS.astype(np.float32))
    assert same_floats(machine.each("v_cvt_f32_i32_e32 v0, v1", WORDS), WORDS.view(np.int32).astype(np.float32))
    for k in range(4):
        got = machine.each(f"v_cvt_f32_ubyte{k}_e32 v0, v1", WORDS)
        assert same_floats(got, (WORDS >> (8 * k) & 255).astype(np.float32))


def test_conversions_to_integers_saturate(machine):
    a = np.float32([0, -0.9, 0.9, 1.9, -1.9, 2147483520, 2147483648, 4294967040, 4294967296, 1e20, -1e20])
    a = np.append(a, np.float32([np.inf, -np.inf, np.nan, -2147483648]))
    with np.errstate(invalid="ignore"):
        whole = np.nan_to_num(np.trunc(a.astype(np.float64)), nan=0, posinf=1e30, neginf=-1e30)
    unsigned = np.clip(whole, 0, 2**32 - 1).astype(np.uint32)
    signed = np.clip(whole, -(2**31), 2**31 - 1).astype(np.int64).astype(np.int32)
    assert machine.each("v_cvt_u32_f32_e32 v0, v1", a).tolist() == unsigned.tolist()
    assert machine.each("v_cvt_i32_f32_e32 v0, v1", a).view(np.int32).tolist() == signed.tolist()


def test_signs_of_operands(machine):
    a, b = grid(np.float32([1.5, -2, 0, -0.0, np.inf]), 2)
    with np.errstate(invalid="ignore"):
        assert same_floats(machine.each("v_add_f32_e64 v0, -v1, |v2|", a, b), -a + np.abs(b))
        assert same_floats(machine.each("v_mul_f32_e64 v0, -|v1|, v2", a, b), -np.abs(a) * b)
        assert same_floats(machine.each("v_fma_f32 v0, v1, v2, neg(0)", a, b), a * b - np.float32(0))
    assert same_floats(machine.each("v_cndmask_b32_e64 v0, -v1, |v2|, exec", a, b), np.abs(b))
    assert same_floats(machine.each("v_mov_b32_e64 v0, -v1", a), -a)


@pytest.mark.parametrize("modifier, factor", [("mul:2", 2), ("mul:4", 4), ("div:2", 0.5)])
def test_results_scaled_then_clamped(machine, modifier, factor):
    a = np.float32([0.1, 0.3, 0.7, -1, 3, np.inf, np.nan, -0.0])
    scaled = (a + np.float32(0)) * np.float32(factor)
    assert same_floats(machine.each(f"v_add_f32_e64 v0, v1, 0 {modifier}", a), scaled)
    clamped = np.nan_to_num(np.clip(scaled, 0, 1), nan=0.0) + np.float32(0)
    assert same_floats(machine.each(f"v_add_f32_e64 v0, v1, 0 clamp {modifier}", a), clamped)


def test_constants(machine):
    one = np.float32([1])
    for text, value in [("0.5", 0.5), ("-4.0", -4), ("0.15915494", 1 / (2 * np.pi)), ("0x40490fdb", np.pi)]:
        assert same_floats(machine.each(f"v_mul_f32_e32 v0, {text}, v1", one), np.float32([value]))
    assert machine.each("v_add_nc_u32_e32 v0, -16, v1", np.uint32([20])).tolist() == [4]
