"""importance and importance_sum against the numpy reduction, on rows of random numbers."""

import numpy as np
import pytest

from tests.shaders.run_kernel import FOREIGN, PROFILES, UNTOUCHED, KernelRun, check, using_profile
from tests.shaders.test_attention_rows import set_step
from vkprefill.engine import kernels
from vkprefill.engine.step import StepWord
from vkprefill.specprefill.selection import importance_from_rows, pool

LIMIT = 1e-5  # of the RMS


def softmax_rows(queries: int, heads: int, keys: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([queries, heads, keys, seed])
    rows = np.exp(rng.standard_normal((queries, heads, keys)) * 3)
    return (rows / rows.sum(-1, keepdims=True)).astype(np.float32)


def padded(rows: np.ndarray, most: int, stride: int) -> np.ndarray:
    """With NaN in spare rows and after the keys."""
    whole = np.full((most, rows.shape[1], stride), FOREIGN, np.uint32).view(np.float32)
    whole[: len(rows), :, : rows.shape[2]] = rows
    return whole


def best_of(device, layers: list[np.ndarray], pool_size: int, *, spare: int = 2, beyond: int = 45) -> np.ndarray:
    """best [Q, T] after one importance call for each layer's rows [Q, H, T]; asserts that the rest is untouched."""
    queries, _, keys = layers[0].shape
    run = KernelRun(device, 1)
    set_step(run, {StepWord.NUM_QUERIES: queries, StepWord.PROMPT_KEYS: keys})
    best = run.output("best", queries + spare, keys + beyond, by_row=False)
    for i, rows in enumerate(layers):
        buffer = run.input(f"rows {i}", padded(rows, queries + spare, keys + beyond), by_row=False)
        kernels.importance(run.program, buffer, best, pool_size=pool_size, first=i == 0)
    got = run.finish()["best"]
    words = got.view(np.uint32)
    assert (words[queries:] == UNTOUCHED).all() and (words[:, keys:] == UNTOUCHED).all()
    return got[:queries, :keys]


@pytest.mark.parametrize("pool_size", [1, 3, 13, 255])
@pytest.mark.parametrize(
    ("queries", "heads", "keys"), [(1, 1, 1), (1, 8, 5), (3, 2, 13), (2, 4, 31), (1, 3, 33), (5, 16, 300)]
)
def test_pool_and_heads(device, queries, heads, keys, pool_size):
    """Down to prompts shorter than the pool, where every token has the mean of all."""
    rows = softmax_rows(queries, heads, keys)
    expected = pool(rows, pool_size).max(axis=1)
    check(f"Q {queries}, H {heads}, T {keys}, pool {pool_size}", best_of(device, [rows], pool_size), expected, LIMIT)


def test_edges_are_divided_by_the_tokens_there_are(device):
    flat = np.full((1, 2, 50), 0.02, np.float32)
    check("flat", best_of(device, [flat], 13), np.full((1, 50), 0.02), LIMIT)
    last = np.zeros((1, 1, 20), np.float32)
    last[0, 0, 19] = 1
    got = best_of(device, [last], 13)[0]
    check("last", got, np.where(np.arange(20) < 13, 0, 1 / np.minimum(13, 26 - np.arange(20))), LIMIT)


@pytest.mark.parametrize("profile", PROFILES)
def test_max_over_layers(device, profile):
    layers = [softmax_rows(3, 4, 90, seed) for seed in range(4)]
    expected = np.max([pool(rows, 13).max(axis=1) for rows in layers], axis=0)
    with using_profile(device, profile):
        check("4 layers", best_of(device, layers, 13), expected, LIMIT)
        check("in another order", best_of(device, layers[::-1], 13), expected, LIMIT)


def test_first_layer_forgets_what_was_there(device):
    high, low = softmax_rows(1, 2, 40) + np.float32(1), softmax_rows(1, 2, 40, 1)
    run = KernelRun(device, 1)
    set_step(run, {StepWord.NUM_QUERIES: 1, StepWord.PROMPT_KEYS: 40})
    best = run.output("best", 1, 40, by_row=False)
    for name, rows in (("high", high), ("low", low)):
        kernels.importance(run.program, run.input(name, rows, by_row=False), best, pool_size=1, first=True)
    check("second step", run.finish()["best"], low.max(axis=1), LIMIT)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 31), (4, 33), (130, 300)])
def test_sum_adds_to_what_is_there(device, queries, keys):
    """Calls add up; tokens after the prompt stay as they are."""
    best, before = softmax_rows(queries, 1, keys)[:, 0], softmax_rows(1, 1, keys, 1)[0, 0]
    stride, total = keys + 11, np.full(keys + 11, FOREIGN, np.uint32).view(np.float32)
    total[:keys] = before
    run = KernelRun(device, 1)
    set_step(run, {StepWord.NUM_QUERIES: queries, StepWord.PROMPT_KEYS: keys})
    buffer = run.input("best", padded(best[:, None], queries + 3, stride)[:, 0], by_row=False)
    out = run.in_out("total", total, by_row=False)
    for _ in range(3):
        kernels.importance_sum(run.program, buffer, out)
    got = run.finish()["total"]
    check(f"Q {queries}, T {keys}", got[:keys], before + 3 * best.sum(axis=0, dtype=np.float64), LIMIT)
    assert (got[keys:].view(np.uint32) == FOREIGN).all()


@pytest.mark.smoke
def test_whole_reduction(device):
    """Two calls of 3 and 1 queries, 2 layers: as importance_from_rows has it."""
    parts = [[softmax_rows(count, 4, 120, seed) for seed in range(2)] for count in (3, 1)]
    total = np.zeros(120)
    for layers in parts:
        total += best_of(device, layers, 13).sum(axis=0, dtype=np.float64)
    steps = [np.stack([rows[j] for rows in layers]) for layers in parts for j in range(len(layers[0]))]
    check("importance", (total / 4).astype(np.float32), importance_from_rows(steps, 120, 13), LIMIT)


NOT_FINITE = [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7F800000]  # NaN of both signs, a signalling one, infinity


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize("bits", NOT_FINITE, ids=hex)
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize(
    ("queries", "heads", "keys", "at"), [(1, 1, 1, (0, 0, 0)), (2, 3, 33, (1, 2, 32)), (3, 8, 65, (0, 0, 0))]
)
def test_what_is_not_finite_survives_heads_and_layers(device, profile, bits, layer, queries, heads, keys, at):
    """One value of one head in the first, a middle or the last layer; it spreads over its pool and no further."""
    pool_size = 5
    layers = [softmax_rows(queries, heads, keys, seed) for seed in range(3)]
    with using_profile(device, profile):
        right = best_of(device, layers, pool_size)
        layers[layer].view(np.uint32)[at] = bits
        got = best_of(device, layers, pool_size)
    touched = np.zeros((queries, keys), bool)
    touched[at[0], max(0, at[2] - pool_size // 2) : at[2] + pool_size // 2 + 1] = True
    assert not np.isfinite(got[touched]).any()
    np.testing.assert_array_equal(got[~touched], right[~touched])


@pytest.mark.parametrize("bits", NOT_FINITE, ids=hex)
def test_what_is_not_finite_survives_the_sum(device, bits):
    """In one query of one call, with calls after it."""
    queries, keys = 5, 33
    best, total = softmax_rows(queries, 1, keys)[:, 0].copy(), np.zeros(keys, np.float32)
    best.view(np.uint32)[3, 32] = bits
    run = KernelRun(device, 1)
    set_step(run, {StepWord.NUM_QUERIES: queries, StepWord.PROMPT_KEYS: keys})
    out = run.in_out("total", total, by_row=False)
    good = run.input("good", softmax_rows(queries, 1, keys, 1)[:, 0].copy(), by_row=False)
    for buffer in (good, run.input("best", best, by_row=False), good):
        kernels.importance_sum(run.program, buffer, out)
    finite = np.isfinite(run.finish()["total"])
    assert finite[:32].all() and not finite[32]
