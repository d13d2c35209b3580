"""kv_store: where keys and values land in the pages, and that halves are the nearest, bit for bit."""

import numpy as np
import pytest

from tests.shaders.run_kernel import UNTOUCHED, KernelRun
from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import KVLayer
from vkprefill.engine.sizes import PAGE

POOL = 5


def unpack_cache(words: np.ndarray, kv_heads: int, head_dim: int, kv_type: str, keys: bool) -> np.ndarray:
    """The pool's words -> values [pages, PAGE, G, Dh]: keys lie [G, Dh / 4, PAGE, 4], values [G, PAGE, Dh], as halves
    [G, PAGE / 2, Dh, 2].
    """
    values = words.reshape(-1).view(np.float16 if kv_type == "f16" else np.float32)
    if keys:
        return (
            values.reshape(POOL, kv_heads, head_dim // 4, PAGE, 4)
            .transpose(0, 3, 1, 2, 4)
            .reshape(POOL, PAGE, kv_heads, head_dim)
        )
    if kv_type == "f16":
        pairs = values.reshape(POOL, kv_heads, PAGE // 2, head_dim, 2)
        return pairs.transpose(0, 2, 4, 1, 3).reshape(POOL, PAGE, kv_heads, head_dim)
    return values.reshape(POOL, kv_heads, PAGE, head_dim).transpose(0, 2, 1, 3)


def nearest(values: np.ndarray) -> np.ndarray:
    """float32 -> the bits that the half-precision cache keeps: numpy's rounding, NaN where that overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        halves = values.astype(np.float16)
    halves[~np.isfinite(halves)] = np.nan
    return canonical(halves)


def canonical(halves: np.ndarray) -> np.ndarray:
    """float16 -> bits, every NaN the same one."""
    return np.where(np.isnan(halves), np.float16(np.nan), halves).view(np.uint16)


def store(device, k, v, pages, *, cache_len, kv_heads, kv_type):
    """Stores k, v [T, G * Dh] -> keys and values of the pool, each as (after, before), [pages, PAGE, G, Dh]."""
    tokens, head_dim = len(k), k.shape[1] // kv_heads
    run = KernelRun(device, tokens, tokens + 1, cache_len=cache_len)
    empty = np.full((POOL, PAGE * k.shape[1] // (2 if kv_type == "f16" else 1)), UNTOUCHED, np.uint32)
    cache = KVLayer(run.in_out("keys", empty, by_row=False), run.in_out("values", empty, by_row=False))
    kernels.kv_store(
        run.program,
        run.input("k", k),
        run.input("v", v),
        run.input("pages", pages, by_row=False),
        cache,
        kv_heads=kv_heads,
        kv_type=kv_type,
    )
    out = run.finish()
    return tuple(
        tuple(unpack_cache(content, kv_heads, head_dim, kv_type, name == "keys") for content in (out[name], empty))
        for name in ("keys", "values")
    )


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize(
    ("tokens", "cache_len", "kv_heads", "head_dim"),
    [
        (1, 0, 1, 256),
        (1, 7, 2, 32),
        (1, 256, 1, 32),
        (2, 255, 2, 32),
        (63, 193, 1, 36),
        (64, 700, 3, 80),
        (65, 256, 2, 64),
        (200, 500, 1, 4),
    ],
)
def test_append(device, tokens, cache_len, kv_heads, head_dim, kv_type):
    rng = np.random.default_rng(tokens)
    k, v = (
        (rng.standard_normal((tokens, kv_heads * head_dim)) * np.exp(rng.uniform(-8, 5, (tokens, 1)))).astype(
            np.float32
        )
        for _ in range(2)
    )
    pages = np.array([3, 0, 4, 1], np.uint32)  # page 2 belongs to another cache
    keys, values = store(device, k, v, pages, cache_len=cache_len, kv_heads=kv_heads, kv_type=kv_type)
    slots, end = cache_len + np.arange(tokens), cache_len + tokens
    others = np.ones((POOL, PAGE), bool)
    others[pages[slots // PAGE], slots % PAGE] = False
    if kv_type == "f16" and end % 2:  # finite, for what reads pairs of slots
        values[1][pages[end // PAGE], end % PAGE] = 0
    for (stored, before), given in ((keys, k), (values, v)):
        got = stored[pages[slots // PAGE], slots % PAGE].reshape(tokens, -1)
        if kv_type == "f32":
            np.testing.assert_array_equal(got, given)
        else:
            np.testing.assert_array_equal(canonical(got), nearest(given))
        bits = np.uint16 if kv_type == "f16" else np.uint32
        np.testing.assert_array_equal(
            np.ascontiguousarray(stored[others]).view(bits), np.ascontiguousarray(before[others]).view(bits)
        )


def every_border() -> np.ndarray:
    """float32 [n]: each half, the middle between it and the next (65,520 after the greatest), the floats beside."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves + np.append(halves[1:], np.float32(65536))) / 2  # exact
    at = np.concatenate([halves, middles])
    up, down = np.nextafter(at, np.float32(np.inf)), np.nextafter(at, np.float32(-np.inf))
    return np.concatenate([at, up, down, -at, -up, -down])


def extremes() -> np.ndarray:
    """float32 [n]: both zeros, what is too small for any half down to the least float32, too large, infinite, NaN."""
    kinds = np.finfo(np.float32)
    sizes = [0, kinds.smallest_subnormal, kinds.tiny, 1e-30, 2.0**-26, 65535, 65536, 1e6, kinds.max, np.inf, np.nan]
    return np.array(sizes + [-x for x in sizes], np.float32)


def test_halves_are_the_nearest(device):
    """Ties to even, over every half there is. What no half holds is NaN, not infinity, which could mean "never look
    at this key", nor the greatest half: the result must show it.
    """
    given = np.concatenate([every_border(), extremes()])
    row = 4 * 256
    given = np.append(given, np.zeros(-len(given) % row, np.float32)).reshape(-1, row)
    pages = np.array([3, 0, 4, 1], np.uint32)
    (keys, _), (values, _) = store(device, given, given[:, ::-1].copy(), pages, cache_len=0, kv_heads=4, kv_type="f16")
    slots = np.arange(len(given))
    for stored, wanted in ((keys, given), (values, given[:, ::-1])):
        got = canonical(stored[pages[slots // PAGE], slots % PAGE].reshape(wanted.shape))
        wrong = np.flatnonzero(got != nearest(wanted))
        assert not wrong.size, f"{wrong.size} of {got.size}: " + ", ".join(
            f"{wanted.flat[i]:.9g} -> {got.flat[i]:#06x}, not {nearest(wanted).flat[i]:#06x}" for i in wrong[:5]
        )
