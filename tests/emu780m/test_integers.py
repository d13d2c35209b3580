"""Vector operations on words, and on integers of 64 bits out of two registers."""

import numpy as np
import pytest

from tests.emu780m.machine import VCC, grid
from tests.emu780m.values import WORDS

FULL = 0xFFFFFFFF


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def field(a: int, b: int, c: int) -> int:
    return a >> (b & 31) & ((1 << (c & 31)) - 1)


def signed_field(a: int, b: int, c: int) -> int:
    width = c & 31
    return signed(signed(a) >> (b & 31), width) if width else 0


def perm(a: int, b: int, c: int) -> int:
    data = (a << 32 | b).to_bytes(8, "little")

    def byte(select: int) -> int:
        if select < 8:
            return data[select]
        if select < 12:
            return 255 if data[2 * (select - 8) + 1] >> 7 else 0
        return 0 if select == 12 else 255

    return int.from_bytes(bytes(byte(select) for select in c.to_bytes(4, "little")), "little")


UNARY = {
    "v_mov_b32_e32": lambda a: a,
    "v_not_b32_e32": lambda a: ~a,
    "v_bfrev_b32_e32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_clz_i32_u32_e32": lambda a: 32 - a.bit_length() if a else -1,
    "v_ctz_i32_b32_e32": lambda a: (a & -a).bit_length() - 1,
}
BINARY = {
    "v_and_b32_e32": lambda a, b: a & b,
    "v_or_b32_e32": lambda a, b: a | b,
    "v_xor_b32_e32": lambda a, b: a ^ b,
    "v_xnor_b32_e32": lambda a, b: ~(a ^ b),
    "v_lshlrev_b32_e32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32_e32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32_e32": lambda a, b: signed(b) >> (a & 31),
    "v_add_nc_u32_e32": lambda a, b: a + b,
    "v_sub_nc_u32_e32": lambda a, b: a - b,
    "v_subrev_nc_u32_e32": lambda a, b: b - a,
    "v_add_nc_i32": lambda a, b: a + b,
    "v_sub_nc_i32": lambda a, b: a - b,
    "v_mul_u32_u24_e32": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_i32_i24_e32": lambda a, b: signed(a, 24) * signed(b, 24),
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: signed(a) * signed(b) >> 32,
    "v_min_u32_e32": min,
    "v_max_u32_e32": max,
    "v_min_i32_e32": lambda a, b: min(signed(a), signed(b)),
    "v_max_i32_e32": lambda a, b: max(signed(a), signed(b)),
    "v_bcnt_u32_b32": lambda a, b: a.bit_count() + b,
}
TERNARY = {
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: ((a + b) & FULL) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: (a << (b & 31)) | c,
    "v_and_or_b32": lambda a, b, c: (a & b) | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xor3_b32": lambda a, b, c: a ^ b ^ c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_bfe_u32": field,
    "v_bfe_i32": signed_field,
    "v_bfi_b32": lambda a, b, c: (a & b) | (~a & c),
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_perm_b32": perm,
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: signed(a, 24) * signed(b, 24) + c,
    "v_min3_u32": min,
    "v_max3_u32": max,
    "v_med3_u32": lambda *x: sorted(x)[1],
    "v_min3_i32": lambda *x: min(map(signed, x)),
    "v_max3_i32": lambda *x: max(map(signed, x)),
    "v_med3_i32": lambda *x: sorted(map(signed, x))[1],
}


@pytest.mark.parametrize("name", [*UNARY, *BINARY, *TERNARY])
def test_words(machine, name):
    operands, function = next(
        (count, table[name]) for count, table in ((1, UNARY), (2, BINARY), (3, TERNARY)) if name in table
    )
    values = grid(WORDS, operands)
    if name == "v_perm_b32":
        values[2] = np.random.default_rng(1).integers(0, 16, (values[2].size, 4), dtype=np.uint8).view(np.uint32)[:, 0]
    got = machine.each(f"{name} v0, " + ", ".join(f"v{k + 1}" for k in range(operands)), *values)
    wanted = [function(*x) & FULL for x in zip(*[x.tolist() for x in values], strict=True)]
    assert got.tolist() == wanted


def number(result, first: int, words: int) -> list[int]:
    """Little-endian words in registers as one number for each lane."""
    return [sum(int(result.v(first + k)[lane]) << 32 * k for k in range(words)) for lane in range(result.v(0).size)]


@pytest.mark.parametrize(
    "name, function",
    [("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("subrev", lambda a, b: b - a)],
)
def test_carries_run_through_128_bits(machine, name, function):
    rng = np.random.default_rng(2)
    v = {k: rng.choice(np.uint32([0, 1, FULL, 0x80000000, 12345]), machine.lanes) for k in range(1, 9)}
    vcc, s = ("vcc_lo", "s4") if machine.lanes == 32 else ("vcc", "s[4:5]")
    lines = f"""v_{name}_co_u32 v10, {vcc}, v1, v5
        v_{name}_co_ci_u32_e32 v11, {vcc}, v2, v6, {vcc}
        v_{name}_co_ci_u32_e64 v12, {s}, v3, v7, {vcc}
        v_{name}_co_ci_u32_e64 v13, {s}, v4, v8, {s}"""
    result = machine.run(lines, v | {0: np.zeros(machine.lanes, np.uint32)})
    a, b = (
        [sum(int(v[first + k][lane]) << 32 * k for k in range(4)) for lane in range(machine.lanes)] for first in (1, 5)
    )
    exact = [function(x, y) for x, y in zip(a, b, strict=True)]
    assert number(result, 10, 4) == [x % 2**128 for x in exact]
    assert result.mask(4, machine.lanes) == sum((not 0 <= x < 2**128) << lane for lane, x in enumerate(exact))


def test_carries_of_lanes_that_are_off_are_0(machine):
    vcc = "vcc_lo" if machine.lanes == 32 else "vcc"
    ones = np.full(machine.lanes, FULL, np.uint32)
    result = machine.run(f"v_add_co_u32 v1, {vcc}, v1, v1", {1: ones}, {VCC: FULL, VCC + 1: FULL}, on=0b1010)
    assert result.mask(VCC, machine.lanes) == 0b1010
    assert result.v(1)[:4].tolist() == [FULL, FULL - 1, FULL, FULL - 1]


def test_product_with_a_sum_of_64_bits(machine):
    rng = np.random.default_rng(3)
    a, b, low, high = rng.choice(WORDS, (4, machine.lanes))
    carry = "s4" if machine.lanes == 32 else "s[4:5]"
    result = machine.run(f"v_mad_u64_u32 v[10:11], {carry}, v1, v2, v[3:4]", {1: a, 2: b, 3: low, 4: high})
    exact = [int(x) * int(y) + (int(h) << 32 | int(z)) for x, y, z, h in zip(a, b, low, high, strict=True)]
    assert number(result, 10, 2) == [x % 2**64 for x in exact]
    assert result.mask(4, machine.lanes) == sum((x >> 64) << lane for lane, x in enumerate(exact))
    result = machine.run("v_mad_u64_u32 v[1:2], null, v1, v2, -1", {1: a, 2: b})
    assert number(result, 1, 2) == [(int(x) * int(y) - 1) % 2**64 for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize(
    "name, function",
    [
        ("v_lshlrev_b64", lambda n, x: x << n),
        ("v_lshrrev_b64", lambda n, x: x >> n),
        ("v_ashrrev_i64", lambda n, x: signed(x, 64) >> n),
    ],
)
def test_shifts_of_64_bits(machine, name, function):
    rng = np.random.default_rng(4)
    amount = rng.integers(0, 70, machine.lanes).astype(np.uint32)
    low, high = rng.choice(WORDS, (2, machine.lanes))
    result = machine.run(f"{name} v[2:3], v1, v[2:3]", {1: amount, 2: low, 3: high})
    exact = [function(int(n) & 63, int(h) << 32 | int(x)) % 2**64 for n, x, h in zip(amount, low, high, strict=True)]
    assert number(result, 2, 2) == exact


def test_scalars_and_signs_of_constants(machine):
    result = machine.run("v_lshlrev_b64 v[2:3], 4, s[4:5]", s={4: 0x89ABCDEF, 5: 0x1234567})
    assert number(result, 2, 2)[0] == 0x123456789ABCDEF0
    assert number(machine.run("v_lshlrev_b64 v[2:3], 4, -1"), 2, 2)[0] == 2**64 - 16


def test_lanes_below(machine):
    lane = np.arange(machine.lanes)
    mask = 0xF0F01234ABCD5678
    lines = """v_mbcnt_lo_u32_b32 v1, s2, 5
        v_mbcnt_hi_u32_b32 v1, s3, v1"""
    got = machine.run(lines, s={2: mask & FULL, 3: mask >> 32}).v(1)
    assert got.tolist() == [5 + (mask & ((1 << k) - 1)).bit_count() for k in lane.tolist()]
