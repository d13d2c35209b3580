"""What the tests of the command line share: processes, what they are sent, how an error must look."""

import fcntl
import os
import re
import signal
import subprocess
import termios
import time
from array import array

from tests.e2e.conftest import COMMAND, PATIENCE_S, ROOT, TINY, Outcome

GREEDY = ("--temp", "0")


def tiny(*args: str | bytes) -> tuple[str | bytes, ...]:
    return ("generate", "-m", TINY, *args)


def assert_error(outcome: Outcome, message: str) -> None:
    assert outcome.code == 1, outcome
    assert len(outcome.error_lines) == 1 and re.search(message, outcome.error_lines[0]), outcome
    assert outcome.err.splitlines()[-1] == outcome.error_lines[0] and "Traceback" not in outcome.err, outcome


def shell(line: str) -> Outcome:
    """A line of bash; V is the command, M the tiny model."""
    names = {**os.environ, "V": " ".join(COMMAND), "M": TINY}
    result = subprocess.run(
        ["bash", "-c", "set -o pipefail; " + line], capture_output=True, cwd=ROOT, env=names, timeout=PATIENCE_S
    )
    return Outcome(result.returncode, result.stdout.decode(errors="replace"), result.stderr.decode())


def start(*args: str, **options: object) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0, **options}
    return subprocess.Popen([*COMMAND, *args], cwd=ROOT, **pipes)


def write(process: subprocess.Popen, data: bytes) -> None:
    """To its stdin; returns when the process has read it all."""
    process.stdin.write(data)
    unread = array("i", [1])
    while unread[0]:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
        fcntl.ioctl(process.stdin, termios.FIONREAD, unread)


def interrupt(process: subprocess.Popen) -> bytes:
    """Ctrl-C, which ends the process within a minute, however busy the machine; the rest of stderr."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in err, err
    return err
