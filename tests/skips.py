"""Skips that may happen. Any other one fails the test: what lacks there would otherwise go untested in silence.

The reasons stand in the tests; `--allow-skips` lets all pass, for an environment that is known to be incomplete.
"""

from __future__ import annotations

import re

import pytest

# (pattern of the whole reason, why it is right not to run the test)
ALLOWED = (
    (r"chromium is not installed", "make setup names the browser as optional"),
    (r"axe-core is not fetched \(make setup\)", "make setup goes on without it where npm's registry cannot be reached"),
    (r"chromedriver \(package chromium-driver\) is not installed", "make setup names the browser as optional"),
    (r".* is not installed, a shell whose completion is tested", "make setup names the shells as optional"),
    (r"nginx or openssl is not installed", "make test-proxy fetches the proxy, which the server does not need"),
    (r".* has one subgroup size", "other widths can be asked for of Mesa's CPU driver only"),
    (r"this driver has subgroups of \d+ where \d+ were asked for", "what widths there are depends on the build"),
    (r"RADV is not installed \(package mesa-vulkan-drivers\)", "make setup installs Mesa where there is no driver"),
    (r"no stored table for Mesa .*", "tables are compared within a version of Mesa, and stored for a few"),
    (r"this driver shows other mistakes", "which ones is known of Mesa's driver for the CPU and of the emulated GPU"),
    (r"this driver has no halves", "SwiftShader has neither halves in arithmetic nor in memory"),
    (r"the emulated Radeon 780M is not set up \(make setup-780m\)", "its driver is fetched by a target of its own"),
    (r"the emulated GPU's interpreter runs on x86-64, .*", "it uses that processor's own treatment of denormals"),
    (r"a GPU's memory is .*", "the test reads the memory of the process, where only a CPU device's buffers are"),
)


def allowed(reason: str) -> bool:
    return any(re.fullmatch(pattern, reason) for pattern, _ in ALLOWED)


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Makes a failure of a skip that is not allowed; expected failures (xfail) are no skips."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    path, line, text = report.longrepr
    reason = text.removeprefix("Skipped: ")
    if not allowed(reason):
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: skipped, which tests/skips.py does not allow: {reason}"
