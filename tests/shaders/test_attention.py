"""attention and attention_merge, on a cache that the test packs itself."""

import numpy as np
import pytest

from tests.reference import attention as reference
from tests.reference import blocks
from tests.shaders.run_kernel import FOREIGN, PROFILES, REDUCTION, KernelRun, check, using_profile
from tests.shaders.same_input_kernels import check_on_llama_cpp
from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import KVLayer
from vkprefill.engine.halves import SHORT_RUN
from vkprefill.engine.sizes import PAGE


def pack_cache(rows: np.ndarray, pages: np.ndarray, pool: int, kv_type: str, keys: bool) -> np.ndarray:
    """rows [S, G, Dh] at the slots of the pages -> the pool's words; everything else NaN, but zero where the last value
    shares a word with a slot that is not filled yet.
    """
    slots, kv_heads, head_dim = rows.shape
    dtype = np.float16 if kv_type == "f16" else np.float32
    content = np.full((pool, PAGE, kv_heads, head_dim), np.nan, dtype)
    at = np.arange(slots)
    content[pages[at // PAGE], at % PAGE] = rows
    if slots % 2 and kv_type == "f16" and not keys:
        content[pages[slots // PAGE], slots % PAGE] = 0
    if keys:
        content = content.reshape(pool, PAGE, kv_heads, head_dim // 4, 4).transpose(0, 2, 3, 1, 4)
    elif kv_type == "f16":  # in pairs of slots
        content = content.reshape(pool, PAGE // 2, 2, kv_heads, head_dim).transpose(0, 3, 1, 4, 2)
    else:
        content = content.transpose(0, 2, 1, 3)
    return np.ascontiguousarray(content).reshape(pool, -1).view(np.uint32)


def attend(
    device, tokens, cache_len, heads, kv_heads, dim, kv_type, *, num_rows=None, sharpness=1.0, seed=0, spoil=None
):
    """-> outputs [T, H, Dh] of the kernel and of the reference; pages out of order in a pool with one too many.

    spoil(q, k, v): changes the inputs in place.
    """
    rng, slots = np.random.default_rng([seed, tokens, cache_len, dim]), cache_len + tokens
    used = -(-slots // PAGE)
    pages = rng.permutation(used + 1)[:used].astype(np.uint32)
    q = (rng.standard_normal((tokens, heads, dim)) * sharpness).astype(np.float32)
    dtype = np.float16 if kv_type == "f16" else np.float32
    k, v = (rng.standard_normal((slots, kv_heads, dim)).astype(dtype) for _ in range(2))
    if spoil:
        spoil(q, k, v)
    run = KernelRun(device, tokens, num_rows, cache_len=cache_len)
    table = np.full(used + 2, FOREIGN, np.uint32)
    table[:used] = pages
    cache = KVLayer(
        *(
            run.input(name, pack_cache(rows, pages, used + 1, kv_type, name == "keys"), by_row=False)
            for name, rows in (("keys", k), ("values", v))
        )
    )
    splits = device.profile.attention_splits
    kernels.attention(
        run.program,
        run.input("q", q.reshape(tokens, -1), pad=True),
        run.input("pages", table, by_row=False),
        cache,
        run.output("y", heads * dim),
        run.scratch("split_out", splits, SHORT_RUN, heads * dim),
        run.scratch("split_sums", splits, SHORT_RUN, heads, 2),
        heads=heads,
        kv_heads=kv_heads,
        scale=dim**-0.5,
        kv_type=kv_type,
    )
    y = run.finish()["y"].reshape(tokens, heads, dim)
    positions = np.arange(slots)
    return y, reference.attend(q.astype(float), k.astype(float), v.astype(float), positions[cache_len:], positions)[0]


CASES = [  # T, cache_len, H, G, Dh
    (1, 0, 4, 2, 64),
    (2, 0, 2, 2, 32),
    (63, 0, 4, 1, 36),
    (64, 255, 2, 1, 80),
    (65, 191, 4, 2, 32),
    (127, 130, 1, 1, 256),
    (200, 313, 4, 2, 64),
    (5, 1020, 6, 2, 20),
    (3, 509, 2, 1, 132),
    (4, 100, 2, 1, 512),
]


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize(("tokens", "cache_len", "heads", "kv_heads", "dim"), CASES)
def test_sizes(device, tokens, cache_len, heads, kv_heads, dim, kv_type):
    y, expected = attend(device, tokens, cache_len, heads, kv_heads, dim, kv_type, num_rows=tokens + 5)
    check(
        f"attention T {tokens} after {cache_len}, H {heads}, G {kv_heads}, Dh {dim}, {kv_type}", y, expected, REDUCTION
    )


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    ("tokens", "cache_len", "heads", "kv_heads", "dim"), [(9, 250, 4, 1, 256), (66, 0, 2, 1, 36), (7, 300, 3, 3, 64)]
)
def test_tiles_of_every_profile(device, profile, tokens, cache_len, heads, kv_heads, dim):
    with using_profile(device, profile):
        y, expected = attend(device, tokens, cache_len, heads, kv_heads, dim, "f16")
    check(
        f"attention T {tokens} after {cache_len}, H {heads}, G {kv_heads}, Dh {dim}, {profile}", y, expected, REDUCTION
    )


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize("cache_len", [0, 1, 63, 255, 256, 257, 511, 1300, 4500])
def test_one_token_in_splits(device, cache_len, kv_type):
    """From splits that are mostly empty to splits of several tiles."""
    for profile in ("amd", "nvidia", "unknown"):
        with using_profile(device, profile) as tiles:
            assert tiles.attention_splits > 1
            y, expected = attend(device, 1, cache_len, 4, 2, 64, kv_type)
        check(
            f"attention of one token after {cache_len}, {tiles.attention_splits} splits, {kv_type}",
            y,
            expected,
            REDUCTION,
        )


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(5, 1, 64), (3, 1, 32), (14, 2, 32)])
def test_one_token_of_odd_groups(device, profile, heads, kv_heads, dim):
    """Fewer rows than a tile has take more keys at a time, which must still divide a page."""
    with using_profile(device, profile):
        y, expected = attend(device, 1, 600, heads, kv_heads, dim, "f16")
    check(f"attention of one token, H {heads}, G {kv_heads}, Dh {dim}, {profile}", y, expected, REDUCTION)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 32), (2, 2, 36), (4, 1, 256), (1, 1, 80)])
def test_splits_of_other_heads(device, heads, kv_heads, dim):
    with using_profile(device, "intel"):
        y, expected = attend(device, 1, 777, heads, kv_heads, dim, "f16")
    check(f"attention in splits, H {heads}, G {kv_heads}, Dh {dim}", y, expected, REDUCTION)


@pytest.mark.parametrize("cache_len", [0, 60, 256])
def test_several_tokens_in_splits(device, cache_len):
    """More than the engine splits for. A split may lie wholly after a token."""
    tokens, heads, dim, splits, slots = 70, 2, 32, 5, cache_len + 70
    rng = np.random.default_rng(cache_len)
    q = rng.standard_normal((tokens, heads, dim)).astype(np.float32)
    k, v = rng.standard_normal((2, slots, 1, dim)).astype(np.float32)
    pages = np.array([1, 0], np.uint32)
    run = KernelRun(device, tokens, cache_len=cache_len)
    cache = [
        run.input(name, pack_cache(rows, pages, 2, "f32", name == "keys"), by_row=False)
        for name, rows in (("keys", k), ("values", v))
    ]
    given = run.input("q", q.reshape(tokens, -1), pad=True), run.input("pages", pages, by_row=False)
    split_out, split_sums = (
        run.scratch("split_out", splits, heads * dim * tokens),
        run.scratch("part", splits, heads * tokens, 2),
    )
    sizes = {"H": heads, "Dh": dim, "SPLITS": splits}
    tile = {"LOCAL_SIZE": 8, "TQ": 4, "KP": 2, "DV": 1, "KEY_WORDS": 4, "VALUE_KEYS": 8}
    run.program.dispatch(
        "attention_f32",
        [run.program.step, *given, *cache, split_out, split_sums],
        (tokens * heads // 4, 1, splits),
        constants={**sizes, **tile, "G": 1, "SCALE": dim**-0.5},
    )
    run.program.dispatch(
        "attention_merge",
        [run.program.step, split_out, split_sums, run.output("y", heads * dim)],
        (1, heads, tokens),
        constants={**sizes, "LOCAL_SIZE": 32, "TILE": 16},
    )
    positions = np.arange(slots)
    expected = reference.attend(q.astype(float), k.astype(float), v.astype(float), positions[cache_len:], positions)[0]
    got = run.finish()["y"].reshape(expected.shape)
    check(f"attention T {tokens} after {cache_len}, {splits} splits", got, expected, REDUCTION)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_half_as_a_value(device, profile):
    """One key alone has the weight 1. A driver might take subnormal halves for zero."""

    def spoil(q, k, v):
        v[:] = blocks.every_half().reshape(v.shape)

    with using_profile(device, profile):
        y, expected = attend(device, 1, 0, 248, 248, 256, "f16", spoil=spoil)
    np.testing.assert_allclose(y, expected, rtol=2.0**-22)


@pytest.mark.parametrize("profile", PROFILES)
def test_subnormal_keys(device, profile):
    """Scores of 0 to 10.2 out of nothing but subnormal halves."""

    def spoil(q, k, v):
        q[:] = [2.0**24 / 50, 0, 0, 0]
        k[:, 0] = np.arange(1024, dtype=np.uint16).view(np.float16)[:, None]

    with using_profile(device, profile):
        y, expected = attend(device, 1, 1023, 1, 1, 4, "f16", spoil=spoil)
    check(f"attention to subnormal keys, {profile}", y, expected, REDUCTION)


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_row_has_the_same_bits_whatever_runs_beside_it(device, profile, kv_type):
    """Eight rows in one run, in runs of 1, 2, 3 and 5, in a program for more, and one by one, from an empty cache to
    several tiles of keys in a split, where tiles and pages end between the rows.
    """
    heads, kv_heads, dim = 6, 2, 36
    rng = np.random.default_rng(11)
    all_q = (rng.standard_normal((2400, heads, dim)) * 3).astype(np.float32)
    all_k, all_v = rng.standard_normal((2, 2400, kv_heads, dim)).astype(np.float32)

    def rows(first, tokens, num_rows=None):
        def given(q, k, v):
            q[:], k[:], v[:] = all_q[first:][:tokens], all_k[: first + tokens], all_v[: first + tokens]

        return attend(device, tokens, first, heads, kv_heads, dim, kv_type, num_rows=num_rows, spoil=given)

    with using_profile(device, profile):
        for cache_len in (0, 1, 27, 57, 61, 124, 250, 254, 505, 1022, 2290):
            together, expected = rows(cache_len, 8)
            check(f"attention of 8 rows after {cache_len}, {profile}, {kv_type}", together, expected, REDUCTION)
            for tokens, num_rows in ((1, 1), (1, 8), (2, 2), (3, 4), (5, 8)):
                alone, _ = rows(cache_len, tokens, num_rows)
                np.testing.assert_array_equal(alone, together[:tokens])
            for i in range(1, 8):
                np.testing.assert_array_equal(rows(cache_len + i, 1)[0][0], together[i])


@pytest.mark.parametrize("sharpness", [0.0, 30.0])
@pytest.mark.parametrize("tokens", [1, 70])
def test_flat_and_sharp_softmax(device, tokens, sharpness):
    """All keys alike; and one key that takes nearly all, with scores up to about 100."""
    for profile in ("cpu", "amd"):
        with using_profile(device, profile):
            y, expected = attend(device, tokens, 400, 2, 1, 64, "f32", sharpness=sharpness)
        check(f"attention T {tokens}, sharpness {sharpness}, {profile}", y, expected, REDUCTION)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("peak", [None, 3, 40, 100, 255])
def test_scores_far_from_zero(device, profile, peak):
    """All near -100, one key at 100: their exponentials are no float32 numbers, unless relative to the maximum."""

    def spoil(q, k, v):
        q[:] = 1.25
        k[:] = k / 8 - 5
        if peak is not None:
            k[peak] += 10

    with using_profile(device, profile):
        y, expected = attend(device, 9, 250, 2, 1, 256, "f32", spoil=spoil)
    check(f"attention with a peak at {peak}, {profile}", y, expected, REDUCTION)


@pytest.mark.smoke
def test_llama_cpp(device):
    check_on_llama_cpp(device, "attn_pregate")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("tokens", "cache_len"), [(9, 250), (1, 300)])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_nan_reaches_the_rows_that_see_it_and_no_others(device, profile, tokens, cache_len, where):
    heads, kv_heads, dim, token = 4, 2, 64, tokens // 2

    def spoil(q, k, v):
        if where == "query":
            q[token, 1, 5] = np.nan
        else:
            (k if where == "key" else v)[cache_len + token, 0, 5] = np.nan

    with using_profile(device, profile):
        right, _ = attend(device, tokens, cache_len, heads, kv_heads, dim, "f16")
        y, _ = attend(device, tokens, cache_len, heads, kv_heads, dim, "f16", spoil=spoil)
    nan = np.isnan(y)
    if where == "query":
        assert nan[token, 1].all()
        nan[token, 1] = False
    elif where == "key":
        assert nan[token:, :2].all()  # the heads that read KV head 0
        nan[token:, :2] = False
    else:  # probabilities of keys that a row does not see are 0, and 0 times NaN is NaN: earlier rows may have it too
        assert nan[token:, :2, 5].all()
        nan[:, :2, 5] = False
    assert not nan.any() and np.array_equal(y[~np.isnan(y)], right[~np.isnan(y)])
