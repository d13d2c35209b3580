"""How far a prompt is, told while it runs."""

from __future__ import annotations

from collections.abc import Callable

from vkprefill.vulkan.program import Program

PrefillProgress = Callable[[int, int], None]
"""progress(tokens done, tokens in all), called between submissions."""


def told(program: Program, done: int, count: int, total: int, progress: PrefillProgress | None) -> None:
    """Run the program of `count` tokens after `done` of all; each submission is told as a part of them."""
    per_submission, ran = count / program.num_submissions, 0

    def between() -> None:
        nonlocal ran
        ran += 1
        if progress:
            progress(min(total, int(done + ran * per_submission)), total)

    program.run(between)
