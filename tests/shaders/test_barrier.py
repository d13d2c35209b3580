"""The barrier operation: right results, and clean under the validation layer's synchronisation checks.

A CPU driver runs dispatches in order, so results alone prove nothing there: the layer must also complain when the
barrier is left out. Each case is a process of its own: the layer is chosen by environment variables, and a crash fails
one test.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.validation_layer import layer_environment, messages

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "native" / "barrier_check.py"


def load_build_native():
    spec = importlib.util.spec_from_file_location("build_native", ROOT / "tools" / "build_native.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def spirv(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("barrier") / "check.spv"
    load_build_native().compile_check_shader(path)
    return path


@pytest.fixture(scope="module")
def barrier() -> Path:
    path = ROOT / "vkprefill" / f"_barrier{load_build_native().SUFFIX}"
    if not path.exists():
        pytest.skip("the barrier operation is not built (tools/build_native.py)")
    return path


def run_check(barrier: Path, spirv: Path, *options: str, layer_in: Path | None = None) -> str:
    """Output of the check in a child process, under the validation layer where `layer_in` takes its settings."""
    environment = os.environ | (layer_environment(layer_in) if layer_in else {})
    command = [sys.executable, str(CHECK), str(barrier), str(spirv), *options]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_thousand_dependent_dispatches_are_exact(barrier, spirv):
    assert "right" in run_check(barrier, spirv, "--dispatches", "1000").split()


def test_missing_barrier_is_reported(barrier, spirv, tmp_path):
    """Shows that the checker is alive; without this the next test could pass for want of a layer."""
    output = run_check(barrier, spirv, "--dispatches", "2", "--no-barrier", layer_in=tmp_path)
    assert "SYNC-HAZARD-READ-AFTER-WRITE" in output, output


def test_barrier_is_clean_under_synchronisation_validation(barrier, spirv, tmp_path):
    output = run_check(barrier, spirv, "--dispatches", "8", layer_in=tmp_path)
    assert messages(output) == []


def test_failed_build_leaves_no_file(tmp_path, monkeypatch, capsys):
    build_native = load_build_native()
    output = tmp_path / "_barrier.so"
    output.write_bytes(b"left by an earlier build")
    monkeypatch.setenv("CXX", "/bin/false")
    assert build_native.main(["_barrier", str(output)]) == 1
    assert list(tmp_path.iterdir()) == []
    assert "one submission per dependency level" in capsys.readouterr().err
