"""The script in examples/ that records over two actors, run as it stands."""

import os
import subprocess
import sys

from tests.e2e.conftest import ROOT


def test_record_over_actors(tmp_path):
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, ROOT / "examples/record_over_actors.py"]
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ferret:", "pigeon:", "horse:", "parrot:"]
    assert done.stdout.count("tokens, after layer 0") == 4
