"""Speed of a loaded model: prefill, decode at a depth, first token dense and speculative. Prompts are random tokens.

A rate is given per second and, on CPU devices, per second of process CPU time, which other programs on the machine
disturb less. On GPUs the CPU time says nothing and is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.benchmark.record import Figure
from vkprefill.engine.model import Model
from vkprefill.engine.step_input import Best
from vkprefill.specprefill.pipeline import SpecPrefill

Report = Callable[[str], None]
"""report(text): what is measured now."""

SEED = 1


@dataclass(frozen=True)
class Times:
    """What a piece of work took: seconds on the clock, and of CPU time over all threads of this process."""

    wall_s: float
    cpu_s: float


def timed(work: Callable[[], object]) -> Times:
    start, start_cpu = time.perf_counter(), time.process_time()
    work()
    return Times(time.perf_counter() - start, time.process_time() - start_cpu)


def has_cpu_time(model: Model) -> bool:
    """Whether the process's CPU time is what the device works."""
    return model.device.info.type == "cpu"


def rates(name: str, amount: float, times: Sequence[Times], cpu: bool, unit: str = "tokens") -> list[Figure]:
    """amount / time of each repetition."""
    figures = [Figure(name, f"{unit}/s", tuple(amount / t.wall_s for t in times))]
    if cpu:
        figures.append(Figure(name, f"{unit}/CPU-s", tuple(amount / t.cpu_s for t in times)))
    return figures


def seconds(name: str, times: Sequence[Times], cpu: bool) -> list[Figure]:
    """The times themselves."""
    figures = [Figure(name, "s", tuple(t.wall_s for t in times))]
    if cpu:
        figures.append(Figure(name, "CPU-s", tuple(t.cpu_s for t in times)))
    return figures


def random_tokens(count: int, vocab_size: int, seed: int = SEED) -> list[int]:
    return np.random.Generator(np.random.PCG64(seed)).integers(0, vocab_size, count).tolist()


def measure_speed(
    model: Model,
    prompts: Sequence[int],
    num_decode: int,
    depths: Sequence[int],
    repetitions: int,
    report: Report = lambda text: None,
) -> list[Figure]:
    """Prefill of each length into an empty cache, then num_decode single tokens (0: none) after each depth.

    Each is run once before the repetitions, not counted: that compiles what is not compiled yet.
    """
    figures, cpu, cache = [], has_cpu_time(model), model.new_cache()
    tokens = random_tokens(max([*prompts, *depths, num_decode]), model.config.vocab_size)
    try:
        for length in prompts:
            report(f"prefill {length}")
            times = []
            for _ in range(repetitions + 1):
                cache.reset()
                times.append(timed(lambda n=length: model.prefill_candidates(tokens[:n], cache, Best(1))))
            figures += rates(f"prefill {length}", length, times[1:], cpu)
        for depth in depths if num_decode else ():
            report(f"decode at {depth}")
            cache.reset()
            if depth:
                model.extend(tokens[:depth], cache)
            start, times = cache.snapshot(), []
            model.decode_candidates(tokens[0], cache, Best(1))
            for _ in range(repetitions):
                cache.restore(start)
                times.append(
                    timed(lambda: [model.decode_candidates(token, cache, Best(1)) for token in tokens[:num_decode]])
                )
            start.free()
            figures += rates(f"decode {num_decode} at {depth}", num_decode, times, cpu)
    finally:
        cache.close()
    return figures


def measure_first_token(
    spec: SpecPrefill, length: int, repetitions: int, report: Report = lambda text: None
) -> tuple[list[Figure], dict[str, object]]:
    """Figures of the time to the logits of a prompt's last token, dense and by speculative prefill; what was kept.

    Dense and speculative take turns, each time with a new prompt, of which the draft remembers nothing. One turn is run
    before, not counted.
    """
    dense, sparse, kept, cpu = [], [], [], has_cpu_time(spec.target)
    status = ""
    for repetition in range(repetitions + 1):
        report(f"first token of {length}, {repetition} of {repetitions}")
        tokens = random_tokens(length, spec.target.config.vocab_size, SEED + repetition)
        with_draft = []

        def speculative(tokens: list[int] = tokens, results: list = with_draft) -> None:
            results.append(spec.prefill(tokens))

        dense.append(timed(lambda tokens=tokens: spec.target.prefill(tokens)))
        sparse.append(timed(speculative))
        with_draft[0].cache.close()
        kept.append(with_draft[0].report.kept_n)
        status = with_draft[0].status
    figures = [
        *seconds(f"first token of {length}, dense", dense[1:], cpu),
        *seconds(f"first token of {length}, speculative", sparse[1:], cpu),
    ]
    return figures, {"tokens": length, "kept": kept[1:], "status": status}
