"""The conversations that the engine remembers: which one a prompt goes on from, and which one makes room."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from vkprefill.engine.cache_pool import CachePool
from vkprefill.engine.model import Model
from vkprefill.engine.prompt_cache import preference
from vkprefill.generation.options import AnswerOptions
from vkprefill.generation.session import Session
from vkprefill.specprefill.settings import SpecPrefillConfig

MIN_COPIED = 32  # tokens of a shared beginning that are worth a copy


class Slots:
    """A few sessions that share the memory of the models. The least recently used one is forgotten when a new one
    or its memory is needed."""

    def __init__(self, model: Model, draft: Model | None, spec: SpecPrefillConfig | None, num_slots: int) -> None:
        self._sessions = [Session(model, draft, spec) for _ in range(num_slots)]  # least recently used first
        self.has_draft = draft is not None
        self._pools = [model.runner.pool, *([draft.runner.pool] if draft else [])]
        for pool in self._pools:
            pool.on_full = partial(self._make_room, pool)

    def choose(self, token_ids: Sequence[int], options: AnswerOptions) -> Session:
        """The session to answer a prompt with; it counts as the most recently used from now on.

        That is the one with the longest beginning of the prompt, unless it would forget more than it saves: then the
        least recently used one, with a copy of that beginning if another conversation shares it.
        """
        marks = {session: session.find(token_ids, options) for session in self._sessions}
        found = [session for session in self._sessions if marks[session] is not None]
        best = max(found, key=lambda session: preference(marks[session]), default=None)
        saved = marks[best].length if best else 0
        if best and saved >= len(best.prompt) - saved:
            self._use(best)
            return best
        oldest = self._sessions[0]
        if saved >= MIN_COPIED and best is not oldest:
            self._use(best)  # so that its memory is the last to be taken
            self._use(oldest)
            oldest.start_from(best, marks[best])
        else:
            self._use(oldest)
        return oldest

    def _use(self, session: Session) -> None:
        self._sessions.remove(session)
        self._sessions.append(session)

    def forget(self, session: Session) -> None:
        """Give its memory back; it is the first to be used again."""
        session.reset()
        self._sessions.remove(session)
        self._sessions.insert(0, session)

    def forget_others(self) -> bool:
        """Give back the memory of all but the session in use; whether there was any."""
        idle = [session for session in self._sessions[:-1] if session.prompt]
        for session in idle:
            session.reset()
        return bool(idle)

    def _make_room(self, pool: CachePool, pages: int) -> None:
        """Forget idle sessions, least recently used first, until this many pages are free."""
        for session in self._sessions[:-1]:
            if len(pool.free_pages) >= pages:
                return
            session.reset()

    def close(self) -> None:
        for pool in self._pools:
            pool.on_full = None
        for session in self._sessions:
            session.close()
