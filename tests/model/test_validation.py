"""A whole model under the validation layer: core and synchronisation checks, not one message.

A program's barriers are derived from what the manifest says a shader reads and writes. A CPU driver runs dispatches in
order and hides a missing one; the layer does not. Each run is a process of its own: the layer is chosen by environment
variables.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.validation_layer import layer_environment, messages

ROOT = Path(__file__).resolve().parents[2]
RUN = Path(__file__).with_name("validation_run.py")
MODELS = ROOT / "tests" / "data" / "models"


def run(tmp_path: Path, *options: str, model: str = "tiny-c-q4km", **environment: str) -> str:
    """Output of the run under the layer."""
    environment = {**os.environ, **layer_environment(tmp_path), **environment}
    command = [sys.executable, str(RUN), str(MODELS / f"{model}.gguf"), *options]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    output = result.stdout + result.stderr
    assert result.returncode == 0 and "finished" in output, output
    return output


@pytest.fixture
def barrier() -> None:
    if not list((ROOT / "vkprefill").glob("_barrier*.so")):
        pytest.skip("the barrier operation is not built (tools/build_native.py)")


@pytest.mark.parametrize("splits", [1, 4], ids=["one pass over the keys", "keys in four parts"])
def test_clean_with_barriers(barrier, tmp_path, splits):
    output = run(tmp_path, "--splits", str(splits))
    assert messages(output) == []
    assert "decode submissions: 1\n" in output


@pytest.mark.parametrize("profile", ["amd", "unknown", "cpu-wide"])
def test_clean_with_the_kernels_of_others(barrier, tmp_path, profile):
    """Both forms of the matmul for GPUs, and the other kernels without shuffles; products with wide loads."""
    assert messages(run(tmp_path, "--profile", profile, "--splits", "4")) == []


def test_clean_with_products_of_halves(barrier, tmp_path):
    assert messages(run(tmp_path, "--precision", "half")) == []


@pytest.mark.parametrize("precision", ["full", "half"])
def test_clean_with_a_prediction_block(barrier, tmp_path, precision):
    output = run(tmp_path, "--precision", precision, model="mtp-c-mixed")
    assert messages(output) == []
    assert "draft submissions: 1\n" in output


def test_clean_with_a_submission_for_each_level(tmp_path):
    output = run(tmp_path, VKPREFILL_BARRIER="0")
    assert messages(output) == []
    assert "decode submissions: 1\n" not in output


def test_clean_where_kp_opens_the_device(barrier, tmp_path):
    assert messages(run(tmp_path, VKPREFILL_COMPANION="0")) == []


def test_missing_barriers_are_reported(barrier, tmp_path):
    """Shows that the layer is there and looks; without this the tests above could pass for want of it."""
    found = messages(run(tmp_path, "--no-barrier"))
    assert any("SYNC-HAZARD-READ-AFTER-WRITE" in message for message in found)
    assert any("SYNC-HAZARD-WRITE-AFTER-READ" in message for message in found)
