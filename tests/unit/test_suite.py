"""The suite's own rules: which skips may happen, what runs by default."""

import re
from pathlib import Path

import pytest

from tests.skips import ALLOWED, allowed

pytest_plugins = "pytester"

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def run(pytester):
    """run(source of a test file, *options): the outcomes of the tests in it, under this suite's hooks."""

    def run(source: str, *options: str) -> dict[str, int]:
        pytester.makeconftest(
            "from tests.conftest import pytest_addoption, pytest_collection_modifyitems\n"
            "from tests.conftest import pytest_make_collect_report, pytest_runtest_makereport\n"
        )
        pytester.makeini("[pytest]\nmarkers =\n    exhaustive: all\n    smoke: few\n")
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options).parseoutcomes()

    return run


SKIPS = """
import pytest

def test_runs():
    pass

def test_skips():
    pytest.skip({reason!r})

@pytest.mark.skipif(True, reason={reason!r})
def test_marked():
    pass

@pytest.fixture
def needed():
    pytest.skip({reason!r})

def test_skips_in_its_fixture(needed):
    pass

@pytest.mark.xfail
def test_that_is_known_to_fail():
    assert False
"""


def test_other_skips_fail(run):
    source = SKIPS.format(reason="a library is missing")
    assert run(source) == {"passed": 1, "failed": 1, "errors": 2, "xfailed": 1}
    assert run(source, "--allow-skips") == {"passed": 1, "skipped": 3, "xfailed": 1}


def test_allowed_skips(run):
    assert run(SKIPS.format(reason="chromium is not installed")) == {"passed": 1, "skipped": 3, "xfailed": 1}


def test_files_without_their_library_fail(run):
    source = "import pytest\npytest.importorskip('no_such_library')\ndef test_a(): pass"
    assert run(source) == {"errors": 1}
    assert run(source, "--allow-skips") == {"skipped": 1}


def test_a_reason_is_allowed_as_a_whole():
    assert allowed("no stored table for Mesa 25.0.1; python -m tools.amd_compile --update adds one")
    assert not allowed("chromium is not installed on this machine")


def test_every_allowed_skip_is_one_of_a_test():
    """A pattern that no test's reason begins like is of a test that is gone."""
    here = (Path(__file__), TESTS / "skips.py")
    sources = "".join(path.read_text() for path in TESTS.rglob("*.py") if path not in here)
    for pattern, _ in ALLOWED:
        words = max(re.split(r"\\d\+|\.\*", pattern), key=len).replace("\\", "").strip()
        assert words in sources, pattern


EXHAUSTIVE = """
import pytest

def test_always(): pass

@pytest.mark.exhaustive
def test_all(): pass
"""


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        ((), {"passed": 1, "deselected": 1}),
        (("--exhaustive",), {"passed": 2}),
        (("-m", "exhaustive"), {"passed": 1, "deselected": 1}),
        (("-m", "not exhaustive"), {"passed": 1, "deselected": 1}),
        (("-k", "all"), {"deselected": 2}),
    ],
)
def test_exhaustive_tests_are_left_out_by_default(run, options, outcomes):
    assert run(EXHAUSTIVE, *options) == outcomes
