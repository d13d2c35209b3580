"""Counts from execution: what the emulated Radeon 780M says of kernels whose work is known by hand."""

from pathlib import Path

import pytest

from tools.amd import executed
from tools.amd.compiler import PYTHON_780M

MODEL = Path(__file__).parents[1] / "data" / "models" / "tiny-c-q4km.gguf"
TOKENS = 40


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[dict]:
    if not PYTHON_780M.exists():
        pytest.skip("the emulated Radeon 780M is not set up (make setup-780m)")
    _, (found,) = executed.run([executed.job(MODEL, TOKENS, [TOKENS, 1])], tmp_path_factory.mktemp("counts"))
    return found


def test_nothing_is_read_or_written_out_of_bounds(rows):
    assert [row["shader"] for row in rows if row["outside"]] == []


def test_bytes_of_an_elementwise_kernel(rows):
    """swiglu reads up and gate and writes gate: 12 bytes for each element, each line of 128 bytes once."""
    (row,) = [row for row in rows if row["shader"] == "swiglu" and row["tokens"] == TOKENS]
    elements = TOKENS * row["constants"]["F"] * row["dispatches"]
    assert row["vmem_bytes"] == 12 * elements
    assert row["lines_written"] == 4 * elements / 128
    assert row["lds"] == row["lds_passes"] == 0


def test_instructions_of_a_product(rows):
    """matmul_hybrid: multiply-adds for whole tiles of 128 rows and of quarters of the tokens, nearly all in pairs."""
    for row in (row for row in rows if row["shader"].startswith("matmul_hybrid")):
        quarters = -(-TOKENS // (row["constants"]["TM"] // 4))
        products = row["grid"][1] * 128 * quarters * (row["constants"]["TM"] // 4) * row["push"]["K"]
        pairs = row["pairs"] / row["dispatches"]
        assert row["wave"] == 32
        assert products / 32 / 2 * 0.98 < pairs < products / 32 / 2 * 1.15, row
        assert row["issue"] >= row["valu"] + row["pairs"]


def test_shared_memory_of_products_has_no_conflicts(rows):
    """Neither in writing a column of weights nor in reading the pairs of rows that a lane multiplies."""
    products = [row for row in rows if row["shader"].startswith("matmul_hybrid")]
    assert products and [row for row in products if row["lds_passes"] != row["lds_least"]] == []


def test_what_depth_changes(rows):
    assert {row["shader"] for row in rows if "depth" in row} == {"attention_f16", "kv_store_f16"}
    # The second step is counted: with the first, no row waits to become part of the recurrent states.
    assert {row["depth"] for row in rows if "depth" in row} == {0, TOKENS + 1}


def test_a_device_that_fails_says_so_in_a_line(tmp_path):
    if not PYTHON_780M.exists():
        pytest.skip("the emulated Radeon 780M is not set up (make setup-780m)")
    with pytest.raises(RuntimeError, match=r"the emulated device failed, status 1: .*no_such.gguf") as error:
        executed.run([executed.job(tmp_path / "no_such.gguf", 8, [8])], tmp_path)
    assert "\n" not in str(error.value)
