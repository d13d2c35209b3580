"""What a Radeon 780M can be expected to do, by the bounds of phase_bounds.py: speeds with less of what they assume, and
the time to the first token of a long prompt, dense and with speculative prefill.

Part of the tables that `python -m benchmarks.bound_780m` prints; `python -m benchmarks.expected_780m` prints it alone.
Nothing is measured. What the bounds leave out (waits, power) makes true times longer, dense and speculative alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from benchmarks import kernel_bounds, phase_bounds
from tools.amd.executed import load_record
from tools.amd.recording import Dispatch
from vkprefill.benchmark.record import markdown_table
from vkprefill.engine.forward import SUBMISSION_S

PRECISIONS = ("full", "half")
ROWS, LOOKAHEAD, EARLY_LAYER = 512, 8, 11  # the draft's third layer of full attention of six
PROMPTS = {5000: (0.40, 1.16), 10000: (0.15, 1.42), 20000: (0.10, 1.65)}  # tokens: part that is kept, the fork's gain


@dataclass(frozen=True)
class Circumstances:
    """pair: cycles of two vector instructions that are issued at once; clock in Hz; memory in bytes a second."""

    pair: float = 1.0
    clock: float = kernel_bounds.CLOCK
    memory: float = kernel_bounds.MEMORY_BYTES

    def seconds(self, estimate: phase_bounds.Estimate) -> float:
        """The bound of a dispatch."""
        cost, counts = estimate.cost, estimate.counts
        pairs = (
            counts["pairs"] / counts["issue"] if counts else 1.0
        )  # of what is issued; all, where nothing was counted
        slower = kernel_bounds.CLOCK / self.clock
        return replace(
            cost,
            issue=cost.issue * slower * (1 + (self.pair - 1) * pairs),
            lds=cost.lds * slower,
            cache=cost.cache * slower,
            memory=cost.memory * kernel_bounds.MEMORY_BYTES / self.memory,
        ).bound


BEST = Circumstances()
LIKELY = [Circumstances(pair=2 / 1.6, clock=clock, memory=73e9) for clock in (2.7e9, 2.0e9)]


class ModelBounds:
    """Of one of phase_bounds' shapes in a precision."""

    def __init__(self, shape: str, precision: str) -> None:
        self.model = phase_bounds.load_shape(shape, precision)
        self.config, self._compiled = self.model.config, phase_bounds.rows_of_table()[1]
        self._executed = phase_bounds.executed_counts(load_record()["models"], shape)
        device = self.model.runner.device
        device.profile = replace(device.profile, submission_flop=self._product_speed() * SUBMISSION_S)

    def seconds(self, num_tokens: int, depth: int, last_layer: int | None = None, how: Circumstances = BEST) -> float:
        """A run of prefill after so many tokens, of all layers or up to the attention rows of last_layer."""
        return self._seconds(self._program(num_tokens, last_layer), num_tokens, depth, how)

    def step_seconds(self, depth: int, how: Circumstances = BEST) -> float:
        """A step of decode."""
        return self._seconds(self._program(1, None), 1, depth, how)

    def prompt_seconds(self, num_tokens: int, last_layer: int | None = None) -> float:
        """A prompt from the first token, in the engine's chunks."""
        return sum(
            self.seconds(count, depth, last_layer)
            for depth, count in chunks(num_tokens, self.model.runner.tokens_per_run)
        )

    def rows_seconds(self, num_keys: int, num_layers: int) -> float:
        """The softmax rows of one query: the keys of these layers, read once more."""
        return num_layers * 2 * self.config.kv_dim * num_keys / kernel_bounds.MEMORY_BYTES

    @cache  # noqa: B019 - as long as the bounds are
    def _program(self, num_tokens: int, last_layer: int | None) -> tuple[list[Dispatch], float]:
        """(dispatches, seconds of launches). Recorded for so many rows, so that no workgroup ends at once."""
        forward = self.model.runner.forward
        if num_tokens == 1:
            recorded = forward.record_rows("decode", 1).recorded
        else:
            recorded = forward.record_trunk("prefill", num_tokens, last_layer=last_layer).recorded
        return recorded, kernel_bounds.num_launches(recorded) * kernel_bounds.LAUNCH_S

    def _seconds(self, program: tuple[list[Dispatch], float], num_tokens: int, depth: int, how: Circumstances) -> float:
        recorded, launches = program
        kernels = phase_bounds.phase(recorded, self._compiled, self._executed, num_tokens, depth)
        return launches + sum(how.seconds(e) for estimates in kernels.values() for e in estimates)

    def _product_speed(self) -> float:
        """Operations a second of the product that the engine times when a model is loaded."""
        recorded, _ = self._program(ROWS, None)
        products = [d for d in recorded if d.shader.startswith("matmul")]
        work = {math.prod((d.push["rows"], d.push["K"])): d for d in products if not d.push["add"]}
        flop = 2.0 * ROWS * max(work)
        return flop / self._seconds(([work[max(work)]], 0.0), ROWS, 0, BEST)


def chunks(num_tokens: int, most: Callable[[int], int]) -> Iterable[tuple[int, int]]:
    """(tokens before it, tokens) of each; most: of a chunk after so many."""
    done = 0
    while done < num_tokens:
        count = min(most(done), num_tokens - done)
        yield done, count
        done += count


def first_token_ms(target: ModelBounds, draft: ModelBounds, num_tokens: int, kept: int) -> tuple[float, float, float]:
    """Dense; speculative with the whole draft and its look-ahead; with the draft stopped at EARLY_LAYER.

    The head of the first token and the choice of chunks are left out: less than a step of decode in each.
    """
    layers = len(draft.config.attention_layers)
    ahead = sum(draft.step_seconds(num_tokens + i) for i in range(LOOKAHEAD))
    rows = draft.rows_seconds(num_tokens, layers) * (1 + LOOKAHEAD)
    sparse = target.prompt_seconds(kept)
    whole = draft.prompt_seconds(num_tokens) + ahead + rows + sparse
    early_rows = draft.rows_seconds(num_tokens, sum(i <= EARLY_LAYER for i in draft.config.attention_layers))
    early = draft.prompt_seconds(num_tokens, last_layer=EARLY_LAYER) + early_rows + sparse
    return target.prompt_seconds(num_tokens) * 1e3, whole * 1e3, early * 1e3


SPEEDS = ("model", "phase", "precision", "bound", "dual issue 1.6, 73 GB/s, 2.7 GHz", "the same at 2.0 GHz")
FIRST_TOKEN = (
    "prompt",
    "kept",
    "precision",
    "dense ms",
    "whole draft ms",
    "gain",
    "early draft ms",
    "gain",
    "the fork's",
)


def tables() -> str:
    """Both, each with what it says before it."""
    models = {
        (shape, precision): ModelBounds(shape, precision) for shape in phase_bounds.SHAPES for precision in PRECISIONS
    }
    return "\n\n".join(
        [
            "### To be expected\n\nTokens a second of short prompts and of decode after none: the bound, and the same "
            "where two instructions issued at once are worth 1.6 instead of 2, memory gives 73 GB/s, at two clocks.",
            markdown_table(SPEEDS, speed_rows(models)),
            "Time to the first token by the bound, 4B, in chunks as the engine makes them: dense; with the 0.8B as "
            f"draft, {LOOKAHEAD} steps of look-ahead; with the draft stopped at the third of its six attention layers, "
            "no look-ahead. Gains beside those of the llama.cpp fork with the same parts kept, measured on such a GPU.",
            markdown_table(FIRST_TOKEN, first_token_rows(models)),
        ]
    )


def speed_rows(models: dict[tuple[str, str], ModelBounds]) -> Iterable[tuple[str, ...]]:
    ways = (BEST, *LIKELY)
    for (shape, precision), model in models.items():
        speeds = {
            f"prefill of {rows:,}": [rows / model.seconds(rows, 0, how=how) for how in ways]
            for rows in phase_bounds.CHUNKS.get(shape, (ROWS,))
        }
        speeds["decode"] = [1 / model.step_seconds(0, how) for how in ways]
        for phase, some in speeds.items():
            yield shape, phase, precision, *(f"{speed:,.0f}" for speed in some)


def first_token_rows(models: dict[tuple[str, str], ModelBounds]) -> Iterable[tuple[str, ...]]:
    for num_tokens, (part, fork) in PROMPTS.items():
        for precision in PRECISIONS:
            times = first_token_ms(
                models["4B", precision], models["0.8B", precision], num_tokens, round(part * num_tokens)
            )
            dense, whole, early = times
            gains = [f"{ms:,.0f}" for ms in (dense, whole)] + [f"{dense / whole:.2f}x", f"{early:,.0f}"]
            yield f"{num_tokens:,}", f"{part:.0%}", precision, *gains, f"{dense / early:.2f}x", f"{fork}x"


if __name__ == "__main__":
    print(tables())
