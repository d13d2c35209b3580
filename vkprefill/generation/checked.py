"""Checked answers: the whole sparse answer is a draft, which the dense model verifies.

    sparse prefill -> first token early -> tokens from the sparse cache
    meanwhile, in slices between their rounds: the dense prefill of the same prompt into a second cache, and then
    the tokens given out so far, verified as any drafted tokens are, with a sampler of the same seed
      -> all are equal: on from the dense cache
      -> one is not: by `on_mismatch`

So a checked answer is the dense one, whatever was kept (speculative decoding's argument: Leviathan, Kalman & Matias
2023, arXiv 2211.17192, here with the same random numbers, so that tokens are equal and not only their distribution).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace

from vkprefill.engine.cache import Cache
from vkprefill.errors import OutOfMemoryError
from vkprefill.generation.dense_side import DenseSide
from vkprefill.generation.options import AnswerOptions, Hooks
from vkprefill.generation.parts import GenerationPart, Parts
from vkprefill.generation.sampling import new_seed
from vkprefill.generation.slices import Slices
from vkprefill.generation.steps import Timings
from vkprefill.specprefill.plan import (
    CHECK_DIFFERS,
    CHECK_EQUAL,
    CHECK_OFF,
    CHECK_PENDING,
    CHECK_REVISED,
    Plan,
    SpecPrefillReport,
    check_report,
)
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.work import Pause, Work

OFF, WAIT, AUTO, REVISE, REPORT, STOP = "off", "wait", "auto", "revise", "report", "stop"  # of the settings
ENDED_BY_CHECK = "check"  # finish_reason
END = object()


def with_seed(options: AnswerOptions) -> AnswerOptions:
    """The same with a seed, which two samplers can begin with."""
    sampling = options.sampling
    return options if sampling.seed is not None else replace(options, sampling=replace(sampling, seed=new_seed()))


def nothing_to_check(report: SpecPrefillReport, config: SpecPrefillConfig | None, parts: Parts) -> Parts:
    """A dense answer, whose report says that it is one where a check is asked for."""
    if config is None or config.check == OFF:
        yield from parts
        return
    report.check = check_report(CHECK_EQUAL, "nothing was left out")
    with closing(parts):
        for part in parts:
            if not isinstance(part, Pause):
                report.check["agreed_n"] += part.token_id is not None
            yield part


class CheckedAnswer:
    """A sparse answer and its check.

    switched: the answer goes on, or ended, on the dense side; pending: it ended before the check did.
    """

    def __init__(
        self,
        dense: DenseSide,
        sparse: Cache,
        report: SpecPrefillReport,
        config: SpecPrefillConfig,
        options: AnswerOptions,
        hooks: Hooks,
        on_switch: Callable[[], None],
    ) -> None:
        """sparse: the cache of the sparse answer, which is not used any more once on_switch is called."""
        self.dense, self._sparse, self._report = dense, sparse, report
        self._on_switch, self._clock = on_switch, hooks.clock
        self._waits = options.whole or config.check == WAIT
        self._refuses = config.check == WAIT
        mismatch = config.on_mismatch
        self._mismatch = (REVISE if options.whole else REPORT) if mismatch == AUTO else mismatch
        self._slices = Slices(self._work(), config.check_share, self._clock)
        self._emitted: list[int | None] = []  # an end-of-generation token is None, as in parts
        self._ends: list[tuple[str | None, str | None]] = []  # of each, how the answer ended there
        self._dense_parts: list[GenerationPart] = []
        self._answer: Parts | None = None
        self.switched = self.pending = self._over = False
        report.check = check_report(CHECK_PENDING, "the dense prefill was not done when the answer ended")

    @classmethod
    def of(
        cls,
        dense: DenseSide,
        sparse: Cache,
        plan: Plan,
        config: SpecPrefillConfig,
        options: AnswerOptions,
        hooks: Hooks,
        on_switch: Callable[[], None],
    ) -> CheckedAnswer | None:
        """None where there is no room for it, which the report says. NoRoomForCheck where the check was to be waited
        for.

        options: with a seed.
        """
        if config.check == WAIT:
            dense.require_room(sparse, len(plan.kept))
        elif reason := dense.room_wanted(sparse, len(plan.kept)):
            plan.report.check = check_report(CHECK_OFF, reason)
            return None
        return cls(dense, sparse, plan.report, config, options, hooks, on_switch)

    @property
    def status(self) -> str:
        return self._check["status"]

    @property
    def _check(self) -> dict[str, object]:
        return self._report.check

    # -- the work in slices --------------------------------------------------------------------------------------------

    def _work(self) -> Work[None]:
        """The dense prefill, and then the comparison of what was given out so far."""
        yield from self._timed("dense_ms", self.dense.prefill())
        self._answer = self.dense.answer(self._emitted)
        for part in self._timed("verify_ms", self._answer, first="dense_ms"):
            if isinstance(part, Pause):
                continue
            self._dense_parts.append(part)
            index, emitted = len(self._dense_parts) - 1, self._emitted
            same = part.token_id == emitted[index] and (part.finish_reason, part.stop_text) == self._ends[index]
            if same:
                self._check["agreed_n"] += part.token_id is not None
            if not same or index + 1 == len(emitted):
                self._decide(same, index)
                return
            if self.dense.round_over():
                self.dense.show_progress()
                yield Pause.SLICE

    def _timed(self, name: str, work: Generator, first: str | None = None) -> Generator:
        """The same, with the time that each step takes; first: the name that the first step's counts under."""
        name, later = first or name, name
        while True:
            start = self._clock()
            step = next(work, END)
            if step is END:
                return
            self._check[name] += (self._clock() - start) * 1e3
            name = later
            yield step

    def _decide(self, same: bool, index: int) -> None:
        self._over = True
        if same:
            self._check.update(status=CHECK_EQUAL, reason="the dense model says the same")
            return
        revised = self._mismatch == REVISE
        reason = f"the dense model says something else from token {index} on"
        self._check.update(status=CHECK_REVISED if revised else CHECK_DIFFERS, reason=reason, first_difference=index)

    def between(self) -> bool:
        """To be called between the sparse answer's rounds: gives the check its share of the time. True: the sparse
        answer is not needed any more.
        """
        if not self._over:
            if self.dense.leaves_room(self._sparse):
                self._attempt(self._slices.take_share)
            else:
                self._give_up("no room for a second cache beside the answer's")
        return self._replaces()

    def _replaces(self) -> bool:
        """Whether the dense side has the answer now, or nobody goes on with it."""
        return self._check["status"] in (CHECK_EQUAL, CHECK_REVISED) or (
            self._check["status"] == CHECK_DIFFERS and self._mismatch == STOP
        )

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OutOfMemoryError as error:
            if self._refuses or self.dense.cache.pool.device.lost:
                raise
            self._give_up(str(error))

    def _give_up(self, reason: str) -> None:
        if self._refuses:
            raise OutOfMemoryError(f"check: {reason}")
        self._slices.close()
        self._over = True
        self._report.check = check_report(CHECK_OFF, reason)
        self.dense.give_back()

    # -- the answer ----------------------------------------------------------------------------------------------------

    def parts(self, sparse: Parts, timings: Timings) -> Parts:
        """The answer: sparse's parts (whose rounds call `between`), and then the dense side's.

        timings: of the sparse side, which go on to be those of the answer.
        """
        chances, ended = [], None
        with closing(sparse):
            for part in sparse:
                if isinstance(part, Pause):
                    yield part
                    continue
                if not self._emitted:
                    first_at = self._clock()
                    self._slices.start()
                last = part
                self._emitted.append(part.token_id)
                self._ends.append((part.finish_reason, part.stop_text))
                chances += part.chances
                part.chances = ()
                if part.finish_reason is not None:
                    ended = part
                    break
                yield part
        if ended is not None and not self._over:
            if not self._waits and not self.dense.prefilled:
                self.pending, ended.chances = True, chances
                yield ended
                return
            yield replace(ended, finish_reason=None, stop_text=None)
            ended.text, ended.token_id = "", None
            while not (self._slices.done or self._over):
                yield Pause.SLICE
                self._attempt(self._slices.step)
        if not self._replaces():  # there was no room for the check, or it left the answer as it is
            ended.chances = chances
            yield ended
            return
        if self._check["status"] == CHECK_DIFFERS:
            yield replace(last, text="", token_id=None, finish_reason=ENDED_BY_CHECK, chances=chances)
            return
        yield from self._dense_rest(timings, first_at)

    def _dense_rest(self, timings: Timings, first_at: float) -> Parts:
        """What the dense side says beyond what it agreed with, and the log-probabilities of all."""
        self._on_switch()
        self.switched = True
        drafted, accepted = timings.draft_n, timings.draft_n_accepted
        mine, verified = self.dense.timings, replace(self.dense.timings)

        def as_answer(part: GenerationPart, **changes: object) -> GenerationPart:
            timings.predicted_n = mine.predicted_n
            timings.predicted_ms = max(timings.predicted_ms, (self._clock() - first_at) * 1e3)
            timings.draft_n = drafted + mine.draft_n - verified.draft_n
            timings.draft_n_accepted = accepted + mine.draft_n_accepted - verified.draft_n_accepted
            return replace(part, timings=timings, specprefill=self._report, **changes)

        *agreed, part = self._dense_parts
        chances = [entry for one in self._dense_parts for entry in one.chances]
        if self._check["status"] == CHECK_REVISED:
            yield as_answer(part, revised_from=sum(len(one.text) for one in agreed), chances=chances)
        elif part.finish_reason is not None or chances:
            yield as_answer(part, text="", token_id=None, chances=chances)
        if part.finish_reason is None:
            for part in self._answer:
                yield part if isinstance(part, Pause) else as_answer(part)

    # -- after the answer ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One step more of a check that is pending; whether there is another one."""
        self.dense.unattended, self._mismatch = True, REPORT  # the answer is what it is
        if not self.dense.has_spare_room():
            self._give_up("no room for a second cache but that of other conversations")
            return False
        self._attempt(self._slices.step)
        return not (self._slices.done or self._over)

    def close(self) -> None:
        """Take no further step."""
        self._slices.close()
        if self._answer is not None:
            self._answer.close()
