"""vkprefill chat: lines in, answers out, errors in between."""

import json
import re
import signal
import subprocess

from tests.e2e.command import GREEDY, interrupt, start, tiny, write
from tests.e2e.conftest import TINY
from tests.reference.fixtures import model_path

CHAT = ("chat", "-m", TINY, *GREEDY, "-n", "4", "-c", "512")


def test_chat(cli, gpu):
    lines = "hello\nand now?\n\n/clear\nhello\n/quit\nnever asked\n"
    outcome = cli(*CHAT, stdin=lines.encode())
    speeds = [line for line in outcome.err.splitlines() if line.startswith("prompt: ")]
    assert outcome.code == 0 and outcome.error_lines == []
    assert len(speeds) == 3
    assert "from the cache" not in speeds[0] and "from the cache" in speeds[1]
    first = json.loads(cli(*tiny("-p", "hello", "-n", "4", *GREEDY, "--json")).out)["text"]
    assert outcome.out.startswith(first + "\n") and outcome.out.endswith("\n" + first + "\n"), (
        "after /clear, as at the start"
    )


def test_chat_ends_with_its_input(cli, gpu):
    for stdin in (b"", b"/quit", b"\n\n"):
        outcome = cli(*CHAT, stdin=stdin)
        assert (outcome.code, outcome.out) == (0, "")
    outcome = cli(*CHAT, stdin=b"last line without an end")
    assert outcome.code == 0 and outcome.out


def test_chat_goes_on_after_errors(cli, gpu):
    outcome = cli(*CHAT, "-sys", "Be brief.", stdin=b"hi\xff\n" + b"long " * 500 + b"\nhello\n")
    assert outcome.code == 0 and len(outcome.error_lines) == 2
    assert "not UTF-8" in outcome.error_lines[0] and "context" in outcome.error_lines[1]
    assert sum(line.startswith("prompt: ") for line in outcome.err.splitlines()) == 1


def test_chat_in_which_nothing_was_answered(cli, gpu):
    outcome = cli(*CHAT, stdin=b"long " * 500 + b"\n")
    assert (outcome.code, outcome.out) == (1, "") and len(outcome.error_lines) == 1


def test_chat_interrupted(gpu):
    """Ctrl-C stops the answer, not the chat; at the prompt it ends it."""
    args = ("chat", "-m", str(model_path("tiny-b-f32")), *GREEDY, "-c", "65536")
    process = start(*args, stdin=subprocess.PIPE)
    with process:
        process.stdin.write(b"a\n")
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        lines = []
        while not lines or not re.match(r"stopped|prompt: ", lines[-1]):
            lines.append(process.stderr.readline().decode())
            assert lines[-1], lines
        write(process, b"\n")
        interrupt(process)
