"""The command line in processes of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import vkprefill
from tests.reference.fixtures import model_path
from vkprefill.cli.main import main
from vkprefill.vulkan.probe import choose

ROOT = Path(vkprefill.__file__).parents[1]  # -m finds the package that the test imports, installed or not
TINY = str(model_path("tiny-a-f32"))
COMMAND = [sys.executable, "-m", "vkprefill"]
PATIENCE_S = 600  # only what hangs takes longer, on the slowest machine too
DEMO_FILE = Path(__file__).parents[1] / "data" / "demo_prompts.jsonl"
DEMO = [json.loads(line) for line in DEMO_FILE.read_text().splitlines()]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("Error:")]


@pytest.fixture(scope="session")
def cli():
    """cli(*args, stdin=bytes, env=more variables): the outcome of a run; args may be bytes."""

    def run(*args: object, stdin: bytes | None = b"", env: dict[str, str] | None = None) -> Outcome:
        command = [*COMMAND, *(arg if isinstance(arg, bytes) else str(arg) for arg in args)]
        variables = {**os.environ, **(env or {})}
        done = subprocess.run(command, input=stdin, capture_output=True, cwd=ROOT, env=variables, timeout=PATIENCE_S)
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def cli_here(capsys):
    """As cli, in this process, which saves the time of a start: for what ends before there is an answer."""

    def run(*args: object) -> Outcome:
        try:
            code = main([os.fsdecode(arg) for arg in args])
        except SystemExit as ended:
            code = ended.code
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def gpu():
    """Skips where there is no Vulkan device."""
    try:
        choose(None)
    except vkprefill.DeviceError as error:
        pytest.skip(f"no Vulkan device: {error}")


@pytest.fixture(scope="session")
def driver():
    """A headless browser, one for all tests."""
    from tests.e2e.page import browser

    pytest.importorskip("selenium.webdriver")
    if browser.CHROMIUM is None:
        pytest.skip("chromium is not installed")
    if browser.CHROMEDRIVER is None:
        pytest.skip("chromedriver (package chromium-driver) is not installed")
    with browser.started_browser() as started:
        yield started


@pytest.fixture
def violations(driver):
    """violations(): what axe finds on the page that is shown, its advice on good practice included."""
    from tests.e2e.page import browser

    if not browser.AXE.exists():
        pytest.skip("axe-core is not fetched (make setup)")
    return lambda: browser.violations(driver)
