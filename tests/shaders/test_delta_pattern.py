"""Rows of delta-net heads, in one segment of tokens or several, against the formula; with them the outputs."""

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from tests.reference import delta_pattern as reference
from tests.reference import delta_rule, fixtures
from tests.shaders.run_kernel import ELEMENTWISE, REDUCTION, KernelRun, check
from tests.shaders.test_delta_rule import random_inputs
from vkprefill.engine import kernels
from vkprefill.errors import ShapeError
from vkprefill.vulkan.device import Device

NOT_IN_USE = -1


@contextlib.contextmanager
def lanes_of(device: Device, subgroup_size: int | None) -> Iterator[None]:
    """As on a device with such subgroups: workgroups are as wide, of whatever subgroups there are."""
    own = device.info
    device.info = dataclasses.replace(own, subgroup_size=subgroup_size or own.subgroup_size)
    try:
        yield
    finally:
        device.info = own


def rows_of(device, inputs, queries, segments=None, *, spare=0):
    """P [Q, Hv, T] and what is left [Q, Hv, Dk] of queries (tokens, or NOT_IN_USE), over segments of so many tokens;
    the last one has `spare` more, which nothing has been written for.
    """
    q, k, _, log_decay, beta, _ = inputs
    tokens, hk, dim = k.shape
    heads = kernels.DeltaHeads(hk, beta.shape[1], dim, dim)
    scaled = (q * delta_rule.query_scale(dim)).astype(np.float32)
    segments = segments or [tokens]
    assert sum(segments) == tokens
    given = np.array([scaled[t] if t >= 0 else np.full((hk, dim), np.nan) for t in queries], np.float32)
    left = np.full((len(queries), heads.Hv * dim), np.nan, np.float32)
    seen, parts = np.array(queries) + 1, []
    for number, count in reversed(list(enumerate(segments))):
        first, more = sum(segments[:number]), spare if number == len(segments) - 1 else 0

        def padded(values, first=first, count=count, more=more):
            part = values[first : first + count].reshape(count, -1).astype(np.float32)
            return np.concatenate([part, np.full((more, part.shape[1]), np.nan, np.float32)])

        run = KernelRun(device, 1)
        inputs_of = (run.input(name, padded(a), by_row=False) for name, a in (("k", k), ("g", log_decay), ("b", beta)))
        keys = kernels.DeltaKeys(first, *inputs_of)
        w, found = run.in_out("w", left, by_row=False), run.output("rows", len(queries), heads.Hv, count + more)
        found = dataclasses.replace(found, shape=found.shape[1:])
        used = run.input("seen", seen.astype(np.uint32), by_row=False)
        given_q = run.input("q", given.reshape(len(given), -1), by_row=False)
        kernels.delta_pattern(run.program, used, given_q, keys, w, found, heads)
        got = run.finish()
        left = got["w"]
        part = got["rows"][0]
        assert not part[seen > 0, :, count:].any(), "tokens that are not there"
        parts.insert(0, part[..., :count])
    return np.concatenate(parts, -1), left.reshape(len(queries), heads.Hv, dim)


def compare(device, case, inputs, queries, segments=None, *, limit=ELEMENTWISE, **options):
    q, k, v, log_decay, beta, state = inputs
    got, left = rows_of(device, inputs, queries, segments, **options)
    used = np.array(queries) >= 0
    assert np.isnan(got[~used]).all() and np.isnan(left[~used]).all(), "rows that are not in use stay"
    chosen = [t for t in queries if t >= 0]
    got, left = got[used].transpose(1, 0, 2), left[used].transpose(1, 0, 2)
    scaled = (q * delta_rule.query_scale(q.shape[-1])).astype(np.float32) / delta_rule.query_scale(q.shape[-1])
    want, want_left = reference.rows(scaled.astype(float), k, log_decay, beta, chosen)
    for i, t in enumerate(chosen):
        assert not got[:, i, t + 1 :].any(), f"{case}: after the query"
        check(f"delta_pattern {case}, query {t}", got[:, i, : t + 1], want[:, i, : t + 1], limit)
        # each token takes a part of it away, with a rounding of what it was
        check(f"delta_pattern {case}, left of {t}", left[:, i], want_left[:, i], REDUCTION)
    outputs, _ = delta_rule.recurrent(scaled.astype(float), k, v, log_decay, beta, state)
    mixed = np.einsum("hqs,shv->hqv", got.astype(float), v) + np.einsum("hvk,hqk->hqv", state, left.astype(float))
    check(f"delta_pattern {case}, outputs", mixed, outputs[chosen].transpose(1, 0, 2), limit)


SLOW = (1e-4, 1e-1)  # decays: most of what is old is still there


@pytest.mark.parametrize("subgroup_size", [None, 4, 64])
@pytest.mark.parametrize(
    ("tokens", "hk", "hv", "dim"),
    [(1, 2, 2, 16), (2, 1, 3, 32), (63, 2, 4, 64), (65, 3, 3, 20), (127, 1, 2, 128), (33, 2, 4, 4), (9, 1, 1, 260)],
)
def test_sizes(device, tokens, hk, hv, dim, subgroup_size):
    """From non-zero states; queries in any order, some not in use."""
    queries = [tokens - 1, 0, NOT_IN_USE, tokens // 2]
    with lanes_of(device, subgroup_size):
        inputs = random_inputs(dim, tokens, hk, hv, dim, SLOW)
        compare(device, f"T {tokens}, Hk {hk}, Hv {hv}, Dk {dim}", inputs, queries, spare=5)


@pytest.mark.smoke
def test_segments(device):
    """What goes on from one to the next: queries that begin in each of them, at their ends too."""
    inputs = random_inputs(3, 50, 2, 6, 36, SLOW)
    compare(device, "segments", inputs, [49, 0, 19, 20, 21, 36, 37, 44, NOT_IN_USE], [20, 1, 16, 13], spare=3)


def test_segments_are_one(device):
    """Bit for bit what one segment gives."""
    inputs = random_inputs(5, 40, 1, 2, 32, SLOW)
    whole, whole_left = rows_of(device, inputs, [39, 11])
    parts, parts_left = rows_of(device, inputs, [39, 11], [7, 1, 32])
    np.testing.assert_array_equal(parts, whole)
    np.testing.assert_array_equal(parts_left, whole_left)


def test_hardly_any_decay_over_600_tokens(device):
    """What float32 loses in each step stays; keys share a direction, of which each takes what rounding left of it, as
    in the delta rule itself.
    """
    q, k, v, log_decay, beta, state = random_inputs(7, 600, 1, 2, 64, (1e-4, 1e-3))
    k = k + 2 * k[:1]
    k = (k / np.linalg.norm(k, axis=-1, keepdims=True)).astype(np.float32).astype(float)
    compare(device, "600 tokens", (q, k, v, log_decay, beta, state), [599], limit=REDUCTION)


@pytest.mark.parametrize("log_decay", [0.0, -1e-4, -20.0, -200.0])
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_constant_decay_and_strength(device, log_decay, strength):
    q, k, v, decays, beta, state = random_inputs(3, 20, 1, 2, 32)
    inputs = q, k, v, np.full_like(decays, log_decay), np.full_like(beta, strength), state
    got, left = rows_of(device, inputs, [19])
    want, want_left = reference.rows(q, k, inputs[3], inputs[4], [19])
    check("constant", got[0], want[:, 0], REDUCTION)
    check("constant, left", left[0], want_left[:, 0], REDUCTION)


@pytest.mark.parametrize("name", fixtures.FIXTURES)
def test_llama_cpp(device, name):
    """On its inputs of the first layer: its values, mixed by our rows, are its outputs."""
    arrays = fixtures.load_case(name, "p65").arrays
    q, k, v, log_decay, beta, want = (
        arrays[f"{a}-0"].astype(float)
        for a in ("q_conv_predelta", "k_conv_predelta", "v_conv_predelta", "gate", "beta_sigmoid", "attn_output")
    )
    queries = list(range(len(v)))
    got, _ = rows_of(device, (q, k, v, log_decay.reshape(beta.shape), beta, None), queries, [32, len(v) - 32])
    mixed = np.einsum("qhs,shv->qhv", got.astype(float), v)
    check(f"{name} p65 attn_output-0", mixed, want.reshape(mixed.shape), REDUCTION)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_reaches_its_rows_and_no_others(device, value):
    """A key: rows of the key head's value heads, of queries that see it, from it backwards."""
    inputs = random_inputs(9, 30, 2, 4, 32, SLOW)
    right, _ = rows_of(device, inputs, [29, 9, 20])
    inputs[1][12, 1, 5] = value
    got, left = rows_of(device, inputs, [29, 9, 20])
    touched = np.zeros(got.shape, bool)
    touched[0, 1::2, :13] = touched[2, 1::2, :13] = True
    assert not np.isfinite(got[touched]).any()
    np.testing.assert_array_equal(got[~touched], right[~touched])
    assert np.isfinite(left[1]).all() and np.isfinite(left[:, 0::2]).all()


def test_shapes_that_do_not_fit_are_refused(device):
    run, heads = KernelRun(device, 1), kernels.DeltaHeads(1, 1, 6, 6)

    def put(*shape, dtype=np.float32):
        return run.input("some", np.zeros(shape, dtype), by_row=False)

    keys, seen = kernels.DeltaKeys(0, put(3, 6), put(3, 1), put(3, 1)), put(2, dtype=np.uint32)
    with pytest.raises(ShapeError, match="delta_pattern: key heads of 6, wanted a multiple of 4"):
        kernels.delta_pattern(run.program, seen, put(2, 6), keys, put(2, 6), put(2, 1, 3), heads)
    with pytest.raises(ShapeError, match="delta_pattern: rows has shape"):
        kernels.delta_pattern(run.program, seen, put(2, 6), keys, put(2, 6), put(2, 1, 4), heads)
