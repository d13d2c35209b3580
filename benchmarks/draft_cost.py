#!/usr/bin/env python3
"""What decoding with drafts of the multi-token-prediction block costs, counted from recorded programs: bytes and
dispatches of a round, and the time that they take on a Radeon 780M by kernel_bounds.py. Nothing is measured.

python -m benchmarks.draft_cost [--write]    print the tables, or write benchmarks/DRAFTS_780M.md

A round: a chain of n draft rows, one run of n + 1 rows (the program of 1, 2, 4 or 8 that holds them) which also feeds
the block, and, where drafts are right with probability a each, (1 - a^(n+1)) / (1 - a) tokens.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks import kernel_bounds, phase_bounds
from tools.amd.counts import Counts
from tools.amd.executed import load_record
from tools.amd.recording import Dispatch, load_recording
from tools.model.mixes import tensor_type
from tools.model.shapes import make_config
from vkprefill.benchmark.record import markdown_table
from vkprefill.drafting.depth import Depth
from vkprefill.drafting.settings import SpecDecodeConfig
from vkprefill.engine.draft_head import DraftHead
from vkprefill.engine.kept_rows import FEW_ROWS, program_rows
from vkprefill.engine.sizes import HEAD_ROWS
from vkprefill.gguf.tensors import mtp_specs, tensor_specs

DOCUMENT = Path(__file__).parent / "DRAFTS_780M.md"
SHAPES = ("0.8B", "4B", "9B")
HEADS = {f"{HEAD_ROWS:,} rows": HEAD_ROWS, "whole": 0}
ACCEPTANCES, MOST_DRAFTS = (0.5, 0.6, 0.7, 0.8, 0.9), 4
DEPTH = 1024  # tokens in the cache
TARGET = 0.77, 2, {"4B": 1.9, "0.8B": 1.6}  # accepted of drafted, drafts, wanted speed-up
MIB = 2**20


@dataclass(frozen=True)
class Work:
    """Of a program. Bytes that come from memory or go there: weights; recurrent states, with the rows that wait; keys
    and values; results beyond what the L2 cache holds. dispatches; seconds: the bound, with launches.
    """

    weights: float = 0.0
    states: float = 0.0
    keys: float = 0.0
    results: float = 0.0
    dispatches: float = 0
    seconds: float = 0.0

    @property
    def bytes(self) -> float:
        return self.weights + self.states + self.keys + self.results

    def __add__(self, other: Work) -> Work:
        return self._each(other, lambda a, b: a + b)

    def __sub__(self, other: Work) -> Work:
        return self._each(other, lambda a, b: a - b)

    def per(self, count: float) -> Work:
        """A part of it: of one token of so many."""
        return self._each(self, lambda a, _: a / count)

    def _each(self, other: Work, combine: Callable[[float, float], float]) -> Work:
        return Work(*(combine(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))


# ---- formulas -------------------------------------------------------------------------------------------------------


def tokens_of_round(acceptance: float, drafts: int) -> float:
    """Emitted on average where each draft is right with this probability if those before it are: 1 + a + ... + a^n."""
    return sum(acceptance**i for i in range(drafts + 1))


def tokens_at_rate(rate: float, drafts: int) -> float:
    """The same, of the part of all drafts that is accepted."""
    return 1 + drafts * rate


def speed_up(tokens: float, run: float, chain: float, feed: float) -> float:
    """Over decoding one by one; costs of the run of n + 1 rows (v), the chain (n c) and the feeding (u), in steps."""
    return tokens / (run + chain + feed)


# ---- one dispatch ---------------------------------------------------------------------------------------------------


def work_bytes(d: Dispatch, rows: int, depth: int) -> Work:
    """Bytes of a dispatch for so many rows in use, after `depth` tokens; as many rows wait as run."""
    c = d.constants
    results = _results_bytes(d, rows)
    if d.shader.startswith("matvec_rows_"):  # rows of the head chosen one by one
        all_rows = kernel_bounds.weight_bytes(replace(d, shader=d.shader.replace("_rows_", "_")))
        return Work(weights=all_rows / d.push["N"] * d.workgroups[0], dispatches=1)
    if d.shader.startswith("matvec_"):
        return Work(weights=kernel_bounds.weight_bytes(d), results=results, dispatches=1)
    if re.fullmatch(kernel_bounds.ATTENTION, d.shader):
        item = 4 if d.shader.endswith("f32") else 2
        return Work(keys=2 * item * c["G"] * c["Dh"] * (depth + rows), dispatches=1)
    if d.shader.startswith("kv_store_"):
        item = 4 if d.shader.endswith("f32") else 2
        return Work(keys=2 * item * c["G"] * c["Dh"] * rows, dispatches=1)
    if d.shader == "delta_rows":  # the state in and out; queries, keys, values and gates of waiting and new rows
        kept = 2 * c["Hk"] * c["Dk"] + c["Hv"] * c["Dv"] + 2 * c["Hv"]
        return Work(states=8 * c["Hv"] * c["Dv"] * c["Dk"] + 4 * 2 * rows * kept, dispatches=1)
    if d.shader == "delta_inputs":  # three rows in and out; raw rows read and kept, what came of them kept
        return Work(states=4 * (6 * c["C"] + rows * (3 * c["C"] + 2 * c["Hv"])), dispatches=1)
    return Work(results=results, dispatches=1)


def _results_bytes(d: Dispatch, rows: int) -> float:
    """Of the logits, where those of the rows in use do not fit into L2: written by the head, read by top_k."""
    logits = next((buffer for buffer in d.buffers if buffer.label in ("logits", "draft logits")), None)
    num_bytes = rows * logits.num_bytes / logits.shape[0] if logits else 0.0
    return num_bytes if num_bytes > kernel_bounds.L2_BYTES else 0.0


def work_seconds(d: Dispatch, tables: Tables, rows: int, depth: int) -> float:
    """The bound: the longest of what each resource needs. Memory is by the bytes above. Products, attention and delta
    rule by their compiled loops, since few numbers of rows were executed; the small kernels by what was executed.
    """
    estimate, counts = kernel_bounds.Cost(), None
    if d.shader == "delta_rows":  # a token costs what it costs the prompt's kernel; as many wait as run
        rule = tables.compiled(replace(d, shader="delta_rule"))
        waves = kernel_bounds.num_waves(d, rule, d.constants["LOCAL_SIZE"])
        elements = d.constants["ROWS"] * d.constants["Dk"] / d.constants["LANES"]
        per_wave = rule["loops"]["loop"]["valu"] * elements * 2 * rows
        estimate = kernel_bounds.Cost(**kernel_bounds.issued(waves, per_wave, rule["wave"]))
    elif d.shader.startswith("matvec_rows_"):  # the few chosen rows of the head: only their bytes
        pass
    elif d.shader.startswith("matvec_") or re.fullmatch(kernel_bounds.ATTENTION, d.shader):
        estimate = kernel_bounds.cost(d, tables.compiled(d), rows, depth)
    else:
        counts = tables.counts(d, rows, depth)
    cost = kernel_bounds.with_counts(estimate, counts)
    return max(cost.issue, cost.lds, cost.cache, work_bytes(d, rows, depth).bytes / kernel_bounds.MEMORY_BYTES)


class Tables:
    """What is known of the kernels of a shape: steps of decode that were executed, those of the 4B for a shape without,
    and what the compiler makes of them.
    """

    def __init__(self, shape: str) -> None:
        models = load_record()["models"]
        self._executed = Counts(row for row in models.get(shape, models["4B"]) if row["program"] == "decode")
        self._compiled = phase_bounds.rows_of_table()[1]
        self.substituted: set[str] = set()

    def counts(self, d: Dispatch, rows: int, depth: int) -> dict[str, float] | None:
        """Executed, of a small kernel. One workgroup of delta_inputs takes all rows, and was executed with one."""
        about = {"shader": d.shader, "constants": d.constants, "push": d.push, "grid": d.workgroups}
        counts = self._executed.of(about, rows, depth)
        if counts is None or d.shader != "delta_inputs":
            return counts
        return {name: n if name in ("waves", "wave") else n * rows for name, n in counts.items()}

    def compiled(self, d: Dispatch) -> dict:
        """The kernel's row of the compiler's table, or that of the same shader with the nearest constants."""
        key = d.shader, tuple(d.constants.items())
        if key in self._compiled:
            return self._compiled[key]
        others = [row for (shader, _), row in self._compiled.items() if shader == d.shader]
        if not others:
            raise SystemExit(f"{d.shader}: not in the table; run: python -m tools.amd_compile --newest --update")
        self.substituted.add(d.shader)
        return max(others, key=lambda row: sum(row["constants"].get(k) == v for k, v in d.constants.items()))


# ---- whole programs -------------------------------------------------------------------------------------------------


def program_work(dispatches: Sequence[Dispatch], tables: Tables, rows: int, depth: int) -> Work:
    total, known = Work(seconds=kernel_bounds.num_launches(dispatches) * kernel_bounds.LAUNCH_S), {}
    for d in dispatches:
        sizes = [d.push.get(name) for name in ("rows", "K", "add")]
        key = d.shader, *d.constants.items(), *sizes, d.workgroups, *(b.shape for b in d.buffers)
        if key not in known:  # layers are alike
            known[key] = work_bytes(d, rows, depth) + Work(seconds=work_seconds(d, tables, rows, depth))
        total += known[key]
    return total


class DraftCosts:
    """Of a shape: `runs[R]` of R rows without the block, `feeds[R]` what the block adds to them, `chains[head][n]`."""

    def __init__(self, shape: str, depth: int = DEPTH) -> None:
        config = make_config(shape, num_nextn_layers=1)
        layer = make_config(shape).num_hidden_layers
        specs = tensor_specs(make_config(shape)) + [s for some in mtp_specs(make_config(shape), layer) for s in some]
        types = {spec.name: tensor_type(spec, phase_bounds.MIX, config) for spec in specs}
        plain, whole = (
            load_recording(shape, types.__getitem__, phase_bounds.KV_TYPE, set(), with_block=block)
            for block in (False, True)
        )
        self.tables, forward = Tables(shape), whole.runner.forward

        def work(program: object, rows: int) -> Work:
            return program_work(program.recorded, self.tables, rows, depth)

        self.runs = {rows: work(plain.runner.forward.record_rows("decode", rows), rows) for rows in FEW_ROWS}
        self.feeds = {rows: work(forward.record_rows("decode", rows), rows) - self.runs[rows] for rows in FEW_ROWS}
        self.chains: dict[str, list[Work]] = {}
        for name, rows in HEADS.items():
            head = DraftHead.cut(whole.runner.mtp.shared_head_head, rows)
            chains = [work(forward.record_drafts(n, head), 1) for n in range(1, MOST_DRAFTS + 1)]
            self.chains[name] = [Work(), *chains]

    @property
    def step(self) -> Work:
        """Of plain decoding."""
        return self.runs[1]

    def round(self, head: str, drafts: int) -> Work:
        """All of a round; without drafts a step of decode."""
        if not drafts:
            return self.step
        rows = program_rows(drafts + 1)
        return self.runs[rows] + self.feeds[rows] + self.chains[head][drafts]

    def speed_ups(self, head: str, drafts: int, tokens: float) -> tuple[float, float]:
        """(by bytes, by the bound)."""
        if not drafts:
            return tokens, tokens
        rows = program_rows(drafts + 1)
        parts = self.runs[rows], self.chains[head][drafts], self.feeds[rows]
        return tuple(
            speed_up(tokens, *(getattr(part, what) / getattr(self.step, what) for part in parts))
            for what in ("bytes", "seconds")
        )


def unpaid(costs: DraftCosts, head: str, acceptance: float, tokens: int) -> tuple[int, Work, Work]:
    """Of so many tokens by default settings where a draft is right with this probability: (rounds with drafts, all
    work, that of decoding them without the block). How much is drafted follows from times by the bound.
    """
    depth, chance = Depth(SpecDecodeConfig().n_max), random.Random(1)
    rounds, done, total = 0, 0, Work()
    while done < tokens:
        drafts, accepted = depth.choose(), 0
        while accepted < drafts and chance.random() < acceptance:
            accepted += 1
        work = costs.round(head, drafts) if drafts else costs.step + costs.feeds[1]
        depth.note(drafts, accepted, work.seconds)
        rounds, done, total = rounds + (drafts > 0), done + accepted + 1, total + work
    return rounds, total, costs.step.per(1 / done)


# ---- tables ---------------------------------------------------------------------------------------------------------

STEPS = ("model", "v(1) MiB", "v(1) ms", "by", "v(2)", "v(3)", "v(4)", "v(8)", "c, cut", "c, whole", "u(1)", "u(4)")
REACHED = ("model", "head", "tokens a round", "by bytes", "by the bound", "wanted", "")
UNPAID = ("model", "head", "tokens", "rounds with drafts", "bytes", "dispatches", "by the bound")
UNPAID_ACCEPTANCE, UNPAID_TOKENS = 0.02, (256, 1024, 4096)
ROUNDS = ("drafts", "acceptance", "tokens a round", "weights MiB", "states MiB", "keys MiB", "dispatches")
ROUNDS += ("speed-up by bytes", "by the bound")


def step_rows(shape: str, costs: DraftCosts) -> Iterable[tuple[str, ...]]:
    """v, c and u in steps of plain decoding."""
    for what, name in (("bytes", "bytes"), ("seconds", "bound")):
        one = getattr(costs.step, what)
        parts = [costs.runs[program_rows(m)] for m in (2, 3, 4, 8)]
        parts += [costs.chains[head][2] - costs.chains[head][1] for head in HEADS]
        parts += [costs.feeds[1], costs.feeds[4]]
        cells = [f"{getattr(part, what) / one:.3f}" for part in parts]
        yield shape, f"{costs.step.bytes / MIB:,.0f}", f"{costs.step.seconds * 1e3:.2f}", name, *cells


def reached_rows(shape: str, costs: DraftCosts) -> Iterable[tuple[str, ...]]:
    rate, drafts, wanted = TARGET
    tokens = tokens_at_rate(rate, drafts)
    for head in HEADS:
        found = costs.speed_ups(head, drafts, tokens)
        least = wanted.get(shape)
        verdict = "" if least is None else "reached" if min(found) >= least else "not reached"
        shown = "-" if least is None else f"{least}"
        yield shape, head, f"{tokens:.2f}", *(f"{s:.2f}" for s in found), shown, verdict


def unpaid_rows(shape: str, costs: DraftCosts) -> Iterable[tuple[str, ...]]:
    """Where drafts are seldom right, over decoding without the block."""
    for head in HEADS:
        for tokens in UNPAID_TOKENS:
            rounds, total, plain = unpaid(costs, head, UNPAID_ACCEPTANCE, tokens)
            ratios = [getattr(total, what) / getattr(plain, what) for what in ("bytes", "dispatches", "seconds")]
            yield shape, head, f"{tokens:,}", f"{rounds}", *(f"{ratio:.3f}" for ratio in ratios)


def round_rows(costs: DraftCosts, head: str) -> Iterable[tuple[str, ...]]:
    """Bytes and dispatches for each emitted token."""
    for drafts in range(MOST_DRAFTS + 1):
        for acceptance in ACCEPTANCES if drafts else (0.0,):
            tokens = tokens_of_round(acceptance, drafts)
            each = costs.round(head, drafts).per(tokens)
            sizes = [f"{size / MIB:,.1f}" for size in (each.weights, each.states, each.keys)]
            ups = [f"{s:.2f}" for s in costs.speed_ups(head, drafts, tokens)]
            shown = f"{acceptance}" if drafts else "-"
            yield f"{drafts}", shown, f"{tokens:.2f}", *sizes, f"{each.dispatches:,.0f}", *ups


def all_costs() -> dict[str, DraftCosts]:
    return {shape: DraftCosts(shape) for shape in SHAPES}


def document(of_shapes: dict[str, DraftCosts]) -> str:
    steps = [row for shape, costs in of_shapes.items() for row in step_rows(shape, costs)]
    reached = [row for shape, costs in of_shapes.items() for row in reached_rows(shape, costs)]
    rate, drafts, _ = TARGET
    parts = [
        "# What drafts cost on a Radeon 780M",
        "Written by `python -m benchmarks.draft_cost --write`; what the figures mean and what they leave out is in "
        f"`README.md` here. Mix {phase_bounds.MIX}, half-precision cache, after {DEPTH:,} tokens.",
        "v, c and u in steps of plain decoding (a model without the block), by bytes and by the bound:",
        markdown_table(STEPS, steps),
        f"With {drafts} drafts a round of which {rate:.0%} are accepted:",
        markdown_table(REACHED, reached),
        f"Where drafts are seldom right ({UNPAID_ACCEPTANCE:.0%}), with the settings by default, from the first token "
        "on; over decoding without the block:",
        markdown_table(UNPAID, [row for shape, costs in of_shapes.items() for row in unpaid_rows(shape, costs)]),
    ]
    for shape, costs in of_shapes.items():
        for head in HEADS:
            parts += [f"{shape}, head of the drafts: {head}; for each emitted token:"]
            parts += [markdown_table(ROUNDS, round_rows(costs, head))]
    unknown = sorted(set().union(*(costs.tables.substituted for costs in of_shapes.values())))
    parts.append(f"Compiled with other constants than these programs': {', '.join(unknown) or 'none'}.")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    write = parser.parse_args().write
    text = document(all_costs())
    if write:
        DOCUMENT.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
