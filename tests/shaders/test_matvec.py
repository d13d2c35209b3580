"""matvec: what kernels.linear takes for one token, and for the last row of many (one_row)."""

import numpy as np
import pytest

from tests.reference import blocks, fixtures
from tests.shaders.run_kernel import PROFILES, REDUCTION, check, using_profile
from tests.shaders.test_matmul import LAYOUT_TYPES, file_tensors, lengths, multiply


@pytest.mark.parametrize("weight_type", blocks.TYPES)
def test_types(device, weight_type):
    rng = np.random.default_rng(2)
    for k in lengths(weight_type):
        data = blocks.random_blocks(rng, 70, k, weight_type, 0.05)
        x = rng.standard_normal((1, k)).astype(np.float32)
        expected = x.astype(float) @ blocks.dequantize(data, weight_type).T
        check(f"matvec {weight_type}, K {k}", multiply(device, x, data, weight_type), expected, REDUCTION)


@pytest.mark.parametrize("weight_type", LAYOUT_TYPES)
@pytest.mark.parametrize("profile", PROFILES)
def test_tiles_of_every_profile(device, profile, weight_type):
    """K beyond one round of the slices, and no whole number of rounds."""
    with using_profile(device, profile) as tiles:
        lanes, slices, tn = tiles.matvec
        rng = np.random.default_rng(3)
        unit = lengths(weight_type)[0] if 256 in lengths(weight_type) else 64
        k, rows = unit * (slices + 3) + (32 if unit == 64 else 0), 2 * lanes * tn + 5
        data = blocks.random_blocks(rng, rows, k, weight_type)
        x = rng.standard_normal((1, k)).astype(np.float32)
        got = multiply(device, x, data, weight_type)
    check(f"matvec {weight_type}, {profile}", got, x.astype(float) @ blocks.dequantize(data, weight_type).T, REDUCTION)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("rows", "k"), [(1, 32), (31, 160), (33, 224), (300, 1024), (257, 96)])
def test_sizes_and_parts(device, rows, k, add):
    rng = np.random.default_rng(rows)
    data = blocks.random_blocks(rng, rows, k, "Q5_1", 0.1)
    x, before = (rng.standard_normal((1, n)).astype(np.float32) for n in (k, rows))
    expected = x.astype(float) @ blocks.dequantize(data, "Q5_1").T + add * before.astype(float)
    for profile in ("cpu", "amd"):
        with using_profile(device, profile):
            got = multiply(device, x, data, "Q5_1", add=before if add else None, part_rows=96)
        check(f"matvec N {rows}, K {k}, add {add}, {profile}", got, expected, REDUCTION)


def test_one_row_of_many(device):
    rng = np.random.default_rng(6)
    data = blocks.random_blocks(rng, 50, 64, "F16")
    x = rng.standard_normal((5, 64)).astype(np.float32)
    got = multiply(device, x, data, "F16", one_row=True)
    check("matvec of the first of 5 rows", got, x[0].astype(float) @ blocks.dequantize(data, "F16").T, REDUCTION)


@pytest.mark.smoke
@pytest.mark.parametrize("name", fixtures.FIXTURES)
def test_llama_cpp_head(device, name):
    arrays, tensors = fixtures.load_case(name, "p1").arrays | {"p7": None}, file_tensors(name)
    seven = fixtures.load_case(name, "p7").arrays
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    assert arrays["result_output"].shape[0] == 1
    for row in (0, 6):
        got = multiply(device, seven["result_norm"][row : row + 1], *head)
        check(f"{name} result_output, row {row}", got, seven["result_output"][row : row + 1], REDUCTION)
