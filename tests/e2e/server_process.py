"""`vkprefill serve` as a process on a free port, for tests and for scripts that load it."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import httpx

LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")


class ServerProcess:
    """A context manager: ready inside, gone after. Its cache folder is temporary unless XDG_CACHE_HOME is set."""

    def __init__(self, *options: object, wait: bool = True) -> None:
        self._folder = tempfile.TemporaryDirectory()
        environment = {"XDG_CACHE_HOME": self._folder.name, **os.environ, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "vkprefill", "serve", "--port", "0", *map(str, options)]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
        )
        self.lines: list[str] = []
        self._address = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._address.wait(60) or not self.url:
            self.stop(signal.SIGKILL)
            raise RuntimeError(f"the server did not start: {self.stderr}")
        self.client = httpx.Client(base_url=self.url, timeout=120, trust_env=False)
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

    def wait_until_ready(self, timeout_s: float = 120) -> None:
        self.wait_for(lambda: self.client.get("/health").status_code == 200, timeout_s)

    def wait_for(self, condition, timeout_s: float = 60) -> float:
        """Seconds until the condition held; AssertionError if it never did."""
        start = time.monotonic()
        while not condition():
            assert self.process.poll() is None, self.stderr
            assert time.monotonic() - start < timeout_s, f"not so after {timeout_s} s: {self.stderr}"
            time.sleep(0.05)
        return time.monotonic() - start

    def metric(self, name: str) -> float:
        """A line of /metrics, labels included."""
        text = self.client.get("/metrics").text
        return next(
            float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"vkprefill:{name} ")
        )

    def idle(self) -> bool:
        return self.metric("requests_processing") == 0 and self.metric("requests_deferred") == 0

    def raw(self, data: bytes, timeout_s: float = 20) -> bytes:
        """What comes back for these bytes, until the server closes or has answered."""
        with socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
            connection.sendall(data)
            received = b""
            while block := connection.recv(65536):
                received += block
                if b"\r\n\r\n" in received and received.rstrip().endswith((b"}", b"[DONE]")):
                    break
            return received

    def children(self) -> list[int]:
        """Process ids of the engine: the children that run it, not those that render templates."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline") as command:
                    parent, line = int(stat.read().rsplit(")", 1)[1].split()[1]), command.read()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == self.process.pid and "spawn_main" in line:
                found.append(int(pid))
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 60) -> int:
        """Send the signal; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        self._folder.cleanup()
        return code

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stop(signal.SIGKILL)
