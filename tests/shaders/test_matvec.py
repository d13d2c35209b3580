"""matvec: what kernels.linear takes for up to SHORT_RUN rows, and for the last row of many (one_row)."""

import dataclasses

import numpy as np
import pytest

from tests.emulated import is_emulated
from tests.reference import blocks, fixtures
from tests.shaders.run_kernel import PROFILES, REDUCTION, check, using_profile
from tests.shaders.test_matmul import LAYOUT_TYPES, file_tensors, lengths, multiply
from vkprefill.engine.halves import SHORT_RUN
from vkprefill.engine.kernels.matrix import BATCH, slices_for

ROWS = (2, 2), (4, 3), (8, 8)  # recorded and in use: each form for several rows
TILES = {profile.matvec + (profile.shuffle,): name for name, profile in reversed(PROFILES.items())}
# Mesa's driver for the CPU translates a GPU's form in seconds: all of them for formats with large and with small units,
# those for one row and for eight of the others, and tiles for wide waves only of the former.
FEW = ("Q4_K", "Q5_1")


def forms(device, profile: str, weight_type: str) -> tuple[tuple[int, int], ...]:
    if PROFILES[profile].shuffle and not device.profile.shuffle:
        # A tile for shuffles, of more sums and weights than a GPU has registers for: hundreds spill. No profile of a
        # GPU does that, and Mesa 26.2 makes wrong code of it (benchmarks/NOTES.md, "Spilled vector registers").
        return ()
    whole = is_emulated(device) or PROFILES[profile].shuffle or weight_type in FEW
    return ROWS if whole else ROWS[-1:] if profile == "amd" else ()


def columns(weight_type: str, batches: int) -> int:
    """K: whole batches, and where units are small a rest of an odd number of sub-blocks, of floats half of one more."""
    return batches * BATCH + {256: 0, 32: 160, 1: 176}[blocks.block_length(weight_type)]


def random_case(weight_type: str, rows: int, k: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks of the matrix [N, K], x [T, K], their product in float64."""
    rng = np.random.default_rng(rows + k)
    data = blocks.random_blocks(rng, rows, k, weight_type, 0.05)
    x = rng.standard_normal((num_tokens, k)).astype(np.float32)
    return data, x, x.astype(float) @ blocks.dequantize(data, weight_type).T


@pytest.mark.parametrize("weight_type", blocks.TYPES)
def test_types(device, weight_type):
    for k in lengths(weight_type):
        data, x, expected = random_case(weight_type, 70, k, 1)
        check(f"matvec {weight_type}, K {k}", multiply(device, x, data, weight_type), expected, REDUCTION)


@pytest.mark.parametrize("weight_type", LAYOUT_TYPES)
@pytest.mark.parametrize("profile", TILES.values())
def test_tiles_of_every_profile(device, profile, weight_type):
    """More batches than slices, and no whole number of rounds, for one row and for several; the bits of a row do not
    depend on how many there are.
    """
    with using_profile(device, profile) as tiles:
        lanes, slices, tn = tiles.matvec
        rows, k = 2 * lanes * tn + 5, columns(weight_type, slices + 1)
        assert slices == 1 or 1 < slices_for(k, slices) < slices
        data, x, expected = random_case(weight_type, rows, k, SHORT_RUN)
        alone = np.concatenate([multiply(device, row[None], data, weight_type) for row in x])
        check(f"matvec {weight_type}, {profile}", alone, expected, REDUCTION)
        for num_rows, num_tokens in forms(device, profile, weight_type):
            got = multiply(device, x[:num_tokens], data, weight_type, num_rows=num_rows)
            np.testing.assert_array_equal(got, alone[:num_tokens], err_msg=f"{num_tokens} of {num_rows} rows")


@pytest.mark.parametrize("profile", TILES.values())
@pytest.mark.parametrize("num_rows", range(2, SHORT_RUN + 1))
def test_every_number_of_rows(device, profile, num_rows):
    """Recorded and in use. Rows beyond are neither read nor written (KernelRun fills them with NaN and looks)."""
    data, x, expected = random_case("Q4_1", 131, 352, SHORT_RUN)
    before = np.random.default_rng(num_rows).standard_normal((SHORT_RUN, 131)).astype(np.float32)
    with using_profile(device, profile):
        for count in range(1, num_rows + 1):
            for add in (False, True):
                held = before[:count] if add else None
                got = multiply(device, x[:count], data, "Q4_1", add=held, num_rows=num_rows, part_rows=96)
                want = expected[:count] + add * before[:count].astype(float)
                check(f"{count} of {num_rows} rows, {profile}, add {add}", got, want, REDUCTION)


@pytest.mark.parametrize("most", [1, 3, 8])
def test_slices(device, most):
    """As many as work in every round but the last; on the GPU's form each number of them gives the product."""
    amd = PROFILES["amd"]
    for batches in (*range(1, 18), 36, 40):
        slices = slices_for(batches * BATCH, most)
        rounds = -(-batches // most)
        assert slices <= most and (slices - 1) * rounds < batches <= slices * rounds
    for batches in (1, 3, 5):
        data, x, expected = random_case("Q5_1", 40, batches * BATCH - 96, 3)
        with using_profile(device, dataclasses.replace(amd, matvec=(32, most, 1))):
            got = multiply(device, x, data, "Q5_1")
        check(f"at most {most} slices, {batches} batches", got, expected, REDUCTION)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("rows", "k"), [(1, 32), (31, 160), (33, 224), (300, 1024), (257, 96)])
def test_sizes_and_parts(device, rows, k, add):
    data, x, expected = random_case("Q5_1", rows, k, 5)
    before = np.random.default_rng(rows).standard_normal((5, rows)).astype(np.float32)
    for profile in ("cpu", "amd"):
        for count in (1, 5):
            with using_profile(device, profile):
                held = before[:count] if add else None
                got = multiply(device, x[:count], data, "Q5_1", add=held, part_rows=96)
            want = expected[:count] + add * before[:count].astype(float)
            check(f"matvec T {count}, N {rows}, K {k}, add {add}, {profile}", got, want, REDUCTION)


@pytest.mark.parametrize("num_rows", [5, 40])
def test_one_row_of_many(device, num_rows):
    data, x, expected = random_case("F16", 50, 64, num_rows)
    got = multiply(device, x, data, "F16", one_row=True)
    check(f"matvec of the first of {num_rows} rows", got, expected[0], REDUCTION)


@pytest.mark.smoke
@pytest.mark.parametrize("name", fixtures.FIXTURES)
def test_llama_cpp_head(device, name):
    """The vocabulary's rows for each token alone and for all seven."""
    tensors, seven = file_tensors(name), fixtures.load_case(name, "p7").arrays
    head, x, expected = tensors.get("output.weight", tensors["token_embd.weight"]), *map(seven.get, HEAD)
    alone = np.concatenate([multiply(device, x[row : row + 1], *head) for row in range(len(x))])
    check(f"{name} result_output", alone, expected, REDUCTION)
    np.testing.assert_array_equal(multiply(device, x, *head), alone)


HEAD = "result_norm", "result_output"
