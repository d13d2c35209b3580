"""Checks of what drafts have beside an attention layer's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from gguf import GGMLQuantizationType

from vkprefill.engine import kernels
from vkprefill.engine.kept_rows import KEPT
from vkprefill.engine.sizes import DRAFT_CANDIDATES, MAX_CANDIDATES, MAX_DRAFTS, NO_TOKEN
from vkprefill.engine.step import StepWord
from vkprefill.selftest import reference
from vkprefill.selftest.trial import EXACT, FUNCTIONS, SUMS, Check, Trial
from vkprefill.selftest.weights import TYPES, random_weights

TOKENS, WIDTH, EPS = 19, 260, 1e-6
ROWS, COLUMNS, FIRST_ROWS, PAIRS = 70, 512, 40, 5


def checks() -> Iterator[Check]:
    yield Check("mtp_input", _input)
    yield Check("mtp_input as halves", _input_half)
    yield Check("keep_row", _keep_row)
    yield Check("last_accepted", _last_accepted)
    yield Check("next_draft", _next_draft)
    for kind in TYPES:
        yield Check(f"chosen rows of products, {kind.name}", partial(_rows, kind=kind))


def _pair(trial: Trial) -> tuple[list, np.ndarray]:
    """What mtp_input reads, and what it makes of that."""
    e, h, waited = trial.normal(TOKENS, WIDTH), trial.normal(TOKENS, WIDTH), trial.normal(WIDTH)
    weights = trial.normal(WIDTH), trial.normal(WIDTH)
    before = np.concatenate([waited[None], h[:-1]])
    halves = [reference.rms_norm(x, weight, EPS) for x, weight in zip((e, before), weights, strict=True)]
    return [trial.rows(e), trial.rows(h), *map(trial.put, (waited, *weights))], np.concatenate(halves, axis=-1)


def _input(trial: Trial) -> None:
    given, wanted = _pair(trial)
    p, y = trial.program(TOKENS), trial.output(TOKENS, 2 * WIDTH)
    kernels.mtp_input(p, *given, y, eps=EPS)
    p.run()
    trial.compare(p, y, wanted, FUNCTIONS)


def _input_half(trial: Trial) -> None:
    given, wanted = _pair(trial)
    p, half = trial.program(TOKENS), trial.halves(TOKENS, 2 * WIDTH)
    kernels.mtp_input(p, *given, trial.output(TOKENS, 2 * WIDTH), eps=EPS, half=half)
    p.run()
    trial.compare_halves(p, half, wanted)


def _keep_row(trial: Trial) -> None:
    x = trial.normal(TOKENS, WIDTH)
    p, kept = trial.program(TOKENS), trial.output(WIDTH)
    kernels.keep_row(p, trial.rows(x), kept)
    p.run()
    trial.compare(p, kept, x[-1], EXACT)


def _last_accepted(trial: Trial) -> None:
    rows, x, kept = 3, trial.normal(3, WIDTH), trial.normal(KEPT, WIDTH)
    p, waited, live = trial.program(rows, WAITING=2), trial.output(WIDTH), trial.put(kept)
    kernels.last_accepted(p, live, waited, keep=trial.rows(x))
    p.run()
    trial.compare(p, waited, kept[1], EXACT)
    trial.compare(p, live, np.concatenate([x, kept[rows:]]), EXACT)


def _next_draft(trial: Trial) -> None:
    found = trial.rng.integers(0, FIRST_ROWS, (1, MAX_CANDIDATES, 2)).astype(np.uint32)
    found[0, :2, 1] = FIRST_ROWS + 2, FIRST_ROWS
    ids, rope = np.array([300, 77, 9000], np.uint32), trial.normal(4, PAIRS, 2)
    p = trial.program(1, CACHE_LEN=17, NUM_CANDIDATES=DRAFT_CANDIDATES)
    tokens, table, drafts = trial.words(4), trial.put(rope), trial.words(MAX_DRAFTS, DRAFT_CANDIDATES, 2)
    given = trial.put(found), trial.put(ids), tokens, table, drafts
    kernels.next_draft(p, *given, row=1, first_rows=FIRST_ROWS)
    p.run()
    wanted = found[0, :DRAFT_CANDIDATES].astype(np.float64)
    wanted[:2, 1] = 9000, 300
    trial.compare(p, drafts.read()[1], wanted, EXACT)
    trial.compare(p, tokens.read(), np.array([9000, 0, 0, 0]), EXACT)
    trial.compare(p, table, np.concatenate([rope[2:3], rope[1:]]), EXACT)
    trial.compare(p, p.step.read()[StepWord.CACHE_LEN], np.array(18), EXACT)


def _rows(trial: Trial, kind: GGMLQuantizationType) -> None:
    data, weight = random_weights(trial.rng, ROWS, COLUMNS, kind)
    x, ids = trial.normal(1, COLUMNS), np.array([69, 0, 31, NO_TOKEN, 32], np.uint32)
    p, y = trial.program(1), trial.output(1, 7)
    kernels.matvec_rows(p, trial.put(x), trial.matrix(data, kind, COLUMNS), trial.put(ids), y, y_offset=2)
    p.run()
    wanted = reference.linear(x, weight)[0][[69, 0, 31, 32]]
    trial.compare(p, y.read()[0, [2, 3, 4, 6]], wanted, SUMS)
    trial.compare(p, y.read()[0, [5]], np.array([np.finfo(np.float32).min]), EXACT)
