"""Checks of attention: the cache's pages are filled by the kernel that does so, and read by those that need them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import KVLayer
from vkprefill.engine.halves import SHORT_RUN, HalfRows
from vkprefill.engine.sizes import KV_TYPES, PAGE, ROW_TILE
from vkprefill.selftest import reference
from vkprefill.selftest.forms import form_name, profiles, using
from vkprefill.selftest.trial import FUNCTIONS, HALVES, PROBABILITIES, SUMS, Check, Trial
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.profiles import Profile

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
PAGES = np.array([2, 0], np.uint32)  # out of order, one left out
RUNS = (300, 9, 3, 1)  # tokens one run after another: over the end of a page, few, one
CHOSEN = ((8, 1), (2, 0))  # (token of a run, row of softmax rows)
POOL = 13
EPS = 1e-6


def checks(device: Device) -> Iterator[Check]:
    for profile in profiles(device):
        for kv_type in KV_TYPES:
            name = f"attention, {form_name(profile)}, {kv_type}"
            yield Check(name, partial(_attention, profile=profile, kv_type=kv_type))
    yield Check("attention of halves by conversion", partial(_attention_half, dot2=False))
    if device.abilities.has_dot2:
        yield Check("attention of halves by the instruction", partial(_attention_half, dot2=True))
    yield Check("queries as halves", _half_queries)
    for kv_type in KV_TYPES:
        yield Check(f"softmax rows, {kv_type}", partial(_rows, kv_type=kv_type))
        yield Check(f"softmax rows before the rotary, {kv_type}", partial(_rows, kv_type=kv_type, rotary=HEAD_DIM // 2))
    yield Check("importance", _importance)
    yield Check("attention_gate", _attention_gate)


def _cache(trial: Trial, kv_type: str) -> KVLayer:
    words = PAGE * KV_HEADS * HEAD_DIM // (2 if kv_type == "f16" else 1)
    return KVLayer(trial.words(3, words), trial.words(3, words))


def _keys(trial: Trial, kv_type: str) -> np.ndarray:
    """Keys or values [S, G, Dh] of all runs, which the cache holds as they are."""
    keys = trial.normal(sum(RUNS), KV_HEADS, HEAD_DIM)
    return keys.astype(np.float16).astype(np.float64) if kv_type == "f16" else keys


def _attention(trial: Trial, profile: Profile, kv_type: str) -> None:
    cache, pages = _cache(trial, kv_type), trial.put(PAGES)
    q, k, v = trial.normal(sum(RUNS), HEADS, HEAD_DIM), _keys(trial, kv_type), _keys(trial, kv_type)
    width, first = HEADS * HEAD_DIM, 0
    for tokens in RUNS:
        run = slice(first, first + tokens)
        with using(trial.device, profile):
            p, y = trial.program(tokens, CACHE_LEN=first), trial.output(tokens, width)
            given = (trial.rows(values[run].reshape(tokens, -1)) for values in (k, v))
            kernels.kv_store(p, *given, pages, cache, kv_heads=KV_HEADS, kv_type=kv_type)
            if first:
                splits = profile.attention_splits
                kernels.attention(
                    p,
                    trial.rows(q[run].reshape(tokens, -1)),
                    pages,
                    cache,
                    y,
                    trial.output(splits, SHORT_RUN, width),
                    trial.output(splits, SHORT_RUN, HEADS, 2),
                    heads=HEADS,
                    kv_heads=KV_HEADS,
                    scale=HEAD_DIM**-0.5,
                    kv_type=kv_type,
                )
        p.run()
        if first:
            wanted = reference.attention(q[run], k[: run.stop], v[: run.stop], first)
            trial.compare(p, y, wanted.reshape(tokens, -1), SUMS)
        first += tokens


def _attention_half(trial: Trial, dot2: bool) -> None:
    cache, pages, width = _cache(trial, "f16"), trial.put(PAGES), HEADS * HEAD_DIM
    first, tokens = RUNS[:2]
    q, k, v = trial.normal(tokens, HEADS, HEAD_DIM), _keys(trial, "f16"), _keys(trial, "f16")
    store = trial.program(first + tokens)
    given = (trial.rows(values[: first + tokens].reshape(first + tokens, -1)) for values in (k, v))
    kernels.kv_store(store, *given, pages, cache, kv_heads=KV_HEADS, kv_type="f16")
    store.run()
    scale, halves = HEAD_DIM**-0.5, np.zeros((ROW_TILE, width), np.float16)
    halves[:tokens] = (q * HEAD_DIM**-0.5).reshape(tokens, width)
    half = HalfRows(trial.put(halves.view(np.uint32)), trial.output(1))
    with using(trial.device, trial.device.profile, dot2):
        p, y, parts = (
            trial.program(tokens, CACHE_LEN=first),
            trial.output(tokens, width),
            trial.output(1, SHORT_RUN, width),
        )
        sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "scale": scale, "kv_type": "f16"}
        kernels.attention(p, trial.output(ROW_TILE, width), pages, cache, y, parts, parts, **sizes, half=half)
    p.run()
    q = halves[:tokens].reshape(q.shape).astype(np.float64) / scale
    wanted = reference.attention(q, k[: first + tokens], v[: first + tokens], first)
    trial.compare(p, y, wanted.reshape(tokens, -1), PROBABILITIES)


def _half_queries(trial: Trial) -> None:
    tokens, width = RUNS[1], HEADS * HEAD_DIM
    joint, weight = trial.normal(tokens, HEADS, 2, HEAD_DIM), 1 + 0.1 * trial.normal(HEAD_DIM)
    table = reference.rope_table(np.arange(tokens) * 7, HEAD_DIM // 2)
    given = trial.rows(joint.reshape(tokens, -1)), trial.put(weight), trial.put(table)
    p, half = trial.program(tokens), trial.halves(tokens, width)
    kernels.half_queries(p, *given, half, heads=HEADS, eps=EPS, scale=HEAD_DIM**-0.5)
    p.run()
    wanted = reference.rotate(reference.rms_norm(joint[:, :, 0], weight, EPS), table) * HEAD_DIM**-0.5
    got = half.words.read()[:tokens].view(np.float16).astype(np.float64)
    wanted = wanted.reshape(tokens, width)
    size = np.maximum(np.abs(wanted), 1e-3 * np.abs(wanted).max())  # each number by its own
    trial.compare(p, got / size, wanted / size, HALVES)


def _rows(trial: Trial, kv_type: str, rotary: int = 0) -> None:
    """rotary: so many values of queries and keys were turned, by positions with gaps; the rows are of those before."""
    cache, pages, k = _cache(trial, kv_type), trial.put(PAGES), _keys(trial, kv_type)
    before, tokens = RUNS[:2]
    total, splits = before + tokens, trial.device.profile.attention_splits
    q = trial.normal(tokens, HEADS, HEAD_DIM)
    table = reference.rope_table(np.arange(total) * 7, rotary) if rotary else None
    store = trial.program(total)
    given = trial.rows(k[:total].reshape(total, -1))
    kernels.kv_store(store, given, given, pages, cache, kv_heads=KV_HEADS, kv_type=kv_type)
    store.run()
    p = trial.program(tokens, CACHE_LEN=before, NUM_QUERIES=len(CHOSEN), NUM_KEYS=total)
    rows = trial.output(len(CHOSEN), HEADS, total)
    kernels.attention_rows(
        p,
        trial.rows(q.reshape(tokens, -1)),
        trial.put(np.array(CHOSEN, np.uint32)),
        pages,
        cache,
        trial.output(splits, len(CHOSEN), HEADS, 2),
        rows,
        heads=HEADS,
        kv_heads=KV_HEADS,
        scale=HEAD_DIM**-0.5,
        kv_type=kv_type,
        turns=trial.put(table.transpose(1, 0, 2)) if rotary else None,
    )
    p.run()
    k = k[:total]
    if rotary:
        back = table * [1, -1]
        q, k = reference.rotate(q, back[before:]), reference.rotate(k, back)
    wanted = np.empty(rows.shape)
    for token, row in CHOSEN:
        wanted[row] = reference.softmax_rows(q, k, before)[token]
    trial.compare(p, rows, wanted, SUMS)


def _importance(trial: Trial) -> None:
    """Two layers' rows, then their sum over queries, added to what an earlier call left."""
    queries, heads, keys = 3, 4, 300
    layers = np.exp(3 * trial.normal(2, queries, heads, keys))
    layers = (layers / layers.sum(-1, keepdims=True)).astype(np.float32).astype(np.float64)
    before = np.abs(trial.normal(keys))
    p = trial.program(1, NUM_QUERIES=queries, PROMPT_KEYS=keys)
    best, total = trial.output(queries, keys), trial.put(before)
    for i, rows in enumerate(layers):
        kernels.importance(p, trial.put(rows), best, pool_size=POOL, first=i == 0)
    kernels.importance_sum(p, best, total)
    p.run()
    wanted = reference.pooled(layers, POOL).max(axis=(0, 2))
    trial.compare(p, best, wanted, FUNCTIONS)
    trial.compare(p, total, before + wanted.sum(0), FUNCTIONS)


def _attention_gate(trial: Trial) -> None:
    tokens, width = RUNS[1], HEADS * HEAD_DIM
    joint, y = trial.normal(tokens, HEADS, 2, HEAD_DIM), trial.normal(tokens, HEADS, HEAD_DIM)
    wanted = (y * reference.sigmoid(joint[:, :, 1])).reshape(tokens, width)
    given, half = trial.rows(joint.reshape(tokens, -1)), trial.halves(tokens, width)
    p, as_halves, out = trial.program(tokens), trial.program(tokens), trial.rows(y.reshape(tokens, width))
    kernels.attention_gate(as_halves, given, out, heads=HEADS, half=half)
    kernels.attention_gate(p, given, out, heads=HEADS)
    as_halves.run()
    p.run()
    trial.compare_halves(as_halves, half, wanted)
    trial.compare(p, out, wanted, FUNCTIONS)
