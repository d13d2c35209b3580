"""Several runs on a cache of which all count, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vkprefill.engine.cache import Cache
from vkprefill.errors import OutOfMemoryError


@contextmanager
def restored_on_error(cache: Cache) -> Iterator[None]:
    """An exception inside leaves the cache as it was. Costs a copy of its state, on the host where the device has no
    room.
    """
    if not isinstance(cache, Cache) or cache.closed or cache.broken or cache.ahead is not None:
        yield  # what is run refuses it
        return
    try:
        before = cache.snapshot()
    except OutOfMemoryError:
        before = cache.snapshot(on_host=True)
    try:
        yield
    except BaseException:
        if not cache.pool.device.lost:
            cache.restore(before)
        raise
    finally:
        before.free()
