"""A lock that refuses instead of waiting: two threads in one model would get each other's logits."""

from __future__ import annotations

import threading

from vkprefill.errors import RequestError


class OneThread(type(threading.RLock())):
    """A context manager that one thread at a time may be in, nested too. RequestError for a second one.

    It is left by the lock's own __exit__, which is no Python: no interrupt comes between the call and the release.
    """

    def __new__(cls, what: str) -> OneThread:
        return super().__new__(cls)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        if not self.acquire(blocking=False):
            raise RequestError(
                f"{self._what}: in use by another thread; call it from one thread at a time, or load it once for each"
            )
