"""A lock that refuses instead of waiting: two threads in one model would get each other's logits."""

from __future__ import annotations

import threading

from vkprefill.errors import RequestError


class OneThread:
    """A context manager that one thread at a time may be in, nested too. RequestError for a second one."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RequestError(
                f"{self._what}: in use by another thread; call it from one thread at a time, or load it once for each"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
