"""Runs the self-test in a child process, and goes on with another where the driver crashed it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from vkprefill.display import printable
from vkprefill.selftest.facts import without_paths
from vkprefill.selftest.trial import Finding

WORKER = (sys.executable, "-m", "vkprefill.selftest.worker")
SILENCE_S = 600  # of a child that says nothing: only what hangs, or a driver that compiles a kernel for ever
MAX_RESTARTS = 3

Progress = Callable[[int, int, str], None]  # (checks done, checks in all, name of the one that runs)


@dataclass(frozen=True)
class Outcome:
    """Of one check. failure: why it could not be run to its end, or what was wrong other than findings; or empty."""

    check: str
    findings: tuple[Finding, ...]
    failure: str = ""

    @property
    def ok(self) -> bool:
        return not self.failure and all(finding.ok for finding in self.findings)


@dataclass
class Examination:
    """facts: of facts.py, of the machine alone where no device can be used; checks: names of all; not_here: kernels
    that the device cannot run, with reasons; failure: why not all checks were begun, or empty.
    """

    facts: dict = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    not_here: dict[str, str] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0

    @property
    def well(self) -> bool:
        return not self.failure and all(outcome.ok for outcome in self.outcomes)


def examine(device: str | int | None, progress: Progress, worker: Sequence[str] = WORKER) -> Examination:
    """Everything about the device, or the one that is chosen by itself, or why there is none."""
    began, found = time.perf_counter(), Examination()
    for _ in range(1 + MAX_RESTARTS):
        done = len(found.outcomes)
        with _Child([*worker, json.dumps({"device": device, "first": done})]) as child:
            for news in child.news():
                _note(found, news, progress)
                if news.get("end") or "error" in news:
                    found.failure = without_paths(news.get("error", ""))
                    found.seconds = time.perf_counter() - began
                    return found
            how = without_paths(child.how_it_ended())
        if child.begun is not None and len(found.outcomes) == child.begun:
            found.outcomes.append(Outcome(found.checks[child.begun], (), f"cannot run: {how}"))
        elif len(found.outcomes) == done:  # not one check was begun: another try would not get further
            opened = "device" in found.facts
            where = "when the device was opened" if opened else "when Vulkan's drivers were asked for devices"
            found.failure = f"{how}, {where}"
            break
        found.failure = f"given up after {MAX_RESTARTS + 1} processes, the last with: {how}"
    found.seconds = time.perf_counter() - began
    return found


def _note(found: Examination, news: dict, progress: Progress) -> None:
    """One piece of the child's news."""
    if "facts" in news:
        found.facts |= without_paths(news["facts"])
    elif "checks" in news:
        found.checks, found.not_here = tuple(news["checks"]), news["not_here"]
    elif "begin" in news:
        progress(news["begin"], len(found.checks), found.checks[news["begin"]])
    elif "findings" in news:
        findings = tuple(Finding(**{**f, "kernels": tuple(f["kernels"])}) for f in news["findings"])
        name, failure = found.checks[len(found.outcomes)], without_paths(news["failure"])
        found.outcomes.append(Outcome(name, findings, failure))


class _Child:
    """The process of worker.py. begun: the number of the last check that it began."""

    def __init__(self, command: Sequence[str]) -> None:
        self.begun: int | None = None
        self._silent = False
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for the program, not for this child
        )

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def news(self) -> Iterator[dict]:
        """Line by line until the process ends, or says nothing for too long."""
        while line := self._line():
            news = json.loads(line)
            self.begun = news.get("begin", self.begun)
            yield news

    def how_it_ended(self) -> str:
        """In words, with the last line that it or the driver wrote on stderr."""
        status = self._process.wait()
        if self._silent:
            return f"the process did nothing for {SILENCE_S} s and was ended"
        how = f"exit status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"the process ended with {how}" + (f" ({printable(last, 160)})" if last else "")

    def _line(self) -> str:
        timer = threading.Timer(SILENCE_S, self._end)
        timer.start()
        try:
            return self._process.stdout.readline()
        finally:
            timer.cancel()

    def _end(self) -> None:
        self._silent = True
        self._process.kill()
