"""LDS: loads and stores of all widths, two addresses, permutations, the lanes' own addresses, passes of the banks."""

import numpy as np
import pytest

from tests.emu780m.machine import M0, POISON, InterpreterError

ON = 0xFFFF0F0F12345679


def lanes_of(machine) -> np.ndarray:
    return np.arange(machine.lanes, dtype=np.uint32)


def on_of(machine) -> np.ndarray:
    return np.array([ON >> lane & 1 for lane in range(machine.lanes)], bool)


def registers(first: int, words: int) -> str:
    return f"v{first}" if words == 1 else f"v[{first}:{first + words - 1}]"


@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_loads_and_stores(machine, words):
    rng = np.random.default_rng(words)
    lds = rng.integers(0, 2**32, 64 * 8, dtype=np.uint32)
    address = (rng.permutation(machine.lanes) * 4 * words).astype(np.uint32)
    v = {1: address} | {10 + k: rng.integers(0, 2**32, machine.lanes, dtype=np.uint32) for k in range(words)}
    bits = 32 * words
    lines = f"""ds_load_b{bits} {registers(2, words)}, v1 offset:16
        ds_store_b{bits} v1, {registers(10, words)} offset:64"""
    result = machine.run(lines, v, lds=lds, on=ON & machine.all)
    wanted = lds.copy()
    for k in range(words):
        loaded = np.where(on_of(machine), lds[address // 4 + 4 + k], POISON)
        assert result.v(2 + k).tolist() == loaded.tolist()
        wanted[(address // 4 + 16 + k)[on_of(machine)]] = v[10 + k][on_of(machine)]
    assert result.lds.view(np.uint32).tolist() == wanted.tolist()


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("stride", [1, 64])
def test_two_addresses(machine, words, stride):
    lds = np.random.default_rng(3).integers(0, 2**32, 2048, dtype=np.uint32)
    address = lanes_of(machine) * 4 * words
    v = {1: address} | {10 + k: lanes_of(machine) + 1000 * k for k in range(2 * words)}
    name = f"2addr_{'stride64_' if stride == 64 else ''}b{32 * words}"
    data = ", ".join(registers(10 + k * words, words) for k in range(2))
    lines = f"""ds_load_{name} {registers(2, 2 * words)}, v1 offset0:3 offset1:1
        ds_store_{name} v1, {data} offset1:5"""
    result = machine.run(lines, v, lds=lds)
    wanted = lds.copy()
    for k in range(2 * words):
        at = address // 4 + (3, 1)[k // words] * words * stride + k % words
        assert result.v(2 + k).tolist() == lds[at].tolist()
    for k in range(2 * words):
        wanted[address // 4 + (0, 5)[k // words] * words * stride + k % words] = v[10 + k]
    assert result.lds.view(np.uint32).tolist() == wanted.tolist()


def test_a_load_may_overwrite_its_address(machine):
    lds = np.arange(256, dtype=np.uint32) + 7
    result = machine.run("ds_load_2addr_b32 v[1:2], v1 offset1:1", {1: lanes_of(machine) * 4}, lds=lds)
    assert result.v(1).tolist() == lds[lanes_of(machine)].tolist()
    assert result.v(2).tolist() == lds[lanes_of(machine) + 1].tolist()


def test_bytes_and_halves(machine):
    lds = np.random.default_rng(4).integers(0, 256, 256, dtype=np.uint8)
    address = lanes_of(machine)
    lines = """ds_load_u8 v2, v1 offset:3
        ds_load_u16 v3, v1 offset:1
        ds_store_b8 v1, v4 offset:128"""
    result = machine.run(lines, {1: address, 4: address * 77}, lds=lds)
    assert result.v(2).tolist() == lds[address + 3].tolist()
    assert result.v(3).tolist() == (lds[address + 1] | lds[address + 2].astype(np.uint32) << 8).tolist()
    assert result.lds[128 : 128 + machine.lanes].tolist() == (address * 77 & 255).tolist()
    result = machine.run("ds_store_b16 v1, v2", {1: address * 2, 2: address * 77777}, lds=np.zeros(64, np.uint32))
    assert result.lds.view(np.uint16)[: machine.lanes].tolist() == (address * 77777 & 0xFFFF).tolist()


def test_sums_of_lanes_with_the_same_address(machine):
    result = machine.run(
        "ds_add_u32 v1, v2", {1: lanes_of(machine) % 4 * 4, 2: lanes_of(machine)}, lds=np.uint32([5] * 4)
    )
    wanted = [5 + sum(range(k, machine.lanes, 4)) for k in range(4)]
    assert result.lds.view(np.uint32).tolist() == wanted


def test_own_addresses(machine):
    lds = np.arange(200, dtype=np.uint32)
    lines = """ds_load_addtid_b32 v1 offset:8
        ds_store_addtid_b32 v2 offset:256"""
    result = machine.run(lines, {2: lanes_of(machine) + 999}, {M0: 0xABCD0010}, lds=lds, on=ON & machine.all)
    assert result.v(1).tolist() == np.where(on_of(machine), lanes_of(machine) + 6, POISON).tolist()
    wanted = lds.copy()
    wanted[(68 + lanes_of(machine))[on_of(machine)]] = (lanes_of(machine) + 999)[on_of(machine)]
    assert result.lds.view(np.uint32).tolist() == wanted.tolist()


def test_places_of_spilled_registers(machine):
    """A workgroup of 16 spills a register to 64 bytes, side by side: the lanes that are off lie in the next one's. A
    load sees the last store before it, without a wait between them, and none after it.
    """
    lines = """ds_store_addtid_b32 v1
        ds_store_addtid_b32 v2 offset:64
        ds_load_addtid_b32 v4
        ds_store_addtid_b32 v3
        ds_load_addtid_b32 v5
        ds_load_addtid_b32 v6 offset:64
        ds_store_addtid_b32 v2 offset:128
        ds_load_addtid_b32 v2 offset:64"""
    one, two, three = (lanes_of(machine)[:16] + start for start in (100, 200, 300))
    v = {k: lanes_of(machine) + 100 * k for k in (1, 2, 3)}
    result = machine.run(lines, v, {M0: 0}, lds=np.full(48, 7, np.uint32), on=0xFFFF)
    for register, wanted in {4: one, 5: three, 6: two, 2: two}.items():
        assert result.v(register)[:16].tolist() == wanted.tolist()
    assert result.v(4)[16:].tolist() == [POISON] * (machine.lanes - 16)
    assert result.lds.view(np.uint32).tolist() == [*three, *two, *two]


def test_permutations_within_32_lanes(machine):
    rng = np.random.default_rng(5)
    place = rng.integers(0, 32, machine.lanes).astype(np.uint32)
    data, on = lanes_of(machine) + 100, on_of(machine)
    v = {1: place * 4 + 1, 2: data, 3: data, 4: data}
    result = machine.run("ds_bpermute_b32 v3, v1, v2\nds_permute_b32 v4, v1, v2", v, on=ON & machine.all)
    pulled, pushed = data.copy(), np.where(on, 0, data)
    for lane in np.flatnonzero(on):
        source = int(place[lane]) + (lane & 32)
        pulled[lane] = data[source] if on[source] else 0
        if on[source]:
            pushed[source] = data[lane]
    assert result.v(3).tolist() == pulled.tolist()
    assert result.v(4).tolist() == pushed.tolist()


@pytest.mark.parametrize(
    "line", ["ds_load_b32 v2, v1 offset:4", "ds_store_b64 v1, v[2:3]", "ds_load_u16 v2, v1 offset:7"]
)
def test_addresses_outside_are_refused(machine, line):
    with pytest.raises(InterpreterError, match=r"shared memory address \d+ in: " + line.replace("[", r"\[")):
        machine.run(line, {1: np.full(machine.lanes, 4, np.uint32)}, lds=np.zeros(8, np.uint8))


@pytest.mark.parametrize(
    "name, stride, passes",
    [
        ("b32 v2", 4, 1),
        ("b32 v2", 0, 1),  # one word for all
        ("b32 v2", 8, 2),
        ("b32 v2", 128, 32),
        ("b32 v2", 132, 1),
        ("b64 v[2:3]", 8, 2),
        ("b64 v[2:3]", 128, 32),
        ("b128 v[2:5]", 16, 4),
        ("b128 v[2:5]", 0, 4),  # one for each 8 lanes
        ("b128 v[2:5]", 144, 4),  # 36 words: the next lane begins 4 banks on
        ("b128 v[2:5]", 128, 32),
    ],
)
def test_passes(machine, name, stride, passes):
    """128 bytes a pass: 32 lanes of one word, 16 of two, 8 of four; words of one bank follow one another."""
    lds = np.zeros(64 * 160, np.uint8)
    result = machine.run(f"ds_load_{name}, v1", {1: lanes_of(machine) * stride}, lds=lds)
    words = {"b32": 1, "b64": 2, "b12": 4}[name[:3]]
    scale = machine.lanes // 32
    assert (result.counts["lds_passes"], result.counts["lds_least"]) == (passes * scale, words * scale)


def test_passes_of_two_addresses_and_of_few_lanes(machine):
    result = machine.run(
        "ds_load_2addr_b32 v[2:3], v1 offset1:32", {1: lanes_of(machine) * 4}, lds=np.zeros(4096, np.uint8), on=0b1011
    )
    assert (result.counts["lds_passes"], result.counts["lds_least"]) == (2, 2)
