"""`vkprefill serve` as a process on a free port, for tests and for scripts that load it."""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.e2e.conftest import COMMAND, PATIENCE_S, ROOT

LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")


class ServerProcess:
    """A context manager: ready inside, gone after."""

    def __init__(self, *options: object, wait: bool = True) -> None:
        command = [*COMMAND, "serve", "--port", "0", *map(str, options)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=ROOT)
        self.lines: list[str] = []
        self._address = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._address.wait(PATIENCE_S) or not self.url:
            self.stop(signal.SIGKILL)
            raise RuntimeError(f"the server did not start: {self.stderr}")
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)
        if wait:
            self.wait_until_ready()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line)
            if found := LISTENING.search(line):
                self.url = found[1]
                self._address.set()
        self._address.set()

    @property
    def stderr(self) -> str:
        return "".join(self.lines)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def wait_until_ready(self) -> None:
        self.wait_for(lambda: self.client.get("/health").status_code == 200)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Until the condition holds; AssertionError if it never does."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, self.stderr
            assert time.monotonic() < end, f"not so after {timeout_s} s: {self.stderr}"
            time.sleep(0.02)

    def metric(self, name: str) -> float:
        """A line of /metrics, labels included; 0 where there is none."""
        lines = self.client.get("/metrics").text.splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vkprefill:{name} ")), 0)

    def num_left(self) -> float:
        """Requests whose client left, once their work has ended."""
        return self.metric('requests_total{code="499"}')

    def idle(self) -> bool:
        return self.metric("requests_processing") == 0 and self.metric("requests_deferred") == 0

    def listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionError:
            return False
        return True

    def raw(self, data: bytes, timeout_s: float = PATIENCE_S) -> bytes:
        """What comes back for these bytes, until the server closes or has answered."""
        with socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
            connection.sendall(data)
            received = b""
            while block := connection.recv(65536):
                received += block
                if b"\r\n\r\n" in received and received.rstrip().endswith((b"}", b"[DONE]")):
                    break
            return received

    def engine(self) -> int:
        """Process id of the engine."""
        processes = Path("/proc").glob("[0-9]*")
        (found,) = (int(p.name) for p in processes if _parent(p) == self.process.pid and b"spawn_main" in _command(p))
        return found

    @contextmanager
    def engine_paused(self) -> Iterator[None]:
        """The engine stands still inside, as in a submission without end: nothing a test does there comes too late."""
        engine = self.engine()
        os.kill(engine, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):  # the test may have killed it
                os.kill(engine, signal.SIGCONT)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        """Send the signal; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stop(signal.SIGKILL)


def _status(process: Path) -> list[str]:
    """Fields of /proc/PID/stat from the state on; of a process that is gone as of one that waits to be buried."""
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["Z", "0"]


def _parent(process: Path) -> int:
    return int(_status(process)[1])


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def runs(pid: int) -> bool:
    """Whether the process has not ended; in a container nobody may bury it."""
    return _status(Path(f"/proc/{pid}"))[0] not in "ZX"
