"""generate and chat with checked answers: what a sparse prefill gets wrong, on a pipe, as JSON and on a terminal."""

import json
import os
import subprocess

import pytest

from tests.e2e.command import GREEDY, start
from tests.e2e.conftest import DEMO, PATIENCE_S

SPARSE = ("--no-specprefill-break-even", "--no-specprefill-protect-question", "--specprefill-select-mode", "chunk")
FIRST = ("--specprefill-boost-first-mult", "1000", "--specprefill-boost-last-mult", "0")  # only the beginning counts
WRONG = (*SPARSE, *FIRST, "--specprefill-keep-ratio", "0.1", *GREEDY, "-c", "2048", "--specprefill-check")
PROMPT, ANSWER = DEMO[0]["user"], DEMO[0]["answer"]

pytestmark = pytest.mark.usefixtures("gpu")


def checks(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("check: ")]


def test_json(cli):
    found = json.loads(cli("generate", "-p", PROMPT, *WRONG, "--json").out)
    assert found["text"] == ANSWER and found["specprefill"]["check"]["status"] == "revised"
    assert found["specprefill"]["status"] == "active"


def test_a_pipe_is_told(cli):
    outcome = cli("generate", "-p", PROMPT, *WRONG)
    (line,) = checks(outcome.err)
    assert outcome.code == 0 and outcome.out.strip() != ANSWER
    assert line.startswith("check: differs: the dense model says something else from token 0 on")


def test_a_pipe_gets_what_is_checked(cli):
    outcome = cli("generate", "-p", PROMPT, *WRONG, "wait", "--specprefill-on-mismatch", "revise")
    (line,) = checks(outcome.err)
    assert outcome.out == ANSWER + "\n" and line.startswith("check: revised: ") and "it was '" in line


def test_a_terminal_replaces_the_text():
    ours, terminal = os.openpty()
    process = start("generate", "-p", PROMPT, *WRONG, stdout=terminal, stderr=subprocess.PIPE)
    os.close(terminal)
    _, err = process.communicate(timeout=PATIENCE_S)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    before, _, after = shown.partition("\r\x1b[J")
    assert process.returncode == 0 and before not in ("", ANSWER) and after == ANSWER + "\r\n"
    (line,) = checks(err.decode())
    assert line.startswith("check: revised: ") and f"it was '{before}' there" in line


def test_chat(cli):
    outcome = cli("chat", *WRONG, "wait", stdin=PROMPT.replace("\n", " ").encode() + b"\n")
    (line,) = checks(outcome.err)
    assert outcome.code == 0 and line.startswith("check: differs: ")


def test_flags_that_are_refused(cli):
    for flags in (("--specprefill-check", "maybe"), ("--specprefill-check-share", "2")):
        outcome = cli("generate", "-p", "x", *flags)
        assert outcome.code == 1 and flags[0] in outcome.error_lines[0]
    outcome = cli("explain", "-p", "x", "--specprefill-check")
    assert outcome.code == 1 and "checks no answers" in outcome.error_lines[0]
