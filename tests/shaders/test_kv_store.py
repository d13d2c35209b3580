import numpy as np
import pytest

from tests.shaders.run_kernel import UNTOUCHED, KernelRun
from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import KVLayer
from vkprefill.engine.sizes import PAGE

POOL = 5


def unpack_cache(words: np.ndarray, kv_heads: int, head_dim: int, kv_type: str, keys: bool) -> np.ndarray:
    """The pool's words -> values [pages, PAGE, G, Dh]: keys lie [G, Dh / 4, PAGE, 4], values [G, PAGE, Dh]."""
    values = words.reshape(-1).view(np.float16 if kv_type == "f16" else np.float32)
    if keys:
        return (
            values.reshape(POOL, kv_heads, head_dim // 4, PAGE, 4)
            .transpose(0, 3, 1, 2, 4)
            .reshape(POOL, PAGE, kv_heads, head_dim)
        )
    return values.reshape(POOL, kv_heads, PAGE, head_dim).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize(
    ("tokens", "cache_len", "kv_heads", "head_dim"),
    [
        (1, 0, 1, 256),
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
        rng.standard_normal((tokens, kv_heads * head_dim)) * np.exp(rng.uniform(-8, 5, (tokens, 1))) for _ in range(2)
    )
    pages = np.array([3, 0, 4, 1], np.uint32)  # page 2 belongs to another cache
    run = KernelRun(device, tokens, tokens + 1, cache_len=cache_len)
    words = PAGE * kv_heads * head_dim // (2 if kv_type == "f16" else 1)
    empty = np.full((POOL, words), UNTOUCHED, np.uint32)
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
    slots = cache_len + np.arange(tokens)
    for name, given in (("keys", k), ("values", v)):
        stored = unpack_cache(out[name], kv_heads, head_dim, kv_type, name == "keys")
        got = stored[pages[slots // PAGE], slots % PAGE].reshape(tokens, -1).astype(np.float64)
        given = given.astype(np.float32).astype(np.float64)
        if kv_type == "f32":
            np.testing.assert_array_equal(got, given, name)
        else:  # packHalf2x16 may round either way: half the spacing of halves or all of it, by the driver
            np.testing.assert_array_less(np.abs(got - given), 2.0**-10 * np.abs(given) + 2.0**-24, name)
        others = np.ones((POOL, PAGE), bool)
        others[pages[slots // PAGE], slots % PAGE] = False
        blank = unpack_cache(empty, kv_heads, head_dim, kv_type, name == "keys")
        bits = np.uint16 if kv_type == "f16" else np.uint32
        np.testing.assert_array_equal(
            np.ascontiguousarray(stored[others]).view(bits), np.ascontiguousarray(blank[others]).view(bits)
        )


def test_what_half_precision_cannot_hold_is_nan(device):
    """Not infinity, which could mean "never look at this key", nor the greatest half: the result must show it."""
    values = np.array([65503, -65504, 65519, 65520, -65520, 1e6, np.inf, -np.inf, np.nan, 3e38, 0, -1], np.float32)
    run = KernelRun(device, 1)
    words = np.full((1, PAGE * 12 // 2), UNTOUCHED, np.uint32)
    cache = KVLayer(run.in_out("keys", words, by_row=False), run.in_out("values", words, by_row=False))
    k, v = run.input("k", values[None]), run.input("v", values[None, ::-1].copy())
    pages = run.input("pages", np.zeros(1, np.uint32), by_row=False)
    kernels.kv_store(run.program, k, v, pages, cache, kv_heads=1, kv_type="f16")
    out = run.finish()
    keys = out["keys"].view(np.float16).reshape(3, PAGE, 4)[:, 0].reshape(-1)
    stored = out["values"].view(np.float16).reshape(PAGE, 12)[0]
    for got, given in ((keys, values), (stored, values[::-1])):
        lost = ~(np.abs(given) < 65520)
        assert np.isnan(got[lost]).all() and np.isfinite(got[~lost]).all()
        np.testing.assert_allclose(got[~lost].astype(float), given[~lost], rtol=2.0**-10)
