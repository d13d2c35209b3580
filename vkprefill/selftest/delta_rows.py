"""Checks of the delta net of a few rows, of which the first are accepted later."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import StateOffsets
from vkprefill.engine.kept_rows import KEPT, kept_layer_size
from vkprefill.selftest import reference
from vkprefill.selftest.forms import form_name, profiles, using
from vkprefill.selftest.trial import FUNCTIONS, SUMS, Check, Trial
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.profiles import Profile
from vkprefill.vulkan.program import Program

HEADS, EPS = kernels.DeltaHeads(2, 4, 64, 64), 1e-6
RUNS, ACCEPTED = (3, 5, 1), (2, 5, 1)  # rows of each run, and of them those that become part of the state
CONV, RECURRENT = 3 * HEADS.channels, HEADS.Hv * HEADS.Dv * HEADS.Dk  # floats of the states
GAP = 8  # between the layers' states in their buffer


def checks(device: Device) -> Iterator[Check]:
    for profile in profiles(device):
        yield Check(f"rows that may be taken back, {form_name(profile)}", partial(_rows, profile=profile))


def _rows(trial: Trial, profile: Profile) -> None:
    """Runs of rows in the second of two layers, then all that waits is made part of the states of both."""
    stride = CONV + RECURRENT + GAP
    kept_size = kept_layer_size(HEADS.channels, HEADS.Hv)
    places = [StateOffsets(i * stride, i * stride + CONV, i * kept_size) for i in range(2)]
    start = trial.normal(CONV + RECURRENT)
    live = trial.put(np.concatenate([np.zeros(stride), start, np.zeros(GAP)]))
    kept = trial.put(np.zeros(2 * kept_size))
    conv_state, state = start[:CONV].reshape(3, -1), start[CONV:].reshape(HEADS.Hv, HEADS.Dv, HEADS.Dk)
    taps, dt = trial.normal(HEADS.channels, 4), trial.normal(HEADS.Hv)
    ssm_a = -np.abs(trial.normal(HEADS.Hv))
    vectors = kernels.DeltaVectors(*map(trial.put, (taps, dt, ssm_a)))
    waiting, turn = 0, 0
    for rows, accepted in zip(RUNS, ACCEPTED, strict=True):
        raw = trial.normal(rows, HEADS.channels)
        alpha, beta_logits = 4 * trial.normal(rows, HEADS.Hv), 4 * trial.normal(rows, HEADS.Hv)
        with using(trial.device, profile):
            p = trial.program(rows, WAITING=waiting, KEPT_ROW=turn * KEPT)
            o = trial.output(rows, HEADS.Hv * HEADS.Dv)
            given = trial.rows(raw), trial.rows(alpha), trial.rows(beta_logits)
            kernels.delta_inputs(p, given, vectors, live, kept, places[1], HEADS, eps=EPS)
            kernels.delta_rows(p, kept, live, o, places[1], HEADS)
        p.run()
        _compare_states(trial, p, live, stride, conv_state, state)
        inputs = [*_heads(reference.causal_conv(raw, taps, conv_state)[0]), ssm_a * reference.softplus(alpha + dt)]
        inputs.append(reference.sigmoid(beta_logits))
        wanted, _ = reference.delta_rule(*inputs, state)
        trial.compare(p, o, wanted.reshape(rows, -1), SUMS)
        _, state = reference.delta_rule(*(a[:accepted] for a in inputs), state)
        conv_state = np.concatenate([conv_state, raw[:accepted]])[-3:]
        waiting, turn = accepted, 1 - turn
    with using(trial.device, profile):
        p = trial.program(0, 1, WAITING=waiting, KEPT_ROW=turn * KEPT)
        kernels.commit(p, kept, live, trial.output(1, HEADS.Hv * HEADS.Dv), places, HEADS)
    p.run()
    _compare_states(trial, p, live, stride, conv_state, state)


def _compare_states(
    trial: Trial, p: Program, live: Buffer, stride: int, conv_state: np.ndarray, state: np.ndarray
) -> None:
    found = live.read()[stride : stride + CONV + RECURRENT]
    trial.compare(p, found[:CONV], conv_state.reshape(-1), FUNCTIONS)
    trial.compare(p, found[CONV:], state.reshape(-1), SUMS)


def _heads(qkv: np.ndarray) -> list[np.ndarray]:
    """q (scaled), k, v of rows after the convolution."""
    rows, width = len(qkv), HEADS.Hk * HEADS.Dk
    q, k = (reference.l2_norm(qkv[:, i * width : (i + 1) * width].reshape(rows, -1, HEADS.Dk), EPS) for i in (0, 1))
    return [q * HEADS.Dk**-0.5, k, qkv[:, 2 * width :].reshape(rows, -1, HEADS.Dv)]
