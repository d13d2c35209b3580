"""Attention with products of halves: queries rounded by half_queries, probabilities in the kernel, sums in float32.

Two references in float64: with the same roundings, for which the kernel's tiles are walked through, and the exact one.
"""

import dataclasses
from unittest import mock

import numpy as np
import pytest

from tests.reference import attention as reference
from tests.reference import norm, rope
from tests.shaders.run_kernel import FOREIGN, PROFILES, REDUCTION, KernelRun, check, using_profile
from tests.shaders.same_input_kernels import rope_table
from tests.shaders.test_attention import pack_cache
from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import KVLayer
from vkprefill.engine.halves import SHORT_RUN, HalfRows
from vkprefill.engine.sizes import PAGE

# Of the RMS, from the exact result with the same cache: probabilities of 11 bits. Measured: up to 2.4e-3 for the worst
# value of thousands, 3.5e-4 by their norms.
EXACT, NORMS = 3e-3, 1e-3
# Of a probability: what float32 may be off, and that for each unit of the greatest score. Where it lies closer to the
# middle of two halves, either is right.
UNSURE, OF_SCORE = 1e-5, 2.0**-22
EPS, BASE = 1e-6, 1e7
LIFT = 2.0**15  # of probabilities before they are rounded
CASES = [  # T, cache_len, H, G, Dh
    (9, 0, 4, 2, 64),
    (63, 1, 4, 1, 36),
    (64, 255, 2, 1, 80),
    (65, 191, 4, 2, 32),
    (127, 130, 1, 1, 256),
    (33, 700, 6, 2, 20),
    (40, 100, 2, 1, 512),
]


def tile_of(profile, dim: int) -> int:
    """Keys of a tile, for which probabilities are rounded together."""
    local, _, keys = profile.attention
    lanes = 8
    while lanes < min(dim // 4, local):
        lanes *= 2
    return lanes * min(keys, PAGE // lanes)


def rounded(q, k, v, cache_len: int, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """[T, H, Dh] from q [T, H, Dh] with the scale in it, k and v [S, G, Dh]: probabilities relative to the greatest
    score up to the end of their tile, rounded to halves, and their sum. Beside it what unsure roundings may change.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    tokens, heads, _ = q.shape
    of_head = reference.kv_heads(heads, k.shape[1])
    scores = np.matmul(q.transpose(1, 0, 2), k[:, of_head].transpose(1, 2, 0))  # [H, T, S]
    slots = np.arange(len(k))
    v = v[:, of_head].transpose(1, 0, 2)  # [H, S, Dh]
    off = UNSURE + OF_SCORE * np.abs(scores).max()
    scores = np.where(reference.visible(slots[cache_len:], slots), scores, -np.inf)
    top, sums = np.full((heads, tokens, 1), -1e30), [0.0] * 4
    for first in range(0, len(k), tile):
        part, values = scores[:, :, first : first + tile], v[:, first : first + tile]
        before, top = top, np.maximum(top, part.max(-1, keepdims=True))
        exact = np.exp(part - top) * LIFT
        p, least, most = ((exact * f).astype(np.float16).astype(float) for f in (1, 1 - off, 1 + off))
        unsure = most - least
        new = p.sum(-1, keepdims=True), p @ values, unsure.sum(-1, keepdims=True), unsure @ np.abs(values)
        sums = [old * np.exp(before - top) + more for old, more in zip(sums, new, strict=True)]
    total, acc, unsure, unsure_acc = sums
    y = acc / total
    return y.transpose(1, 0, 2), ((unsure_acc + unsure * np.abs(y)) / total).transpose(1, 0, 2)


def attend(device, case, *, num_rows=None, sharpness=1.0, spoil=None):
    """-> (outputs [T, H, Dh], `rounded`, exact outputs); the same bits by the instruction for two products, where
    there is one, and by conversion. spoil(q, k, v): changes the inputs in place; q has the scale in it.
    """
    tokens, cache_len, heads, kv_heads, dim = case
    rng, slots = np.random.default_rng([7, *case]), cache_len + tokens
    q = (rng.standard_normal((tokens, heads, dim)) * sharpness * dim**-0.5).astype(np.float16)
    k, v = (rng.standard_normal((slots, kv_heads, dim)).astype(np.float16) for _ in range(2))
    if spoil:
        spoil(q, k, v)
    y = run(device, case, q, k, v, num_rows)
    if device.abilities.has_dot2:
        with mock.patch.object(device, "abilities", dataclasses.replace(device.abilities, features=frozenset())):
            np.testing.assert_array_equal(run(device, case, q, k, v, num_rows), y)
    at = np.arange(slots)
    exact, _ = reference.attend(*(x.astype(float) for x in (q * np.float64(dim**0.5), k, v)), at[cache_len:], at)
    with np.errstate(invalid="ignore"):
        return y, rounded(q, k, v, cache_len, tile_of(device.profile, dim)), exact


def run(device, case, q, k, v, num_rows) -> np.ndarray:
    """pages out of order in a pool with one too many."""
    tokens, cache_len, heads, kv_heads, dim = case
    used = -(-(cache_len + tokens) // PAGE)
    pages = np.random.default_rng(used).permutation(used + 1)[:used].astype(np.uint32)
    launch = KernelRun(device, tokens, num_rows or tokens, cache_len=cache_len)
    table = np.full(used + 2, FOREIGN, np.uint32)
    table[:used] = pages
    cache = KVLayer(
        *(
            launch.input(name, pack_cache(rows, pages, used + 1, "f16", name == "keys"), by_row=False)
            for name, rows in (("keys", k), ("values", v))
        )
    )
    words = launch.input("words", q.reshape(tokens, -1).view(np.uint32), pad=True)
    kernels.attention(
        launch.program,
        dataclasses.replace(words, shape=(words.shape[0], heads * dim)),  # float32 queries, which are not there
        launch.input("pages", table, by_row=False),
        cache,
        launch.output("y", heads * dim),
        launch.scratch("split_out", 1, SHORT_RUN, heads * dim),
        launch.scratch("split_sums", 1, SHORT_RUN, heads, 2),
        heads=heads,
        kv_heads=kv_heads,
        scale=dim**-0.5,
        kv_type="f16",
        half=HalfRows(words, words),
    )
    return launch.finish()["y"].reshape(tokens, heads, dim)


def check_both(name, results):
    y, (same, unsure), exact = results
    off = y - same
    check(f"{name}, same roundings", same + np.sign(off) * np.maximum(np.abs(off) - unsure, 0), same, REDUCTION)
    check(f"{name}, exact", y, exact, EXACT)
    assert np.linalg.norm(y - exact) <= NORMS * np.linalg.norm(exact)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sizes(device, case, profile):
    with using_profile(device, profile):
        results = attend(device, case, num_rows=case[0] + 5)
    check_both(f"attention of halves {case}, {profile}", results)


@pytest.mark.parametrize("sharpness", [0.0, 8.0, 30.0])
def test_flat_and_sharp_softmax(device, sharpness):
    """All keys alike; and few keys that take nearly all, with scores up to about 100."""
    for profile in ("cpu", "amd"):
        with using_profile(device, profile):
            results = attend(device, (70, 400, 2, 1, 64), sharpness=sharpness)
        check_both(f"sharpness {sharpness}, {profile}", results)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("peak", [None, 3, 100, 255])
def test_scores_far_from_zero(device, profile, peak):
    """All near -100, one key at 100: their exponentials are no halves, unless relative to the maximum."""

    def spoil(q, k, v):
        q[:] = 1.25 / 16
        k[:] = k / 8 - 5
        if peak is not None:
            k[peak] += 10

    with using_profile(device, profile):
        results = attend(device, (9, 250, 2, 1, 256), spoil=spoil)
    check_both(f"a peak at {peak}, {profile}", results)


@pytest.mark.parametrize("below", [10, 14, 18])
def test_many_small_probabilities_count(device, below):
    """One key, and 1,000 so far below it that their probabilities, were they not lifted, would be subnormal halves with
    few digits or none, all rounded alike. Together they are a twentieth of the sum, or 1e-5 of it.
    """

    def spoil(q, k, v):
        q[:], k[:] = 1, 0
        k[1:] = -(below + 0.37) / 64
        v[0] = 0

    with using_profile(device, "amd"):
        y, (same, _), exact = attend(device, (16, 1000, 2, 1, 64), spoil=spoil)
    check(f"keys {below} below the first, same roundings", y, same, REDUCTION)
    check(f"keys {below} below the first", y, exact, EXACT)


def test_subnormal_halves(device):
    """As keys, with scores up to 10, and as values: drivers might take them for zero."""

    def spoil(q, k, v):
        q[:] = [2.0**14, 0, 0, 0]
        k[:] = (np.arange(len(k)) % 1024).astype(np.uint16).view(np.float16)[:, None, None]
        v[:] = np.arange(1, 5, dtype=np.uint16).view(np.float16)

    y, _, exact = attend(device, (24, 1000, 1, 1, 4), spoil=spoil)
    check("subnormal keys and values", y, exact, EXACT)


@pytest.mark.parametrize("profile", ["cpu", "amd", "nvidia"])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_nan_reaches_the_rows_that_see_it_and_no_others(device, profile, where):
    case = tokens, cache_len, heads, kv_heads, dim = 9, 250, 4, 2, 64

    def spoil(q, k, v):
        if where == "query":
            q[4, 1, 5] = np.nan
        else:
            (k if where == "key" else v)[cache_len + 4, 0, 5] = np.nan

    with using_profile(device, profile), np.errstate(invalid="ignore"):
        right, *_ = attend(device, case)
        y, *_ = attend(device, case, spoil=spoil)
    nan = np.isnan(y)
    touched = np.zeros(nan.shape, bool)
    if where == "query":
        touched[4, 1] = True
    elif where == "key":
        touched[4:, :2] = True
    else:
        touched[4:, :2, 5] = True
    assert nan[touched].all()
    if where == "value":  # probabilities of keys that a row does not see are 0, and 0 times NaN is NaN
        touched[:, :2, 5] = True
    assert not nan[~touched].any()
    np.testing.assert_array_equal(y[~touched], right[~touched])


@pytest.mark.parametrize(
    ("dot2", "smallest", "dim", "shader"),
    [
        (True, 32, 128, "attention_dot2"),
        (True, 16, 128, "attention_dot2"),
        (True, 8, 128, "attention_half"),
        (True, 32, 32, "attention_half"),
        (False, 32, 128, "attention_half"),
    ],
)
def test_choice_of_the_form(device, dot2, smallest, dim, shader):
    """The instruction's form hands probabilities of 8 rows on, in subgroups and workgroups of at least 16."""
    info = mock.Mock(min_subgroup_size=smallest)
    other = mock.Mock(profile=PROFILES["amd"], abilities=mock.Mock(has_dot2=dot2), info=info)
    program, y = mock.Mock(device=other, num_rows=32), mock.Mock(shape=(32, 2 * dim))
    words = HalfRows(device.buffer("words", (32, dim), np.uint32), None)
    kernels.attention(
        *(program, y, None, mock.Mock(), y, mock.Mock(shape=(1, 8, 2 * dim)), None),
        **{"heads": 2, "kv_heads": 1, "scale": 0.125, "kv_type": "f16", "half": words},
    )
    assert program.dispatch.call_args.args[0] == shader


@pytest.mark.parametrize(
    ("tokens", "heads", "dim", "rotary"), [(1, 1, 256, 64), (63, 2, 64, 64), (65, 5, 36, 34), (9, 3, 20, 2)]
)
def test_half_queries_are_the_nearest(device, tokens, heads, dim, rotary):
    """To what head_norm_rope gives, but for what float32 is off; whatever the size of the activations."""
    rng, scale = np.random.default_rng(dim), dim**-0.5
    x = rng.standard_normal((tokens, heads, 2, dim)) * np.exp(rng.uniform(-30, 30, (tokens, heads, 1, 1)))
    x = x.astype(np.float32)
    x[:, :, 1] = np.nan  # the gates
    weight, positions = rng.uniform(0.3, 2, dim).astype(np.float32), np.cumsum(rng.integers(1, 900, tokens))
    got = queries(device, x, weight, positions, rotary, scale)
    normed = norm.rms_norm(x[:, :, 0].astype(float), weight.astype(float), EPS)
    exact = rope.rotate(normed, positions, rotary, BASE) * scale
    off = 1e-6 * np.abs(exact) + 1e-6 * scale
    least, most = (exact - off).astype(np.float16), (exact + off).astype(np.float16)
    assert ((got >= least) & (got <= most)).all()


def test_queries_beyond_halves_are_nan(device):
    weight = np.full(64, 46_000, np.float32)  # the most that is always held
    x = np.zeros((9, 1, 2, 64), np.float32)
    x[:, 0, 0, 0], x[:, 0, 0, 32] = 1, 1  # both of a pair of the rotary, which makes one of them
    positions = np.arange(9)
    assert np.isfinite(queries(device, x, weight, positions, 64, 0.125)).all()
    nan = np.isnan(queries(device, x, weight * 2, positions, 64, 0.125))
    assert nan.any() and not nan[:, 0, 1:32].any()


def queries(device, x, weight, positions, rotary, scale) -> np.ndarray:
    """half_queries of x [T, H, 2, Dh] -> float16 [T, H, Dh]."""
    tokens, heads, _, dim = x.shape
    launch = KernelRun(device, tokens, tokens + 2)
    words = launch.output("words", heads * dim // 2, pad=True)
    table = launch.input("rope", rope_table(positions, rotary, BASE))
    given = launch.input("x", x.reshape(tokens, -1)), launch.weight("weight", weight), table
    half = HalfRows(words, words)
    kernels.half_queries(launch.program, *given, half, heads=heads, eps=EPS, scale=scale)
    return np.ascontiguousarray(launch.finish()["words"]).view(np.float16).reshape(tokens, heads, dim)
