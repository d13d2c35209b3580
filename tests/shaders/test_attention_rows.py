"""attention_scores and attention_rows: softmax rows of chosen queries, on a cache that the test packs itself."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

from tests.reference import attention as reference
from tests.reference import rope
from tests.shaders.run_kernel import FOREIGN, PROFILES, UNTOUCHED, KernelRun, using_profile
from tests.shaders.test_attention import pack_cache
from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import KVLayer
from vkprefill.engine.sizes import PAGE
from vkprefill.engine.step import StepWord

# More than one subgroup, also where these have 64 invocations, and keys for each.
WIDE = dataclasses.replace(PROFILES["amd"], name="wide", local_size=128, attention_splits=1)
THETA = 1e7  # of the rotary
LIMIT = 1e-5  # absolute; rows lie between 0 and 1


def set_step(run: KernelRun, words: dict[int, int]) -> None:
    """Words of the step buffer that KernelRun leaves open."""
    buffer, before, *_ = run._buffers["step"]
    for word, value in words.items():
        buffer.view()[word] = before[word] = value


class Case(NamedTuple):
    """Sizes (T, cached before, H, G, Dh), and the token of each query that rows are wanted of."""

    tokens: int
    cache_len: int
    heads: int
    kv_heads: int
    dim: int
    chosen: list[int]


def rows_of(
    device,
    case: Case,
    kv_type: str,
    *,
    num_keys=None,
    stride=None,
    num_rows=None,
    most=None,
    sharpness=1.0,
    spoil=None,
    turned=None,
):
    """(rows [Q, H, S] of the kernels, of the reference), queries in the order of case.chosen. spoil(q, k): changes the
    inputs in place; turned: (R, positions of the slots), by which a rotary turned queries and keys, the rows to be of
    those before it.

    The rows lie in another order in the buffer, with one to spare; asserts that it and all beyond S stay untouched.
    """
    tokens, cache_len, heads, kv_heads, dim, chosen = case
    rng, slots = np.random.default_rng([tokens, cache_len, dim, len(chosen)]), cache_len + tokens
    num_keys = num_keys or slots
    stride, used = stride or slots, -(-slots // PAGE)
    pages = rng.permutation(used + 1)[:used].astype(np.uint32)
    q = (rng.standard_normal((tokens, heads, dim)) * sharpness).astype(np.float32)
    k = rng.standard_normal((slots, kv_heads, dim)).astype(np.float16 if kv_type == "f16" else np.float32)
    if spoil:
        spoil(q, k)
    most = most or len(chosen)
    at = rng.permutation(len(chosen) + 1)[: len(chosen)]
    table = np.full((most, 2), FOREIGN, np.uint32)
    table[: len(chosen)] = np.stack([chosen, at], axis=-1)

    run = KernelRun(device, tokens, num_rows, cache_len=cache_len)
    set_step(run, {StepWord.NUM_QUERIES: len(chosen), StepWord.NUM_KEYS: num_keys})
    page_table = np.full(used + 2, FOREIGN, np.uint32)
    page_table[:used] = pages
    keys = run.input("keys", pack_cache(k, pages, used + 1, kv_type, True), by_row=False)
    turns = None
    if turned:
        angles = rope.angles(turned[1], turned[0], THETA).T
        by_slot = np.full((len(angles), stride, 2), np.nan)
        by_slot[:, :slots] = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        turns = run.input("turns", by_slot, by_row=False)
    kernels.attention_rows(
        run.program,
        run.input("q", q.reshape(tokens, -1)),
        run.input("chosen", table, by_row=False),
        run.input("pages", page_table, by_row=False),
        KVLayer(keys, keys),
        run.scratch("part", device.profile.attention_splits, most, heads, 2),
        run.output("rows", len(chosen) + 1, heads, stride, by_row=False),
        heads=heads,
        kv_heads=kv_heads,
        scale=dim**-0.5,
        kv_type=kv_type,
        turns=turns,
    )
    rows = run.finish()["rows"]
    words = rows.view(np.uint32)
    (spare,) = set(range(len(chosen) + 1)) - set(at.tolist())
    assert (words[spare] == UNTOUCHED).all(), "a row that no query was given"
    assert (words[:, :, max(num_keys, slots) :] == UNTOUCHED).all(), "beyond the keys"
    places, of_queries = np.arange(slots), cache_len + np.array(chosen)
    q, k = q[chosen].astype(float), k.astype(float)
    if turned:
        q, k = (rope.rotate(x, -turned[1][own], turned[0], THETA) for x, own in ((q, of_queries), (k, places)))
    with np.errstate(invalid="ignore"):  # of what is spoiled
        _, expected = reference.attend(q, k, np.zeros_like(k), of_queries, places)
    expected = np.pad(expected.transpose(1, 0, 2), ((0, 0), (0, 0), (0, max(0, num_keys - slots))))
    return rows[at][:, :, :num_keys], expected[:, :, :num_keys]


def check_rows(got: np.ndarray, expected: np.ndarray, case: Case) -> None:
    assert got.shape == expected.shape and np.isfinite(got).all()
    assert np.abs(got - expected).max() <= LIMIT
    assert np.abs(got.sum(-1, dtype=np.float64) - 1).max() <= LIMIT
    for row, token in zip(got, case.chosen, strict=True):
        assert not row[:, case.cache_len + token + 1 :].any(), f"keys after the query at token {token}"


CASES = [
    Case(1, 0, 4, 2, 64, [0]),
    Case(2, 0, 2, 2, 32, [1, 0]),
    Case(63, 0, 4, 1, 36, [62]),
    Case(64, 255, 2, 1, 80, [0, 63, 1]),
    Case(65, 191, 4, 2, 32, [64, 63, 0]),
    Case(127, 130, 1, 1, 256, [126, 5, 77]),
    Case(40, 700, 6, 2, 20, list(range(39, -1, -1))),
    Case(5, 1020, 16, 4, 64, [4, 3]),
    Case(3, 509, 2, 1, 132, [2, 0, 1]),
    Case(4, 100, 2, 1, 512, [3]),
]


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sizes(device, case, kv_type):
    room = {"stride": case.tokens + case.cache_len + 37, "num_rows": case.tokens + 5, "most": len(case.chosen) + 3}
    got, expected = rows_of(device, case, kv_type, **room)
    check_rows(got, expected, case)


def gapped(slots: int) -> np.ndarray:
    """Increasing positions [slots] up to about 100,000, most with gaps between them."""
    return np.cumsum(np.random.default_rng(slots).integers(1, 200_000 // slots + 2, slots))


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize(
    ("case", "rotary"), list(zip(CASES, [16, 32, 2, 20, 6, 64, 10, 62, 132, 128], strict=True)), ids=str
)
def test_before_the_rotary(device, case, rotary, kv_type):
    """With what was turned for a query and a key far apart; one pair of values, all of them, pairs across words."""
    slots = case.tokens + case.cache_len
    room = {"stride": slots + 37, "num_rows": case.tokens + 5, "most": len(case.chosen) + 3}
    got, expected = rows_of(device, case, kv_type, **room, turned=(rotary, gapped(slots)))
    check_rows(got, expected, case)


@pytest.mark.parametrize("profile", PROFILES)
def test_before_the_rotary_in_every_profile(device, profile):
    case = Case(3, 700, 8, 1, 256, [2, 0])
    with using_profile(device, profile):
        got, expected = rows_of(device, case, "f16", turned=(64, gapped(703)))
    check_rows(got, expected, case)
    plain, _ = rows_of(device, case, "f16")
    assert np.abs(plain - got).max() > 100 * LIMIT, "the turns make a difference"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("cache_len", [0, 1, 6, 255, 300, 2000])
def test_splits_of_every_profile(device, profile, cache_len):
    """From splits that are empty to splits of many keys."""
    case = Case(3, cache_len, 4, 2, 64, [2, 0])
    with using_profile(device, profile):
        got, expected = rows_of(device, case, "f16", stride=cache_len + 64)
    check_rows(got, expected, case)


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize("sharpness", [0.0, 30.0])
def test_flat_and_sharp_softmax(device, profile, sharpness):
    """All keys alike; and one key that takes nearly all, with scores up to about 100."""
    case = Case(3, 400, 2, 1, 64, [2, 1])
    with using_profile(device, profile):
        got, expected = rows_of(device, case, "f32", sharpness=sharpness)
    check_rows(got, expected, case)


@pytest.mark.parametrize("profile", ["cpu", "amd"])
def test_subnormal_keys(device, profile):
    """Scores of 0 to 10.2 out of nothing but subnormal halves, which a driver might take for zero."""

    def spoil(q, k):
        q[:] = [2.0**24 / 50, 0, 0, 0]
        k[:, 0] = np.arange(1024, dtype=np.uint16).view(np.float16)[:, None]

    case = Case(1, 1023, 1, 1, 4, [0])
    with using_profile(device, profile):
        got, expected = rows_of(device, case, "f16", spoil=spoil)
    check_rows(got, expected, case)


@pytest.mark.parametrize("profile", [*PROFILES.values(), WIDE], ids=lambda profile: profile.name)
@pytest.mark.parametrize("peak", [None, 3, 40, 100, 255])
def test_scores_far_from_zero(device, profile, peak):
    """All near -200, one key at 200: their exponentials are no float32 numbers, unless relative to the maximum."""

    def spoil(q, k):
        q[:] = 5
        k[:] = k / 8 - 5
        if peak is not None:
            k[peak] += 10

    case = Case(9, 250, 2, 1, 64, [8, 6])
    with using_profile(device, profile):
        got, expected = rows_of(device, case, "f32", spoil=spoil)
    check_rows(got, expected, case)


def test_rows_longer_than_the_keys_so_far(device):
    """An early chunk of a prompt: the row is zero up to the end of the prompt."""
    case = Case(8, 16, 2, 1, 32, [7, 3])
    got, expected = rows_of(device, case, "f32", num_keys=90, stride=96)
    check_rows(got, expected, case)
    assert got.shape[-1] == 90


def test_rows_shorter_than_the_keys(device):
    """A look-ahead token: only the prompt's keys are normalised and read, the row has room for the others."""
    got, expected = rows_of(device, Case(1, 70, 4, 2, 32, [0]), "f32", num_keys=66, stride=80)
    assert np.abs(got - expected).max() <= LIMIT
    assert (got.sum(-1) < 1).all()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("rotary", [0, 16])
def test_what_is_not_finite_reaches_its_rows_and_no_others(device, profile, kv_type, value, where, rotary):
    """Infinity too: minus infinity as a score would leave the key out in silence."""
    case = Case(5, 258, 6, 2, 20, [4, 1, 3])
    cache_len, turned = case.cache_len, (rotary, gapped(263)) if rotary else None

    def spoil(q, k):
        if where == "query":
            q[3, 1, 7] = value
        else:
            k[cache_len + 2, 1, 7] = value  # seen by the queries at tokens 4 and 3

    with using_profile(device, profile):
        right, _ = rows_of(device, case, kv_type, turned=turned)
        got, _ = rows_of(device, case, kv_type, spoil=spoil, turned=turned)
    touched = np.zeros(got.shape, bool)
    if where == "query":
        touched[2, 1, : cache_len + 4] = True
    else:
        touched[0, 3:, : cache_len + 5] = touched[2, 3:, : cache_len + 4] = True
    assert np.isnan(got[touched]).all()
    np.testing.assert_array_equal(got[~touched], right[~touched])
