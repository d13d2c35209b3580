"""Checks of products with weight matrices of every layout, in float32 and of halves, and of embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from gguf import GGMLQuantizationType

from vkprefill.engine import kernels
from vkprefill.engine.halves import FLOAT_LAYOUTS, HalfRows
from vkprefill.engine.sizes import ROW_TILE
from vkprefill.gguf.quants import LAYOUT_OF
from vkprefill.selftest import reference
from vkprefill.selftest.forms import form_name, profiles, using
from vkprefill.selftest.trial import FUNCTIONS, SUMS, Check, Trial
from vkprefill.selftest.weights import TYPES, random_weights
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.profiles import Profile

TOKENS, ROWS, COLUMNS = 37, 70, 512  # no multiple of a tile; two units of the longest
FEW = 3
VOCAB = 70


def checks(device: Device) -> Iterator[Check]:
    for kind in TYPES:
        yield Check(f"embedding, {kind.name}", partial(_embedding, kind=kind))
    for profile in profiles(device):
        for kind in TYPES:
            yield Check(f"products, {form_name(profile)}, {kind.name}", partial(_linear, profile=profile, kind=kind))
    for way, dot2 in ways_of_halves(device):
        for kind in TYPES:
            if LAYOUT_OF[kind] not in FLOAT_LAYOUTS:
                yield Check(f"products of halves {way}, {kind.name}", partial(_half_linear, dot2=dot2, kind=kind))


def ways_of_halves(device: Device) -> list[tuple[str, bool]]:
    """(in words, whether by the instruction) of products of halves."""
    return [("by conversion", False), *([("by the instruction", True)] if device.abilities.has_dot2 else [])]


def _embedding(trial: Trial, kind: GGMLQuantizationType) -> None:
    data, weight = random_weights(trial.rng, VOCAB, COLUMNS, kind)
    ids = trial.rng.integers(0, VOCAB, TOKENS).astype(np.uint32)
    p, x = trial.program(TOKENS), trial.output(TOKENS, COLUMNS)
    kernels.embedding(p, trial.put(ids), trial.matrix(data, kind, COLUMNS), x)
    p.run()
    trial.compare(p, x, weight[ids], FUNCTIONS)


def _linear(trial: Trial, profile: Profile, kind: GGMLQuantizationType) -> None:
    """A run of prefill, one of a few rows, one token."""
    data, weight = random_weights(trial.rng, ROWS, COLUMNS, kind)
    matrix, x = trial.matrix(data, kind, COLUMNS), trial.normal(TOKENS, COLUMNS)
    given = trial.rows(x)
    with using(trial.device, profile):
        for tokens in (TOKENS, FEW, 1) if quickly_translated(trial.device, kind) else (TOKENS, 1):
            p, before = trial.program(tokens), trial.normal(tokens, ROWS)
            y = trial.put(before)
            kernels.linear(p, given, matrix, y, add=True)
            p.run()
            trial.compare(p, y, before + reference.linear(x[:tokens], weight), SUMS)


def quickly_translated(device: Device, kind: GGMLQuantizationType) -> bool:
    """Whether a driver takes less than a second for matvec of a few rows. Those for the CPU take more for the form that
    GPUs want, unrolled: there a format with large and one with small units stand for all.
    """
    return device.info.type != "cpu" or device.profile.shuffle or kind.name in ("Q4_K", "Q5_1")


def _half_linear(trial: Trial, dot2: bool, kind: GGMLQuantizationType) -> None:
    data, weight = random_weights(trial.rng, ROWS, COLUMNS, kind)
    x = trial.normal(TOKENS, COLUMNS) * np.exp(4 * trial.normal(TOKENS, 1))  # rows far from each other in size
    x = x.astype(np.float32).astype(np.float64)
    halves, factors = reference.half_rows(x)
    spare = np.zeros((-TOKENS % ROW_TILE, COLUMNS), np.float16)
    words = trial.put(np.concatenate([halves, spare]).view(np.uint32))
    given, y = trial.rows(x), trial.output(TOKENS, ROWS)
    with using(trial.device, trial.device.profile, dot2):
        p = trial.program(TOKENS)
        half = HalfRows(words, trial.put(factors[:, 0]))
        kernels.linear(p, given, trial.matrix(data, kind, COLUMNS), y, half=half)
    p.run()
    size = np.abs(x).max(1, keepdims=True)
    trial.compare(p, y.read() / size, reference.half_linear(x, weight) / size, SUMS)
