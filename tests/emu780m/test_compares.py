"""Comparisons: masks of the lanes that are on, into VCC, scalar registers or EXEC; classes of floats."""

import operator

import numpy as np
import pytest

from tests.emu780m.machine import EXEC, VCC, Machine, grid
from tests.emu780m.values import FLOATS, HALVES, WORDS

ORDER = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq}
INTEGERS = ORDER | {"ne": operator.ne}
REALS = ORDER | {
    "lg": lambda a, b: (a < b) | (a > b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
}


def masks(machine: Machine, line: str, *operands: np.ndarray) -> np.ndarray:
    """The mask in s[4:5] as a bool for each element."""
    size = operands[0].size
    waves = -(-size // machine.lanes)
    v = {}
    for register, operand in enumerate(operands, 1):
        words = np.zeros(waves * machine.lanes, np.uint32)
        words[:size] = operand.view(np.uint32)
        v[register] = words.reshape(waves, machine.lanes)
    result = machine.run(line, v, waves=waves)
    words = result.scalars[:, 4 : 4 + machine.lanes // 32]
    return np.unpackbits(words.copy().view(np.uint8), bitorder="little").astype(bool)[:size]


def to(machine: Machine) -> str:
    return "s4" if machine.lanes == 32 else "s[4:5]"


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("kind", ["u32", "i32", "u16", "i16"])
def test_integers(machine, name, kind):
    a, b = grid(WORDS, 2)
    dtype = np.dtype(kind.replace("u", "uint").replace("i", "int") if kind[0] == "i" else f"uint{kind[1:]}")
    if kind.endswith("16"):
        x, y = (z.view(dtype)[::2] for z in (a, b))
        got = masks(machine, f"v_cmp_{name}_{kind}_e64 {to(machine)}, v1.l, v2.l", a, b)
    else:
        x, y = a.view(dtype), b.view(dtype)
        got = masks(machine, f"v_cmp_{name}_{kind}_e64 {to(machine)}, v1, v2", a, b)
    assert np.array_equal(got, INTEGERS[name](x, y))


@pytest.mark.parametrize("name", REALS)
def test_floats(machine, name):
    values = FLOATS[(np.abs(FLOATS) >= 2**-126) | (FLOATS == 0) | np.isnan(FLOATS)]
    a, b = grid(values, 2)
    got = masks(machine, f"v_cmp_{name}_f32_e64 {to(machine)}, -v1, |v2|", a, b)
    assert np.array_equal(got, REALS[name](-a, np.abs(b)))


@pytest.mark.parametrize("name", REALS)
def test_halves(machine, name):
    a, b = grid(HALVES, 2)
    x, y = (z.astype(np.uint16).view(np.float16) for z in (a, b))
    got = masks(machine, f"v_cmp_{name}_f16_e64 {to(machine)}, v1.h, -v2.l", a << 16, b)
    assert np.array_equal(got, REALS[name](x, -y))
    got = masks(machine, f"v_cmp_{name}_f16_e64 {to(machine)}, v1, v2 op_sel:[1,0,0]", a << 16, b)
    assert np.array_equal(got, REALS[name](x, y))


FLOAT_CLASSES = [0x7F800001, 0x7FC00000, 0xFF800000, 0xBF800000, 0x80000001, 0x80000000, 0, 1, 0x3F800000, 0x7F800000]
HALF_CLASSES = [0x7C01, 0x7E00, 0xFC00, 0xBC00, 0x8001, 0x8000, 0, 1, 0x3C00, 0x7C00]


@pytest.mark.parametrize("kind, values", [("f32", FLOAT_CLASSES), ("f16", HALF_CLASSES)])
def test_classes(machine, kind, values):
    x, place = grid(np.arange(10), 2)
    half = ".l" if kind == "f16" else ""
    operands = np.uint32(values)[x], np.uint32(1) << place.astype(np.uint32)
    got = masks(machine, f"v_cmp_class_{kind}_e64 {to(machine)}, v1{half}, v2{half}", *operands)
    assert np.array_equal(got, x == place)


def test_class_of_a_constant(machine):
    """RADV tests bit 3 of a mask so: -1 is a negative normal number."""
    got = masks(machine, f"v_cmp_class_f16_e64 {to(machine)}, -1.0, v1.h op_sel:[0,1,0]", np.uint32([8 << 16, 8, 0]))
    assert got.tolist() == [True, False, False]
    got = masks(machine, f"v_cmp_class_f32_e64 {to(machine)}, -1.0, v1", np.uint32([8, 7, 0xF]))
    assert got.tolist() == [True, False, True]


def test_lanes_that_are_off_are_0(machine):
    vcc = "vcc_lo" if machine.lanes == 32 else "vcc"
    lane = np.arange(machine.lanes, dtype=np.uint32)
    result = machine.run(f"v_cmp_gt_u32_e32 {vcc}, 7, v0", {0: lane}, {VCC: -1, VCC + 1: -1}, on=0b11101010)
    assert result.mask(VCC, machine.lanes) == 0b1101010


@pytest.mark.parametrize("line", ["v_cmpx_gt_u32_e32 7, v0", "v_cmpx_gt_u32_e64 exec_lo, 7, v0"])
def test_cmpx_turns_lanes_off(machine, line):
    lane = np.arange(machine.lanes, dtype=np.uint32)
    result = machine.run(line, {0: lane}, {VCC: 1, VCC + 1: 2}, on=0b11101010)
    assert result.mask(EXEC, machine.lanes) == 0b1101010
    assert (result.s(VCC), result.s(VCC + 1)) == (1, 2)
