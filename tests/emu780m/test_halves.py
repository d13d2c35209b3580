"""Halves: all four rounding modes against exact fractions, packed and alone, and products of halves with sums."""

from fractions import Fraction

import numpy as np
import pytest

from tests.emu780m.exact import NEAREST, TOWARD_ZERO, half, same_floats, same_halves, single
from tests.emu780m.machine import NO_DENORMALS, InterpreterError, grid
from tests.emu780m.values import FLOATS, HALVES, flushed

ROUNDINGS = pytest.mark.parametrize("rounding", range(4), ids=["nearest", "up", "down", "zero"])
ALL_HALVES = np.arange(0x10000, dtype=np.uint32)


def float_mode(rounding: int) -> int:
    return NO_DENORMALS | rounding << 2


def floats(bits: np.ndarray) -> np.ndarray:
    """Halves by their bits, as doubles."""
    return bits.astype(np.uint16).view(np.float16).astype(np.float64)


def rounded(plain: np.ndarray, exact: list[Fraction | None], rounding: int) -> np.ndarray:
    """Bits of the exact values; of `plain`, doubles, where there is none (None: a NaN, infinity or zero)."""
    with np.errstate(all="ignore"):
        bits = plain.astype(np.float16).view(np.uint16).copy()
    for k, value in enumerate(exact):
        if value:
            bits[k] = half(value, rounding)
    return bits


def fractions(x: np.ndarray) -> list[Fraction | None]:
    return [Fraction(float(y)) if np.isfinite(y) else None for y in x]


def between_halves() -> np.ndarray:
    """Floats at, beside and between halves: every 37th half, the middle to the next, a float below and above it."""
    bits = np.arange(0, 0x7C00, 37)
    low = floats(bits)
    high = np.append(floats(bits[:-1] + 1), 65536.0)
    middles = ((low + high) / 2).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))]
    positive = np.concatenate(
        [low.astype(np.float32), middles, *beside, FLOATS, np.float32([65519.996, 2**-25, 2**-26])]
    )
    return np.concatenate([positive, -positive])


@ROUNDINGS
def test_floats_become_halves(machine, rounding):
    x = flushed(between_halves())
    wanted = rounded(x.astype(np.float64), fractions(x), rounding)
    got = machine.each("v_cvt_f16_f32_e32 v0.l, v1", x, mode=float_mode(rounding), old=0xABCD0000)
    assert same_halves(got & 0xFFFF, wanted)
    assert np.all(got >> 16 == 0xABCD)
    got = machine.each("v_cvt_f16_f32_e32 v0.h, v1", x, mode=float_mode(rounding), old=0xABCD)
    assert same_halves(got >> 16, wanted)
    assert np.all(got & 0xFFFF == 0xABCD)


@ROUNDINGS
@pytest.mark.parametrize("name", ["v_cvt_pk_rtz_f16_f32_e32", "v_cvt_pkrtz_f16_f32"])
def test_packing_rounds_toward_zero_in_every_mode(machine, rounding, name):
    x = flushed(between_halves())
    y = x[::-1].copy()
    got = machine.each(f"{name} v0, v1, v2", x, y, mode=float_mode(rounding))
    assert same_halves(got & 0xFFFF, rounded(x.astype(np.float64), fractions(x), TOWARD_ZERO))
    assert same_halves(got >> 16, rounded(y.astype(np.float64), fractions(y), TOWARD_ZERO))


def test_every_half_becomes_its_float(machine):
    wanted = ALL_HALVES.astype(np.uint16).view(np.float16).astype(np.float32)
    assert same_floats(machine.each("v_cvt_f32_f16_e32 v0, v1.l", ALL_HALVES), wanted)
    assert same_floats(machine.each("v_cvt_f32_f16_e32 v0, v1.h", ALL_HALVES << 16), wanted)
    assert same_floats(machine.each("v_cvt_f32_f16_e64 v0, -|v1.l|", ALL_HALVES), -np.abs(wanted))


@ROUNDINGS
def test_integers_become_halves(machine, rounding):
    for name, whole in [
        ("u16", ALL_HALVES.astype(np.float64)),
        ("i16", ALL_HALVES.astype(np.int16).astype(np.float64)),
    ]:
        got = machine.each(f"v_cvt_f16_{name}_e32 v0.l, v1.l", ALL_HALVES[::7], mode=float_mode(rounding))
        assert same_halves(got & 0xFFFF, rounded(whole[::7], fractions(whole[::7]), rounding))


def arithmetic(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In doubles, which hold sums and products of two halves exactly."""
    with np.errstate(all="ignore"):
        return {"add": a + b, "sub": a - b, "subrev": b - a, "mul": a * b}[name]


@ROUNDINGS
@pytest.mark.parametrize("name", ["add", "sub", "subrev", "mul"])
def test_arithmetic(machine, rounding, name):
    a, b = grid(HALVES, 2)
    exact = arithmetic(name, floats(a), floats(b))
    wanted = rounded(exact, fractions(exact), rounding)
    got = machine.each(f"v_{name}_f16_e32 v0.l, v1.l, v2.l", a, b, mode=float_mode(rounding))
    assert same_halves(got & 0xFFFF, wanted)
    got = machine.each(f"v_{name}_f16_e64 v0.h, -v1.h, |v2.l|", a << 16 ^ 0x80000000, b, mode=float_mode(rounding))
    positive = arithmetic(name, floats(a), np.abs(floats(b)))
    assert same_halves(got >> 16, rounded(positive, fractions(positive), rounding))


def exact_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, list[Fraction | None]]:
    with np.errstate(all="ignore"):
        plain = floats(a) * floats(b) + floats(c)
    finite = np.isfinite(floats(a)) & np.isfinite(floats(b)) & np.isfinite(floats(c))
    parts = zip(floats(a), floats(b), floats(c), finite, strict=True)
    return plain, [Fraction(x) * Fraction(y) + Fraction(z) if is_finite else None for x, y, z, is_finite in parts]


@ROUNDINGS
def test_products_with_a_sum_are_rounded_once(machine, rounding):
    a, b, c = grid(HALVES[::2], 3)
    wanted = rounded(*exact_fma(a, b, c), rounding)
    got = machine.each("v_fma_f16 v0.l, v1.l, v2.l, v3.l", a, b, c, mode=float_mode(rounding))
    assert same_halves(got & 0xFFFF, wanted)
    got = machine.each("v_pk_fma_f16 v0, v1, v2, v3", a << 16, b << 16, c << 16, mode=float_mode(rounding))
    assert same_halves(got >> 16, wanted)


def test_accumulation_reads_its_half(machine):
    a, b = grid(HALVES[10:24], 2)
    c = np.full_like(a, 0x3C01)
    wanted = rounded(*exact_fma(a, b, c), NEAREST)
    got = machine.each("v_fmac_f16_e32 v0.h, v1.l, v2.l", a, b, old=0x3C015555)
    assert same_halves(got >> 16, wanted)
    assert np.all(got & 0xFFFF == 0x5555)


def test_halves_named_by_op_sel(machine):
    """The result's bit is the last of the list, whose length is that of the sources and one."""
    a = np.uint32([0x3C004000])  # 1 above 2
    assert machine.each("v_cvt_f32_f16_e64 v0, v1 op_sel:[1,0]", a).view(np.float32).tolist() == [1]
    assert machine.each("v_add_f16_e64 v0, v1, v1 op_sel:[0,1,1]", a, old=7).tolist() == [0x42000007]
    assert machine.each("v_fma_f16 v0, v1, v1, v1 op_sel:[0,0,1,0]", a, old=7 << 16).tolist() == [0x00074500]
    got = machine.each("v_cvt_f16_f32_e64 v0, v1 op_sel:[0,1]", np.float32([1]), old=7)
    assert got.tolist() == [0x3C000007]


def test_clamped(machine):
    a = HALVES
    got = machine.each("v_add_f16_e64 v0.l, v1.l, 0 clamp", a)
    wanted = np.nan_to_num(np.clip(floats(a), 0, 1), nan=0).astype(np.float16).view(np.uint16)
    assert np.all((got & 0x7FFF) == (wanted & 0x7FFF))


def test_pairs_of_halves(machine):
    a, b = np.uint32([0x11112222]), np.uint32([0x33334444])
    assert machine.each("v_pack_b32_f16 v0, v1.l, v2.h", a, b).tolist() == [0x33332222]
    assert machine.each("v_pack_b32_f16 v0, v1, v2 op_sel:[1,0,0]", a, b).tolist() == [0x44441111]
    assert machine.each("v_pack_b32_f16 v0, -v1.l, 1.0", a).tolist() == [0x3C00A222]


def test_integers_in_halves(machine):
    a, b = grid(np.uint32([0, 1, 5, 15, 16, 0x7FFF, 0x8000, 0xFFFF]), 2)
    for name, wanted in [
        ("v_and_b16", a & b),
        ("v_or_b16", a | b),
        ("v_lshlrev_b16", b << (a & 15)),
        ("v_lshrrev_b16", b >> (a & 15)),
        ("v_add_nc_u16", a + b),
        ("v_sub_nc_u16", a - b),
        ("v_mul_lo_u16", a * b),
    ]:
        got = machine.each(f"{name} v0.l, v1.h, v2.l", a << 16 | 0x9999, 0x77770000 | b, old=0xABCD0000)
        assert got.tolist() == (wanted & 0xFFFF | 0xABCD0000).tolist(), name
    assert np.all(machine.each("v_mov_b16_e32 v0.h, v1.l", a, old=3) == (a << 16 | 3))


# ---- packed halves


def packed(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return (low | high << 16).astype(np.uint32)


@ROUNDINGS
@pytest.mark.parametrize("name", ["add", "mul"])
def test_packed_arithmetic_chooses_and_negates_halves(machine, rounding, name):
    a, b = grid(HALVES, 2)
    c, d = a[::-1].copy(), np.roll(b, 5)
    line = f"v_pk_{name}_f16 v0, v1, v2 op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[0,1] neg_hi:[1,0]"
    got = machine.each(line, packed(a, c), packed(b, d), mode=float_mode(rounding))
    low = arithmetic(name, floats(c), -floats(b))
    high = arithmetic(name, -floats(a), floats(d))
    assert same_halves(got & 0xFFFF, rounded(low, fractions(low), rounding))
    assert same_halves(got >> 16, rounded(high, fractions(high), rounding))


@pytest.mark.parametrize("name, better", [("max", 1), ("min", -1)])
def test_packed_choices(machine, name, better):
    a, b = grid(HALVES, 2)
    got = machine.each(f"v_pk_{name}_f16 v0, v1, v2", packed(a, b), packed(b, a))
    x, y = better * floats(a), better * floats(b)
    # A NaN loses; of two zeros the minimum is the negative one.
    take_b = np.isnan(x) | (y > x) | ((x == y) & (np.signbit(x) & ~np.signbit(y)))
    assert same_halves(got & 0xFFFF, np.where(take_b & ~np.isnan(y), b, np.where(np.isnan(x), b, a)))
    assert np.all((got >> 16 == got & 0xFFFF) | np.isnan(x) | np.isnan(y))


def test_packed_constant_is_in_the_low_half(machine):
    a = np.uint32([0x40003C00])  # 2 above 1
    assert machine.each("v_pk_add_f16 v0, v1, 1.0 op_sel_hi:[1,0]", a).tolist() == [0x42004000]
    assert machine.each("v_pk_add_f16 v0, v1, 1.0", a).tolist() == [0x40004000]


# ---- floats and halves mixed


def mixed(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of floats in doubles, rounded once to floats."""
    with np.errstate(all="ignore"):
        plain = (a.astype(np.float64) * b + c).astype(np.float32)
    for k in np.flatnonzero(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        exact = Fraction(float(a[k])) * Fraction(float(b[k])) + Fraction(float(c[k]))
        if exact:
            plain[k] = single(exact)
    return plain


def mix_operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    a = rng.normal(0, 2, 500).astype(np.float32)
    b, c = (rng.normal(0, 2, (2, 500))).astype(np.float16).view(np.uint16).astype(np.uint32)
    return a, b, c


def test_mix_takes_floats_and_either_half(machine):
    a, b, c = mix_operands()
    got = machine.each("v_fma_mix_f32 v0, -v1, v2, |v3| op_sel:[0,1,0] op_sel_hi:[0,1,1]", a, b << 16 | 0x7E00, c)
    assert same_floats(got, mixed(-a, floats(b).astype(np.float32), np.abs(floats(c)).astype(np.float32)))
    got = machine.each("v_fma_mix_f32 v0, v1, 1.0, neg(0) op_sel_hi:[0,1,0]", a)
    assert same_floats(got, a)
    got = machine.each("v_fma_mix_f32 v0, v1, lit(0x42800000), neg(lit(0x3fc00000)) op_sel_hi:[0,0,0]", a)
    assert same_floats(got, mixed(a, np.full_like(a, 64), np.full_like(a, -1.5)))
    got = machine.each("v_fma_mix_f32 v0, v1, v1, v1 clamp", a)
    assert same_floats(got, np.clip(mixed(a, a, a), 0, 1))


@ROUNDINGS
def test_mix_to_halves(machine, rounding):
    a, b, c = mix_operands()
    exact = mixed(a, floats(b).astype(np.float32), floats(c).astype(np.float32)).astype(np.float64)
    wanted = rounded(exact, fractions(exact), rounding)
    for name, shift in [("lo", 0), ("hi", 16)]:
        line = f"v_fma_mix{name}_f16 v0, v1, v2, v3 op_sel_hi:[0,1,1]"
        got = machine.each(line, a, b, c, mode=float_mode(rounding), old=0xABCDABCD)
        assert same_halves(got >> shift & 0xFFFF, wanted)
        assert np.all(got >> (16 - shift) & 0xFFFF == 0xABCD)


# ---- dot products


@pytest.mark.parametrize("name", ["v_dot2_f32_f16 v0, v1, v2, v3", "v_dot2acc_f32_f16_e32 v0, v1, v2"])
def test_dot2(machine, name):
    rng = np.random.default_rng(4)
    a, b = rng.normal(0, 2, (2, 400, 2)).astype(np.float16)
    c = np.float32(0.25)
    got = machine.each(name, a.view(np.uint32)[:, 0], b.view(np.uint32)[:, 0], np.full(400, c), old=0x3E800000)
    exact = (a.astype(np.float64) * b).sum(axis=1) + c
    size = np.abs(a.astype(np.float64) * b).sum(axis=1) + c
    # Two roundings to floats, whose order is not documented.
    assert np.all(np.abs(got.view(np.float32) - exact) <= size * 2**-23)


def test_dot2_chooses_and_negates(machine):
    a, b, c = np.float16([2, 3]), np.float16([5, 7]), np.float32([1])
    words = a.view(np.uint32), b.view(np.uint32), c
    line = "v_dot2_f32_f16 v0, v1, v2, v3"
    assert machine.each(line, *words).view(np.float32).tolist() == [2 * 5 + 3 * 7 + 1]
    assert machine.each(f"{line} op_sel:[1,0,0]", *words).view(np.float32).tolist() == [3 * 5 + 3 * 7 + 1]
    assert machine.each(f"{line} op_sel_hi:[1,0,1]", *words).view(np.float32).tolist() == [2 * 5 + 3 * 5 + 1]
    negated = machine.each(f"{line} neg_lo:[1,0,1] neg_hi:[0,1,0]", *words)
    assert negated.view(np.float32).tolist() == [-2 * 5 - 3 * 7 - 1]


@pytest.mark.parametrize("signs", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_dot4(machine, signs):
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 256, (2, 300, 4), dtype=np.uint8)
    a[:2], b[:2] = 255, [[128] * 4, [127] * 4]
    c = rng.integers(-(2**31), 2**31, 300).astype(np.int32)
    line = f"v_dot4_i32_iu8 v0, v1, v2, v3 neg_lo:[{signs[0]},{signs[1]},0]"
    got = machine.each(line, a.view(np.uint32)[:, 0], b.view(np.uint32)[:, 0], c)
    x, y = (z.view(np.int8 if sign else np.uint8).astype(np.int64) for z, sign in zip((a, b), signs, strict=True))
    assert got.tolist() == ((x * y).sum(axis=1) + c & 0xFFFFFFFF).tolist()


# ---- matrices


def wmma_operands(lanes: int, seed: int) -> tuple[dict, np.ndarray]:
    """Registers of A (v8..), B (v16..) and C (v24..), and D = A B + C in doubles."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 1, (2, 16, 16)).astype(np.float16)
    c = rng.normal(0, 1, (16, 16)).astype(np.float32)
    lane = np.arange(lanes)
    v = {}
    for k in range(8):
        v[8 + k] = a[lane % 16, 2 * k : 2 * k + 2].copy().view(np.uint32)[:, 0]
        v[16 + k] = b.T[lane % 16, 2 * k : 2 * k + 2].copy().view(np.uint32)[:, 0]
    for r in range(256 // lanes):
        v[24 + r] = c[r * lanes // 16 + lane // 16, lane % 16]
    return v, a.astype(np.float64) @ b.astype(np.float64) + c


def test_wmma(machine):
    lanes, registers = machine.lanes, 256 // machine.lanes
    v, wanted = wmma_operands(lanes, 6)
    line = f"v_wmma_f32_16x16x16_f16 v[24:{23 + registers}], v[8:15], v[16:23], v[24:{23 + registers}]"
    result = machine.run(line, v)
    lane = np.arange(lanes)
    for r in range(registers):
        expected = wanted[r * lanes // 16 + lane // 16, lane % 16]
        # 16 sums in floats, of a size of at most about 30.
        np.testing.assert_allclose(result.v(24 + r, np.float32), expected, atol=16 * 30 * 2**-24)


def test_wmma_wants_the_same_operands_in_every_16_lanes_and_all_lanes_on(machine):
    registers = 256 // machine.lanes
    line = f"v_wmma_f32_16x16x16_f16 v[24:{23 + registers}], v[8:15], v[16:23], 0"
    v, _ = wmma_operands(machine.lanes, 7)
    with pytest.raises(InterpreterError, match="lanes are off"):
        machine.run(line, v, on=1)
    v[9] = v[9].copy()
    v[9][17] ^= 1
    with pytest.raises(InterpreterError, match="operands differ between groups of 16 lanes"):
        machine.run(line, v)
