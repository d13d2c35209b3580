"""Streams that are closed, full, cut off or without Unicode; Ctrl-C at every stage."""

import os
import subprocess
import sys
import time

import pytest

from tests.e2e.command import GREEDY, assert_error, interrupt, shell, start, tiny, write
from tests.e2e.conftest import COMMAND, ROOT
from tests.reference.fixtures import model_path

# A prompt after which this model does not end its answer for thousands of tokens.
ENDLESS = ("generate", "-m", str(model_path("tiny-b-f32")), "--raw", *GREEDY)


@pytest.mark.parametrize("command", ("generate -m $M -p x -n 300 --temp 0", "inspect -m $M", "devices --json"))
def test_reader_of_stdout_leaves(gpu, command):
    outcome = shell(f"$V {command} | head -c 1")
    assert outcome.code in (0, 1) and "Traceback" not in outcome.err and "Exception" not in outcome.err
    assert outcome.error_lines == []


@pytest.mark.parametrize("command", ("generate -m $M -p x -n 3", "generate -m $M -p x -n 3 --json", "inspect -m $M"))
def test_stdout_is_full(gpu, command):
    outcome = shell(f"$V {command} > /dev/full")
    assert_error(outcome, "stdout: cannot be written: No space left on device")


def test_closed_streams(gpu):
    outcome = shell("$V generate -m $M -p x -n 3 -c 256 2>&-")
    assert outcome.code == 0 and "per second" not in outcome.out, "notices must not go to stdout"
    assert_error(shell("$V generate -m $M -p x -n 3 -c 256 >&-"), "stdout: it is closed")
    full = shell("$V generate -m $M -p x -n 3 -c 256 --temp 0 2>/dev/full")
    assert full.code == 0 and full.out.strip(), "an answer must not be lost because notices are"
    assert_error(shell("$V generate -m $M -f - <&-"), "stdin: it is closed")
    assert shell("$V chat -m $M -c 256 <&-").code == 0


def test_terminal_without_unicode(cli, gpu):
    outcome = cli(
        *tiny("-p", "x", "-n", "40", "--temp", "5", "--top-k", "0", "-s", "1"), env={"PYTHONIOENCODING": "ascii"}
    )
    assert outcome.code == 0 and outcome.out.isascii() and "Traceback" not in outcome.err


def test_interrupt_in_prefill(gpu, tmp_path):
    (tmp_path / "long.txt").write_text("word and " * 25000)  # a token each character: many minutes
    process = start(*ENDLESS, "-f", str(tmp_path / "long.txt"))
    with process:
        assert b" on " in process.stderr.readline()  # the notice that the model is loaded
        time.sleep(0.5)
        assert interrupt(process).endswith(b"interrupted\n")


def test_interrupt_in_decode(gpu):
    process = start(*ENDLESS, "-p", "a", "-n", "50000", "-c", "65536")
    with process:
        assert process.stdout.read(1)
        assert interrupt(process).endswith(b"interrupted\n")


def test_interrupt_while_waiting_for_a_prompt():
    process = start(*tiny("-f", "-"), stdin=subprocess.PIPE)
    with process:
        write(process, b"a beginning")
        assert interrupt(process).endswith(b"interrupted\n")


@pytest.mark.parametrize("module", ["vkprefill.cli.commands", "numpy", "rich.console", "vkprefill.generation.session"])
def test_interrupt_while_modules_are_imported(tmp_path, module):
    """Ctrl-C as the import of a module begins, from its finder; pyproject.toml's entry and -m."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS.format(module=module))
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    entry = [sys.executable, "-c", "import sys; from vkprefill.cli.main import main; sys.exit(main())"]
    for command in ([*entry, "chat"], [*COMMAND, "chat"]):
        done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT)
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


INTERRUPTS = """
import os, signal, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
"""


def test_an_ignored_interrupt_stays_ignored():
    """As under nohup, or behind & in a script."""
    done = shell("trap '' INT; $V devices & kill -INT $!; wait $!")
    assert done.code == 0 and "interrupted" not in done.err
