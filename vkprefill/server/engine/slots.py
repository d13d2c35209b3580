"""The conversations that the engine remembers, of the model and of its draft, each as a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vkprefill.engine.model import Model
from vkprefill.engine.prompt_cache import Mark, PromptCache
from vkprefill.engine.prompt_store import PromptStore
from vkprefill.generation.options import AnswerOptions
from vkprefill.generation.session import Session
from vkprefill.specprefill.pipeline import SpecPrefill
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.work import OneAtATime

DEFAULT_CACHE_BYTES = 8192 * 2**20


@dataclass(frozen=True)
class CacheLimits:
    """host_bytes: for the marks of both models; conversations: at most so many, None: as many as memory holds."""

    host_bytes: int = DEFAULT_CACHE_BYTES
    conversations: int | None = None


class Slots:
    """Sessions that share the memory of the models, as many as it holds; scorer: one prompt at a time has it."""

    def __init__(
        self, model: Model, draft: Model | None, spec: SpecPrefillConfig | None, limits: CacheLimits = CacheLimits()
    ) -> None:
        self.model, self._sessions = model, dict[PromptCache, Session]()
        models = [model, *([draft] if draft else [])]
        sizes = [one.runner.pool.state.num_bytes for one in models]
        self._stores = [
            PromptStore(one.new_cache, one.runner.pool, limits.host_bytes * size // sum(sizes), limits.conversations)
            for one, size in zip(models, sizes, strict=True)
        ]
        self._stores[0].first_to_go = self._give_up_checks
        self._speculative: SpecPrefill | None = None
        self.scorer = OneAtATime()
        if spec is not None:
            self._speculative = SpecPrefill(model, draft, spec, conversations=self._stores[1] if draft else None)

    @property
    def has_draft(self) -> bool:
        return self._speculative is not None

    def choose(self, token_ids: Sequence[int], options: AnswerOptions) -> Session:
        """The session to answer a prompt with: one that has most of it, or an empty one."""

        def find(prompts: PromptCache) -> Mark | None:
            return self._session(prompts).find(token_ids, options)

        store = self._stores[0]
        store.resume(None)
        return self._session(
            store.choose(find, len(token_ids)) if options.cache_prompt else store.choose_empty(len(token_ids))
        )

    def begin(self, session: Session) -> None:
        """It answers a prompt, in turns with others, until `end`."""
        self._stores[0].begin(session.prompts)

    def can_resume(self, session: Session) -> bool:
        """Whether it is best to let it go on now, as far as memory goes."""
        return self._stores[0].can_resume(session.prompts)

    def resume(self, session: Session) -> None:
        """It is its turn."""
        self._stores[0].resume(session.prompts)

    def end(self, session: Session) -> None:
        self._stores[0].end(session.prompts)

    def _session(self, prompts: PromptCache) -> Session:
        if prompts not in self._sessions:
            self._sessions[prompts] = Session(self.model, self._speculative, prompts=prompts)
        return self._sessions[prompts]

    def idle(self) -> bool:
        """One step of a check that an answer ended before; False where there is nothing to do."""
        for session in self._sessions.values():
            if session.idle():
                return True
        return False

    def late_checks(self) -> dict[str, int]:
        """How often each status came out of checks that had been pending."""
        return dict(sum((session.late_checks for session in self._sessions.values()), Counter()))

    def _give_up_checks(self) -> None:
        for session in self._sessions.values():
            session.give_up_check()

    def forget(self, session: Session) -> None:
        """Give a session's memory back, the model's and the draft's."""
        session.reset()
        if self._speculative is not None and not self.scorer.taken:
            self._speculative.reset()

    def forget_others(self) -> bool:
        """Give back the memory of all but the session in use. Returns whether there was any."""
        return any([store.forget_others() for store in self._stores])

    def figures(self) -> dict[str, int]:
        """The figures of the prompt caches of both models together, by the names of StoreFigures."""
        found = [store.figures().as_dict() for store in self._stores]
        return {name: sum(one[name] for one in found) for name in found[0]}

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        if self._speculative is not None:
            self._speculative.close()
        for store in self._stores:
            store.close()
