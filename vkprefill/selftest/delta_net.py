"""Checks of the gated delta net, each from a state that is not zero."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from vkprefill.engine import kernels
from vkprefill.selftest import reference
from vkprefill.selftest.forms import form_name, profiles, using
from vkprefill.selftest.trial import FUNCTIONS, SUMS, Check, Trial
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.profiles import Profile

KEY_HEADS, VALUE_HEADS, DIM, EPS = 2, 4, 64, 1e-6
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DIM
RUNS = (37, 3, 1)  # tokens one run after another
OFFSET = 20  # of the state in its buffer


def checks(device: Device) -> Iterator[Check]:
    for profile in profiles(device):
        yield Check(f"delta_rule, {form_name(profile)}", partial(_delta_rule, profile=profile))
    yield Check("causal_conv", _causal_conv)
    yield Check("delta_gates", _delta_gates)
    yield Check("gated_norm", _gated_norm)
    yield Check("delta_pattern", _delta_pattern)


def _delta_rule(trial: Trial, profile: Profile) -> None:
    q, k = (reference.l2_norm(trial.normal(sum(RUNS), KEY_HEADS, DIM), 0.0) for _ in range(2))
    q *= DIM**-0.5
    v = trial.normal(sum(RUNS), VALUE_HEADS, DIM)
    log_decay = -np.exp(trial.rng.uniform(-7, 2, (sum(RUNS), VALUE_HEADS)))
    beta = trial.rng.uniform(0, 1, log_decay.shape)
    q, k, log_decay, beta = (a.astype(np.float32).astype(np.float64) for a in (q, k, log_decay, beta))
    state = trial.normal(VALUE_HEADS, DIM, DIM)
    live, first = trial.put(np.concatenate([np.zeros(OFFSET), state.reshape(-1)])), 0
    for tokens in RUNS:
        run = slice(first, first + tokens)
        qkv = np.concatenate([a[run].reshape(tokens, -1) for a in (q, k, v)], axis=1)
        with using(trial.device, profile):
            p, o = trial.program(tokens), trial.output(tokens, VALUE_HEADS * DIM)
            kernels.delta_rule(
                p,
                trial.rows(qkv),
                trial.rows(np.stack([log_decay[run], beta[run]], axis=-1)),
                live,
                o,
                kernels.DeltaHeads(KEY_HEADS, VALUE_HEADS, DIM, DIM),
                state_offset=OFFSET,
            )
        p.run()
        wanted, state = reference.delta_rule(q[run], k[run], v[run], log_decay[run], beta[run], state)
        trial.compare(p, o, wanted.reshape(tokens, -1), SUMS)
        trial.compare(p, live.read()[OFFSET:], state.reshape(-1), SUMS)
        first += tokens


def _causal_conv(trial: Trial) -> None:
    weight, state, first = trial.normal(CHANNELS, 4), trial.normal(3, CHANNELS), 0
    x = trial.normal(sum(RUNS), CHANNELS)
    live, taps = trial.put(np.concatenate([np.zeros(OFFSET), state.reshape(-1)])), trial.put(weight)
    for tokens in RUNS:
        p, y = trial.program(tokens), trial.output(tokens, CHANNELS)
        heads = {"key_heads": KEY_HEADS, "key_dim": DIM, "eps": EPS}
        kernels.causal_conv(p, trial.rows(x[first : first + tokens]), taps, live, y, state_offset=OFFSET, **heads)
        p.run()
        wanted, state = reference.causal_conv(x[first : first + tokens], weight, state)
        wanted = wanted.reshape(tokens, -1, DIM)
        wanted[:, : 2 * KEY_HEADS] = reference.l2_norm(wanted[:, : 2 * KEY_HEADS], EPS)
        wanted[:, :KEY_HEADS] *= DIM**-0.5
        trial.compare(p, y, wanted.reshape(tokens, -1), FUNCTIONS)
        trial.compare(p, live.read()[OFFSET:], state.reshape(-1), FUNCTIONS)
        first += tokens


def _delta_gates(trial: Trial) -> None:
    tokens = RUNS[0]
    alpha, beta = 4 * trial.normal(tokens, VALUE_HEADS), 4 * trial.normal(tokens, VALUE_HEADS)
    dt, a = trial.normal(VALUE_HEADS), -np.abs(trial.normal(VALUE_HEADS))
    p, gates = trial.program(tokens), trial.output(tokens, VALUE_HEADS, 2)
    kernels.delta_gates(p, trial.rows(alpha), trial.rows(beta), trial.put(dt), trial.put(a), gates)
    p.run()
    wanted = np.stack([a * reference.softplus(alpha + dt), reference.sigmoid(beta)], axis=-1)
    trial.compare(p, gates, wanted, FUNCTIONS)


def _gated_norm(trial: Trial) -> None:
    tokens, width = RUNS[0], VALUE_HEADS * DIM
    o, z, weight = trial.normal(tokens, VALUE_HEADS, DIM), trial.normal(tokens, VALUE_HEADS, DIM), trial.normal(DIM)
    wanted = (reference.rms_norm(o, weight, EPS) * reference.silu(z)).reshape(tokens, width)
    given, half = (trial.rows(z.reshape(tokens, width)), trial.put(weight)), trial.halves(tokens, width)
    p, as_halves, out = trial.program(tokens), trial.program(tokens), trial.rows(o.reshape(tokens, width))
    kernels.gated_norm(as_halves, *given, out, eps=EPS, half=half)
    kernels.gated_norm(p, *given, out, eps=EPS)
    as_halves.run()
    p.run()
    trial.compare_halves(as_halves, half, wanted)
    trial.compare(p, out, wanted, FUNCTIONS)


def _delta_pattern(trial: Trial) -> None:
    """Rows of three queries over two segments of tokens: with the values, and the state before, they are the rule's
    outputs.
    """
    tokens, sizes, seen = sum(RUNS), (30, sum(RUNS) - 30), np.array([sum(RUNS), 30, 0, 7], np.uint32)
    heads, used = kernels.DeltaHeads(KEY_HEADS, VALUE_HEADS, DIM, DIM), seen > 0
    q, k = (reference.l2_norm(trial.normal(tokens, KEY_HEADS, DIM), 0.0) for _ in range(2))
    q *= DIM**-0.5
    v, state = trial.normal(tokens, VALUE_HEADS, DIM), trial.normal(VALUE_HEADS, DIM, DIM)
    log_decay, beta = -trial.rng.uniform(0, 0.1, (tokens, VALUE_HEADS)), trial.rng.uniform(0, 1, (tokens, VALUE_HEADS))
    q, k, log_decay, beta = (a.astype(np.float32).astype(np.float64) for a in (q, k, log_decay, beta))
    asked, given = q[seen.astype(int) - 1].reshape(len(seen), -1), trial.put(seen)
    p, w, found = trial.program(1), trial.output(len(seen), VALUE_HEADS * DIM), []
    for first, count in ((sizes[0], sizes[1]), (0, sizes[0])):
        part, rows = slice(first, first + count), trial.output(len(seen), VALUE_HEADS, count)
        keys = kernels.DeltaKeys(first, *(trial.put(a[part].reshape(count, -1)) for a in (k, log_decay, beta)))
        kernels.delta_pattern(p, given, trial.put(asked), keys, w, rows, heads)
        found.insert(0, rows)
    p.run()
    pattern = np.concatenate([rows.read()[used] for rows in found], axis=2).astype(np.float64)
    left = w.read()[used].reshape(-1, VALUE_HEADS, DIM).astype(np.float64)
    wanted, _ = reference.delta_rule(q, k, v, log_decay, beta, state)
    mixed = np.einsum("qhs,shv->qhv", pattern, v) + np.einsum("hvk,qhk->qhv", state, left)
    trial.compare(p, mixed, wanted[seen[used].astype(int) - 1], SUMS)
