"""Kernels that work across a subgroup, on the other subgroup sizes that Mesa's CPU driver can be told to have.

The size is read when the driver starts, so each is a process of its own that runs a choice of this folder's tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "test_matmul.py::test_sizes",
    "test_matmul_half.py::test_sizes",
    "test_matvec.py::test_sizes_and_parts",
    "test_matvec.py::test_types",
    "test_delta_rule.py::test_sizes",
    "test_delta_rows.py::test_rows",
    "test_delta_rows.py::test_inputs",
    "test_delta_pattern.py::test_sizes",
    "test_attention.py::test_sizes",
    "test_rms_norm.py",
    "test_causal_conv.py",
    "test_gated_norm.py",
    "test_half_row.py",
    "test_top_k.py::test_sizes",
    "test_experts.py::test_route",
    "test_experts.py::test_products_by_id[cpu-Q4_K]",
    "test_experts.py::test_products_of_grouped_rows[cpu-Q4_K]",
    "test_experts.py::test_products_of_grouped_rows[cpu-wide-Q6_K]",
    "test_experts.py::test_products_in_pieces[cpu]",
)


def run(size: int, *command: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "LP_NATIVE_VECTOR_WIDTH": str(32 * size)}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("size", [4, 16])
def test_subgroups_of(device, size):
    if "llvmpipe" not in device.info.driver:
        pytest.skip(f"{device.info.driver} has one subgroup size")
    listed = json.loads(run(size, "-m", "vkprefill", "devices", "--json").stdout)
    found = next(d for d in listed if d["name"].startswith("llvmpipe"))
    if found["subgroup_size"] != size:
        pytest.skip(f"this driver has subgroups of {found['subgroup_size']} where {size} were asked for")
    done = run(size, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/shaders/{name}" for name in TESTS))
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
