"""One job on one session, as work in slices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection

from vkprefill.explain.layer_map import map_work
from vkprefill.generation.options import Hooks
from vkprefill.generation.parts import GenerationPart
from vkprefill.generation.sampling import Sampler, SamplingConfig
from vkprefill.generation.session import Session
from vkprefill.server.engine.echo import prompt_chances
from vkprefill.server.engine.inbox import Inbox
from vkprefill.server.engine.jobs import Alive, Done, Job, JobEvent, Piece, Progress, Standing
from vkprefill.server.engine.logprobs import LogprobSampler, logprob_entry
from vkprefill.server.engine.prompt_details import map_details, prompt_details
from vkprefill.server.engine.turns import Turn, Turns
from vkprefill.work import OneAtATime, Pause, Work

PROGRESS_PAUSE_S = 1.0  # between reports nobody asked for
ALIVE_PAUSE_S = 1.0  # between two signs of life
STAGES = {"progress": "prefill", "scoring": "score", "checking": "check"}  # of progress, by the names of Hooks
DECODE = "decode"


class Cancelled(Exception):
    """The job is no longer wanted."""


class Answer(Turn):
    """job; session: that it runs on; begun: a piece was sent, see Turn."""

    def __init__(self, job: Job, session: Session, connection: Connection, inbox: Inbox, turns: Turns) -> None:
        super().__init__()
        self.job, self.session = job, session
        self._connection, self._inbox, self._turns = connection, inbox, turns
        found = session.find(job.token_ids, job.options)
        self._cached = found.length if found else 0
        self._reported = -math.inf  # when progress was sent
        self._sent = self.began  # when anything was
        self._map: dict[str, object] | None = None
        self._stage, self._done, self._total, self._predicted_n = STAGES["progress"], 0, len(job.token_ids), 0

    def work(self, scorer: OneAtATime) -> Work[Done]:
        """The answer, from the beginning. scorer: see Hooks."""
        job, waiting = self.job, []
        progress = {name: self._progress(stage, self._cached) for name, stage in STAGES.items()}
        own = {"make_sampler": self._make_sampler, "started": self.began, "clock": self._turns.clock, "scorer": scorer}
        if job.want_map:
            found = yield from map_work(self.session.model, job.token_ids, self._progress("layers", 0))
            self._map = map_details(found)
        if job.echo and job.num_logprobs is not None:
            self._send_piece(GenerationPart("", None, None, None), (yield from self._echoed(progress["progress"])))
        with closing(self.session.in_slices(job.token_ids, job.options, Hooks(**progress, **own))) as parts:
            for part in parts:
                if isinstance(part, Pause):
                    yield part
                    continue
                self._look_into_pipe()
                self._stage, self._predicted_n = DECODE, part.timings.predicted_n
                waiting += [logprob_entry(self.session.model.tokenizer, chances) for chances in part.chances]
                ended = part.finish_reason is not None
                if part.text or ended or part.revised_from is not None:
                    self._send_piece(part, [] if part.held else waiting)  # those whose text is shown
                    waiting = waiting if part.held else []
                if ended:
                    return self._ended(part)
        raise AssertionError("an answer ends with a finish reason")

    def standing(self, place: int) -> Standing:
        (share, wait_ms), own_ms = self._share_and_wait_ms(), self._turns.own_and_wait_s(self)[0] * 1e3
        where = self._stage, self._done, self._total, self._predicted_n
        return Standing(self.job.job_id, *where, place, share, own_ms, wait_ms, self.slices)

    def _echoed(self, progress: Callable[[int, int], None]) -> Work[list[dict[str, object]]]:
        """The prompt's tokens with their log-probabilities; the first one has none."""
        model, ids = self.session.model, self.job.token_ids
        found = [{**logprob_entry(model.tokenizer, [(ids[0], 0.0)]), "logprob": None, "top_logprobs": None}]
        with closing(prompt_chances(model, ids, self.job.num_logprobs, progress)) as chances:
            for some in chances:
                found += [logprob_entry(model.tokenizer, one) for one in some]
                yield Pause.SLICE
        return found

    def _ended(self, part: GenerationPart) -> Done:
        model, report = self.session.model, part.specprefill.as_dict()
        if self.job.want_details:
            report |= prompt_details(model.tokenizer, self.job.token_ids, self.session.importance)
        timings = {**part.timings.as_dict(), "wait_ms": self._share_and_wait_ms()[1]}
        memory = dict(model.device.allocated)
        return Done(
            self.job.job_id, part.finish_reason, timings, report, part.stop_text, memory=memory, layer_map=self._map
        )

    def _share_and_wait_ms(self) -> tuple[float, float]:
        """Of the time since it began, and what the queue took and others had."""
        own_s, wait_s = self._turns.own_and_wait_s(self)
        return own_s / max(own_s + wait_s, 1e-9), self.job.queued_ms + wait_s * 1e3

    def _make_sampler(self, config: SamplingConfig) -> Sampler:
        count = self.job.num_logprobs
        return Sampler(config) if count is None else LogprobSampler(config, count)

    def _progress(self, stage: str, cached: int) -> Callable[[int, int], None]:
        """cached: tokens that the stage has no work with."""

        def between(done: int, total: int) -> None:
            self._look_into_pipe()
            now, self._stage, self._done, self._total = time.perf_counter(), stage, done, total
            if self.job.want_progress or now - self._reported > PROGRESS_PAUSE_S:
                self._reported, ms = now, (now - self.began) * 1e3
                turns = len(self._turns), *self._share_and_wait_ms()
                self._send(Progress(self.job.job_id, stage, done, total, cached, ms, *turns))

        return between

    def _send_piece(self, part: GenerationPart, logprobs: list[dict[str, object]]) -> None:
        if part.text or logprobs or part.revised_from is not None:
            self.begun = True
            self._send(Piece(self.job.job_id, part.text, tuple(logprobs), part.revised_from))

    def _send(self, event: JobEvent | Alive) -> None:
        self._sent = time.perf_counter()
        self._connection.send(event)

    def _look_into_pipe(self) -> None:
        """Raise Cancelled for a job that is no longer wanted, EOFError when the server is gone.

        Shows that the job runs, too: tokens may bring no text, and submissions no progress.
        """
        if time.perf_counter() - self._sent > ALIVE_PAUSE_S:
            self._send(Alive())
        self._inbox.look()
        if self._inbox.is_cancelled(self.job.job_id):
            raise Cancelled
