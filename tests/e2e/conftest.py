"""The command line in processes of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import vkprefill
from tests.reference.fixtures import model_path
from vkprefill.vulkan_probe import choose

ROOT = Path(vkprefill.__file__).parents[1]  # -m finds the package that the test imports, installed or not
TINY = str(model_path("tiny-a-f32"))
COMMAND = [sys.executable, "-m", "vkprefill"]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("Error:")]


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """What measured speeds are kept in is the tests' own."""
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="session")
def cli(environment):
    """cli(*args, stdin=bytes, env=more variables): the outcome of a run; args may be bytes."""

    def run(*args: str | bytes, stdin: bytes | None = b"", env: dict[str, str] | None = None) -> Outcome:
        result = subprocess.run(
            [*COMMAND, *args],
            input=stdin,
            capture_output=True,
            cwd=ROOT,
            env={**environment, **(env or {})},
            timeout=120,
        )
        return Outcome(result.returncode, result.stdout.decode(), result.stderr.decode())

    return run


@pytest.fixture(scope="session")
def gpu():
    """Skips where there is no Vulkan device."""
    try:
        choose(None)
    except vkprefill.DeviceError as error:
        pytest.skip(f"no Vulkan device: {error}")
