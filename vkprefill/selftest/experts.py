"""Checks of mixtures of experts: who a token is sent to, products with the matrices of experts, the sum of them all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from gguf import GGMLQuantizationType

from vkprefill.engine import kernels
from vkprefill.engine.expert_matrix import ExpertMatrix, Slab, expert_words, most_tiles
from vkprefill.engine.halves import FLOAT_LAYOUTS, HalfRows
from vkprefill.gguf.quants import LAYOUT_OF, layout_of, pack_part
from vkprefill.selftest import reference
from vkprefill.selftest.forms import form_name, profiles, using
from vkprefill.selftest.products import ways_of_halves
from vkprefill.selftest.trial import EXACT, FUNCTIONS, SUMS, Check, Trial
from vkprefill.selftest.weights import TYPES, random_weights
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.profiles import Profile

EXPERTS, PER_TOKEN, IN_SLAB = 5, 4, 3  # the last slab is shorter
TOKENS, FEW = 37, 3
ROWS, COLUMNS = 64, 512
WIDTH = 260


def checks(device: Device) -> Iterator[Check]:
    yield Check("choice of experts", _route)
    yield Check("sum of experts", _add_experts)
    for profile in profiles(device):
        for kind in TYPES:
            yield Check(f"products of experts, {form_name(profile)}, {kind.name}", partial(_products, profile, kind))
    for way, dot2 in ways_of_halves(device):
        for kind in TYPES:
            if LAYOUT_OF[kind] not in FLOAT_LAYOUTS:
                yield Check(f"halves of experts {way}, {kind.name}", partial(_half_products, dot2, kind))


def _route(trial: Trial) -> None:
    count, per_token = 77, 6
    logits, h, gate = trial.normal(TOKENS, count), trial.normal(TOKENS, WIDTH), trial.normal(WIDTH)
    p, ids, shares = trial.program(TOKENS), trial.words(TOKENS, per_token), trial.output(TOKENS, per_token + 1)
    kernels.route(p, trial.put(logits), trial.put(h), trial.put(gate), ids, shares)
    p.run()
    wanted, parts = reference.route(logits, per_token)
    trial.compare(p, ids, wanted, EXACT)
    trial.compare(p, shares, np.column_stack([parts, reference.sigmoid(h @ gate)]), FUNCTIONS)


def _add_experts(trial: Trial) -> None:
    y, shared, x = trial.normal(FEW * PER_TOKEN, WIDTH), trial.normal(FEW, WIDTH), trial.normal(FEW, WIDTH)
    shares, ids = trial.normal(FEW, PER_TOKEN + 1), trial.words(FEW, PER_TOKEN)
    p, stream = trial.program(FEW), trial.put(x)
    kernels.add_experts(p, trial.put(y), trial.put(shared), trial.put(shares), stream, ids)
    p.run()
    routed = (y.reshape(FEW, PER_TOKEN, WIDTH) * shares[:, :PER_TOKEN, None]).sum(1)
    trial.compare(p, stream, x + routed + shared * shares[:, PER_TOKEN:], FUNCTIONS)


def _matrix(trial: Trial, kind: GGMLQuantizationType) -> tuple[ExpertMatrix, np.ndarray]:
    """(on the device in two slabs, values [EXPERTS, ROWS, COLUMNS])."""
    data, values = random_weights(trial.rng, EXPERTS * ROWS, COLUMNS, kind)
    slabs = tuple(
        Slab(first, count, trial.put(pack_part(data[first * ROWS : (first + count) * ROWS], kind)))
        for first, count in ((0, IN_SLAB), (IN_SLAB, EXPERTS - IN_SLAB))
    )
    words = expert_words(kind, ROWS, COLUMNS)
    matrix = ExpertMatrix("self-test", layout_of(kind).name, EXPERTS, ROWS, COLUMNS, words, slabs)
    return matrix, values.reshape(EXPERTS, ROWS, COLUMNS)


def _choice(trial: Trial, tokens: int) -> np.ndarray:
    return np.argsort(trial.rng.random((tokens, EXPERTS)), axis=-1)[:, :PER_TOKEN].astype(np.uint32)


def _products(profile: Profile, kind: GGMLQuantizationType, trial: Trial) -> None:
    """Of a few rows, by number; of many, the rows of an expert together."""
    (matrix, values), x = _matrix(trial, kind), trial.normal(TOKENS, COLUMNS)
    choice, given = _choice(trial, TOKENS), trial.put(x)
    wanted = np.einsum("tknc,tc->tkn", values[choice], x)
    with using(trial.device, profile):
        p, y = trial.program(FEW), trial.output(FEW * PER_TOKEN, ROWS)
        kernels.linear_by_id(p, given, matrix, trial.put(choice), y)
        p.run()
        trial.compare(p, y, wanted[:FEW].reshape(-1, ROWS), SUMS)

        p = trial.program(TOKENS)
        tiles = _tiles(trial, p)
        kernels.group_rows(p, trial.put(choice), tiles, EXPERTS)
        rows = trial.output(TOKENS * PER_TOKEN + tiles.rows, COLUMNS)
        y = trial.output(TOKENS * PER_TOKEN, ROWS)
        kernels.gather_rows(p, tiles.places, given, rows, COLUMNS)
        kernels.expert_linear(p, rows, matrix, tiles, y)
        p.run()
        trial.compare(p, y.read()[tiles.places.read()], wanted, SUMS)


def _half_products(dot2: bool, kind: GGMLQuantizationType, trial: Trial) -> None:
    (matrix, values), choice = _matrix(trial, kind), _choice(trial, TOKENS)
    x = trial.normal(TOKENS, COLUMNS) * np.exp(4 * trial.normal(TOKENS, 1))  # rows far from each other in size
    halves, factors = reference.half_rows(x)
    given = HalfRows(trial.put(halves.view(np.uint32)), trial.put(factors[:, 0]))
    with using(trial.device, trial.device.profile, dot2):
        p = trial.program(TOKENS)
        tiles = _tiles(trial, p)
        kernels.group_rows(p, trial.put(choice), tiles, EXPERTS)
        size = TOKENS * PER_TOKEN + tiles.rows
        rows = HalfRows(trial.words(size, COLUMNS // 2), trial.output(size))
        y = trial.output(TOKENS * PER_TOKEN, ROWS)
        kernels.gather_rows(p, tiles.places, given, rows, COLUMNS)
        kernels.expert_linear(p, trial.output(size, COLUMNS), matrix, tiles, y, half=rows)
    p.run()
    size = np.abs(x).max(1)[:, None, None]
    rounded = values.astype(np.float16).astype(np.float64)
    wanted = np.einsum("tknc,tc->tkn", rounded[choice], halves.astype(np.float64) * factors)
    trial.compare(p, y.read()[tiles.places.read()] / size, wanted / size, SUMS)


def _tiles(trial: Trial, p: object) -> kernels.RowTiles:
    rows = trial.device.profile.expert_rows
    room = trial.words(most_tiles(TOKENS * PER_TOKEN, EXPERTS, rows), 4)
    return kernels.RowTiles.of(p, trial.words(TOKENS, PER_TOKEN), room, EXPERTS)
