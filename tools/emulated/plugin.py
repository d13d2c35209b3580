"""pytest plugin of tools/test_780m.py: leaves out what cannot run there, reports each test as a line of JSON.

A line is written as soon as a test starts or ends, so that it is known where the emulator ended the process.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tools.emulated.jobs import DONE, LEFT_OUT, REPORT, WAVES
from vkprefill.vulkan import device


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(WAVES) == "64":
        device.ask_for_waves_of_32 = lambda environment: None


def say(**what: object) -> None:
    with Path(os.environ[REPORT]).open("a") as file:
        file.write(json.dumps(what) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = set(json.loads(os.environ.get(DONE, "[]")))
    kept = []
    for item in items:
        reason = next((reason for start, reason in LEFT_OUT.items() if item.nodeid.startswith(start)), None)
        if reason is not None:
            say(left_out=item.nodeid)
        elif item.nodeid not in done:
            kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_runtest_logstart(nodeid: str) -> None:
    say(started=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A skip is a failure: what cannot run is left out by name."""
    if report.when == "call" or not report.passed:
        say(test=report.nodeid, outcome="passed" if report.passed else "failed")
