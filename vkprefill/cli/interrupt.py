"""Ctrl-C while nothing is there yet that could be left half done. Imports next to nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # the exit code that shells give it


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Ctrl-C ends the process. An exception would not do: raised inside the import system it is at times lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler:  # ignored by who started this, or handled
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _leave(*_: object) -> None:
    if sys.stderr is not None:
        print("interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)
