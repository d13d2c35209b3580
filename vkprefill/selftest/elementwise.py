"""Checks of what works on a row or a number at a time: norms, activations, rotations, copies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vkprefill.benchmark.kernels import FMA_PER_COUNT
from vkprefill.engine import kernels
from vkprefill.selftest import reference
from vkprefill.selftest.trial import EXACT, FUNCTIONS, SUMS, Check, Trial

TOKENS, WIDTH, EPS = 19, 1028, 1e-6  # a width that is no multiple of a workgroup
HEADS, HEAD_DIM, ROTARY = 3, 64, 32


def checks() -> Iterator[Check]:
    yield Check("copies and fills", _memory)
    yield Check("multiply-adds", _multiply_add)
    yield Check("rms_norm", _rms_norm)
    yield Check("rms_norm with halves", _rms_norm_half)
    yield Check("swiglu", _swiglu)
    yield Check("swiglu as halves", _swiglu_half)
    yield Check("head_norm_rope", _head_norm_rope)


def _memory(trial: Trial) -> None:
    values = trial.normal(67, 4)
    source, target = trial.put(values), trial.output(67, 4)
    p = trial.program(1)
    p.fill(target, int(np.float32(2.5).view(np.uint32)))
    p.copy(source, target, 5, 3, 200)
    p.run()
    wanted = np.full(67 * 4, 2.5)
    wanted[3:203] = values.reshape(-1)[5:205]
    trial.compare(p, target, wanted.reshape(67, 4), EXACT)

    wide, target = trial.program(1), trial.output(67, 4)
    wide.dispatch("copy_wide", [source, target], (2, 1, 1), constants={"LOCAL_SIZE": 8}, push={"count": 67})
    wide.run()
    trial.compare(wide, target, values, EXACT)


def _multiply_add(trial: Trial) -> None:
    """16 chains a = a factor + addend for each invocation, summed."""
    count, local, push = 2, 32, {"factor": 0.999, "addend": 0.5}
    p, y = trial.program(1), trial.output(local)
    p.dispatch("multiply_add", [y], (1, 1, 1), constants={"LOCAL_SIZE": local}, push={"count": count, **push})
    p.run()
    chains = np.arange(local)[:, None] + np.arange(16.0)
    for _ in range(count * FMA_PER_COUNT // 16):
        chains = chains * np.float32(push["factor"]) + push["addend"]
    trial.compare(p, y, chains.sum(1), SUMS)


def _rms_norm(trial: Trial) -> None:
    x, weight = trial.normal(TOKENS, WIDTH), trial.normal(WIDTH)
    p, y, last = trial.program(TOKENS), trial.output(TOKENS, WIDTH), trial.output(1, WIDTH)
    given, factors = trial.rows(x), trial.put(weight)
    kernels.rms_norm(p, given, factors, y, eps=EPS)
    kernels.rms_norm(p, given, factors, last, eps=EPS, last_row=True)
    p.run()
    wanted = reference.rms_norm(x, weight, EPS)
    trial.compare(p, y, wanted, FUNCTIONS)
    trial.compare(p, last, wanted[-1:], FUNCTIONS)


def _rms_norm_half(trial: Trial) -> None:
    x, weight = trial.normal(TOKENS, WIDTH), trial.normal(WIDTH)
    p, y, half = trial.program(TOKENS), trial.output(TOKENS, WIDTH), trial.halves(TOKENS, WIDTH)
    kernels.rms_norm(p, trial.rows(x), trial.put(weight), y, eps=EPS, half=half)
    p.run()
    wanted = reference.rms_norm(x, weight, EPS)
    trial.compare(p, y, wanted, FUNCTIONS)
    halves, factors = reference.half_rows(y.read().astype(np.float64))
    trial.compare(p, half.words.read()[:TOKENS].view(np.uint16), halves.view(np.uint16), EXACT)
    trial.compare(p, half.factors, factors[:, 0], EXACT)


def _swiglu(trial: Trial) -> None:
    up, gate = trial.normal(TOKENS, WIDTH), 4 * trial.normal(TOKENS, WIDTH)
    p, out = trial.program(TOKENS), trial.rows(gate)
    kernels.swiglu(p, trial.rows(up), out)
    p.run()
    trial.compare(p, out, reference.silu(gate) * up, FUNCTIONS)


def _swiglu_half(trial: Trial) -> None:
    up, gate = trial.normal(TOKENS, WIDTH), 4 * trial.normal(TOKENS, WIDTH)
    p, half = trial.program(TOKENS), trial.halves(TOKENS, WIDTH)
    kernels.swiglu(p, trial.rows(up), trial.rows(gate), half)
    p.run()
    trial.compare_halves(p, half, reference.silu(gate) * up)


def _head_norm_rope(trial: Trial) -> None:
    """Every second head's width is a gate, as in the joint projection of queries."""
    joint, weight = trial.normal(TOKENS, HEADS, 2, HEAD_DIM), trial.normal(HEAD_DIM)
    table = reference.rope_table(np.arange(TOKENS) * 7.0, ROTARY).astype(np.float32).astype(np.float64)
    p, y = trial.program(TOKENS), trial.output(TOKENS, HEADS * HEAD_DIM)
    given = trial.rows(joint.reshape(TOKENS, -1)), trial.put(weight), trial.rows(table)
    kernels.head_norm_rope(p, *given, y, heads=HEADS, eps=EPS)
    p.run()
    wanted = reference.rotate(reference.rms_norm(joint[:, :, 0], weight, EPS), table)
    trial.compare(p, y, wanted.reshape(TOKENS, -1), FUNCTIONS)
