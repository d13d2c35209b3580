"""Prefill in slices of one run of the engine, between which other caches may run."""

from __future__ import annotations

from collections.abc import Sequence

from vkprefill.engine.cache import Cache
from vkprefill.engine.progress import PrefillProgress
from vkprefill.engine.runner import Runner
from vkprefill.engine.token_input import checked_ids
from vkprefill.work import Pause, Work


def extend_in_slices(
    run: Runner,
    token_ids: Sequence[int],
    cache: Cache,
    *,
    positions: Sequence[int] | None = None,
    leave_last: bool = False,
    progress: PrefillProgress | None = None,
) -> Work[int]:
    """As Model.extend, the same runs with the same bits; returns how many of the tokens were run.

    leave_last: the last run is for the caller. An exception leaves the cache as the last slice did.
    """
    ids, done = checked_ids(token_ids, run.config.vocab_size), 0
    while True:
        count = min(run.tokens_per_run(cache.late_length if cache.ahead else len(cache)), len(ids) - done)
        left = len(ids) - done - count
        if not left and leave_last:
            return done
        part = slice(done, done + count)

        def told(ran: int, _: int, before: int = done) -> None:
            if progress:
                progress(before + ran, len(ids))

        where = None if positions is None else positions[part]
        run.prefill(ids[part], cache, positions=where, following=left, progress=told)
        done += count
        if not left:
            return done
        yield Pause.SLICE
