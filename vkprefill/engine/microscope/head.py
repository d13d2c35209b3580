"""The model's head on rows that lie on the host: the logits of recorded rows, and the logit lens."""

from __future__ import annotations

import numpy as np

from vkprefill.engine.halves import SHORT_RUN
from vkprefill.engine.runner import Runner
from vkprefill.engine.step import StepWord
from vkprefill.vulkan.program import Program


class Head:
    """Programs are recorded when they are first needed. It takes no memory of the device's."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._programs: dict[bool, Program] = {}

    def logits(self, rows: np.ndarray, *, normed: bool) -> np.ndarray:
        """float32 [n, V] of rows [n, D]; normed: they have been through the last norm."""
        run = self._runner
        with run.turn:
            if normed not in self._programs:
                forward, scratch = run.forward, run.scratch
                made = forward.record_head_rows() if normed else forward.record_logits(scratch.logits)
                self._programs[normed] = made
            found = np.empty((len(rows), run.config.vocab_size), np.float32)
            target = run.scratch.h if normed else run.scratch.x
            for first in range(0, len(rows), SHORT_RUN):
                part = np.ascontiguousarray(rows[first : first + SHORT_RUN], np.float32)
                run.device.upload(target.part("rows", 0, part.shape), [part])
                run.step.set_words({StepWord.NUM_TOKENS: len(part)})
                self._programs[normed].run()
                found[first : first + len(part)] = run.scratch.logits.view()[: len(part)]
            return found
