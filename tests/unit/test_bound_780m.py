"""The arithmetic of benchmarks/kernel_bounds.py, by hand: seconds of single dispatches."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import bound_780m
from benchmarks import kernel_bounds as bound
from benchmarks.phase_bounds import Estimate
from tools.amd.recording import Dispatch
from vkprefill.vulkan.buffer import Buffer

SERIALS = itertools.count()


def buffer(*shape: int, kind: str = "activations") -> Buffer:
    return Buffer("", shape, np.dtype(np.float32), "device", kind, SimpleNamespace(serial=next(SERIALS)))


COMPILED = {"wave": 32, "waves": 10, "loops": {"loop": {"valu": 0.625, "lds": 0.02}}}


def test_matmul():
    """512 tokens, 8,192 rows of 1,024 in Q4_K, 144 bytes for 256 weights: 16 x 128 waves on 24 SIMDs, 10 at a time."""
    constants = {"LOCAL_SIZE": 32, "TM": 32, "TN": 2}
    dispatch = Dispatch("matmul_q4_k", constants, {"rows": 8192, "K": 1024, "N": 8192, "add": 0}, (16, 128, 1), ())
    found = bound.cost(dispatch, COMPILED, 512, 0)
    assert found.issue == pytest.approx(86 * 0.625 * 64 * 1024 / 2.7e9)  # 2,048 waves: 85.3 for each SIMD
    assert found.filled == pytest.approx(2048 / 24 / 86)
    weights = 8192 * 1024 * 144 / 256
    assert found.memory == pytest.approx((weights + 512 * 1024 * 4 + 512 * 8192 * 4) / 90e9)  # x stays in L2
    assert found.cache == pytest.approx(16 * weights / (12 * 64 * 2.7e9))
    assert found.lds == pytest.approx(16 * 0.02 * 512 * 8192 * 1024 / (12 * 128 * 2.7e9))
    assert found.bound == found.issue
    few = bound.cost(dispatch, COMPILED | {"wave": 64}, 40, 0)  # two tiles of tokens, waves of 64
    assert few.issue == pytest.approx(2 * 11 * 0.625 * 64 * 1024 / 2.7e9)


def test_products_of_halves():
    """The same instructions, half the bytes of activations: 4 MiB of them, read anew in each of 9 rounds."""
    constants = {"LOCAL_SIZE": 32, "TM": 32, "TN": 2}
    push = {"rows": 8192, "K": 4096, "N": 8192, "add": 0}
    whole, halves = (
        bound.cost(Dispatch(name, constants, push, (16, 128, 1), ()), COMPILED, 512, 0)
        for name in ("matmul_hybrid_q4_k", "matmul_hybrid_dot2_q4_k")
    )
    assert halves.issue == whole.issue and halves.lds == whole.lds
    assert whole.memory - halves.memory == pytest.approx(9 * 512 * 4096 * 2 / 90e9)


def test_rows_of_experts_are_counted():
    """Eight for each of 300 tokens, of buffers for 2,048 and a tile more; x is read and written."""
    y, x = buffer(2048 * 8 + 32, 2048), buffer(2048, 2048)
    dispatch = Dispatch("add_experts", {}, {}, (8, 2048, 1), (buffer(16), y, x, buffer(2048, 9), buffer(2048, 8), x))
    moved = (8 * 2048 + 3 * 2048 + 9 + 8) * 300 * 4
    assert bound.cost(dispatch, {}, 300, 0).memory == pytest.approx(moved / 90e9, rel=1e-2)


def test_matmul_reads_activations_again_for_each_round():
    """x of 8 MiB; 2,048 waves in rounds of 240."""
    dispatch = Dispatch(
        "matmul_f32",
        {"LOCAL_SIZE": 32, "TM": 32, "TN": 2},
        {"rows": 8192, "K": 4096, "N": 8192, "add": 1},
        (16, 128, 1),
        (),
    )
    found = bound.cost(dispatch, COMPILED, 512, 0)
    assert found.memory == pytest.approx((8192 * 4096 * 4 + 9 * 512 * 4096 * 4 + 2 * 512 * 8192 * 4) / 90e9)


def test_experts():
    """512 tokens that take 8 of 256 experts: 16 rows for each, about, in tiles of 16, of which the last are short."""
    push = {"rows": 512, "K": 2048, "N": 512, "add": 0, "experts": 256}
    constants = {"LOCAL_SIZE": 128, "TM": 16}
    dispatch = Dispatch("matmul_hybrid_experts_q4_k", constants, push, (4, 512 * 8 // 16 + 256, 1), ())
    found = bound.cost(dispatch, COMPILED, 512, 0)
    rows = np.random.default_rng(0).poisson(16, (2000, 256))
    tiles = np.ceil(rows / 16).sum(1).mean()
    waves = 4 * 4 * tiles
    assert found.issue == pytest.approx(waves / 24 * 0.625 * 16 * 2048 / 2.7e9, rel=5e-3)
    weights = 256 * 512 * 2048 * 144 / 256
    assert found.memory == pytest.approx((weights + 4096 * (2048 + 512) * 4) / 90e9, rel=1e-4)  # all read once
    decode = Dispatch("matvec_experts_q4_k", {"ROW_LANES": 32, "SLICES": 8, "TM": 1, "TN": 1}, push, (16, 1, 8), ())
    assert bound.cost(decode, COMPILED, 1, 0).memory == pytest.approx(8 / 256 * weights / 90e9)


def test_matvec():
    """256 rows of 2,048 in Q8_0, 68 bytes for 64 weights, by 4 rows of x: 8 workgroups of 4 waves of 64."""
    constants = {"ROW_LANES": 32, "SLICES": 8, "TM": 4, "TN": 1}
    dispatch = Dispatch("matvec_q8_0", constants, {"rows": 256, "K": 2048}, (8, 1, 1), ())
    found = bound.cost(dispatch, {"wave": 64, "loops": {"loop": {"valu": 1.25}}}, 4, 0)
    assert found.issue == pytest.approx(2 * 2 * 5.0 * 256 / 2.7e9)  # 32 waves: two on some SIMDs
    assert found.memory == pytest.approx(256 * 2048 * 68 / 64 / 90e9)
    assert found.cache == pytest.approx(256 * 2048 * 68 / 64 / (12 * 64 * 2.7e9))


def test_attention():
    """4 tokens after 100, two query heads for one KV head of 64, tiles of 4 rows by 64 keys: two waves of two tiles."""
    constants = {"LOCAL_SIZE": 32, "H": 2, "G": 1, "Dh": 64, "SPLITS": 1, "TQ": 4, "KP": 2, "DV": 1}
    loops = {"qk": {"valu": 0.7}, "pv": {"valu": 0.8, "lds": 0.05}, "softmax": {"valu": 10.0, "lds": 2.0}}
    dispatch = Dispatch("attention_f16", constants, {}, (2, 1, 1), ())
    found = bound.cost(dispatch, {"wave": 32, "waves": 8, "loops": loops}, 4, 100)
    assert found.issue == pytest.approx(2 * (1.5 * 4 * 2 * 64 + 10.0 * 4 * 2) / 2.7e9)
    assert found.filled == pytest.approx(2 / 24)
    assert found.lds == pytest.approx(4 * 32 * (16 * 0.05 * 4 * 2 * 64 + 4 * 2.0 * 4 * 2) / (12 * 128 * 2.7e9))
    assert found.cache == pytest.approx(4 * 64 * 64 * 2 * 2 / (12 * 64 * 2.7e9))
    assert found.memory == pytest.approx((2 * 2 * 64 * 104 + 2 * 4 * 4 * 2 * 64) / 90e9)


def test_delta_rule():
    """2 heads of 128 by 128, 4 invocations a row: 32 waves; 10 tokens one after another."""
    constants = {"LOCAL_SIZE": 32, "LANES": 4, "ROWS": 1, "Hk": 2, "Hv": 2, "Dk": 128, "Dv": 128}
    dispatch = Dispatch("delta_rule", constants, {}, (16, 2, 1), (buffer(16),) * 5)
    found = bound.cost(dispatch, {"wave": 32, "loops": {"loop": {"valu": 3.75}}}, 10, 0)
    assert found.issue == pytest.approx(2 * 3.75 * 32 * 10 / 2.7e9)
    assert found.cache == pytest.approx(1024 * 10 * 4 * (64 + 2 + 1) / (12 * 64 * 2.7e9))
    assert found.memory == pytest.approx(2 * 4 * 2 * 128 * 128 / 90e9)


def test_other_kernels_move_their_activations():
    """swiglu reads up, reads and writes gate, of the rows in use; a few rows stay in L2."""
    dispatch = Dispatch("swiglu", {}, {}, (1, 512, 1), (buffer(16), buffer(512, 4096), buffer(512, 4096)))
    assert bound.cost(dispatch, {}, 300, 0).memory == pytest.approx(3 * 300 * 4096 * 4 / 90e9, rel=1e-4)
    assert bound.cost(dispatch, {}, 1, 0).bound == 0.0


def test_what_was_executed_takes_the_place_of_estimates():
    """60 waves of 64 that issue 100 instructions each: three on some SIMDs. 64 bytes of loads in a cycle, or a line."""
    counts = {"waves": 60, "issue": 6000, "wave": 64, "lds_passes": 24, "vmem_bytes": 64 * 36, "lines": 12}
    static = bound.Cost(issue=1.0, lds=2.0, cache=3.0, memory=4.0)
    found = bound.with_counts(static, counts)
    assert found.issue == pytest.approx(3 * 100 * 2 / 2.7e9) and found.filled == pytest.approx(60 / 72)
    assert found.lds == pytest.approx(24 / 12 / 2.7e9)
    assert found.cache == pytest.approx(36 / 12 / 2.7e9)
    assert found.memory == 4.0
    assert bound.with_counts(static, counts | {"lines": 48}).cache == pytest.approx(48 / 12 / 2.7e9)
    assert bound.with_counts(static, None) == static


def test_differences_are_said():
    """Issue of two dispatches: 1 ms estimated, 0.75 executed; 1.5 passes for each that is needed."""
    counts = {"waves": 24, "issue": 24 * 1.0125e6, "wave": 32, "vmem_bytes": 0, "lines": 0}
    counts |= {"lds_passes": 3 * 12 * 2.7e6, "lds_least": 2 * 12 * 2.7e6}
    estimate = Estimate(bound.Cost(issue=5e-4, lds=6e-3), counts)
    assert bound_780m._difference_row("attention_f16", [estimate] * 2) == (
        *("attention_f16", "1.00", "0.75", "-25%", "12.00", "6.00", "-50%", "-", "-", "-", "1.50"),
    )


def test_launches_are_dispatches_that_wait():
    step, x, up, gate = buffer(16), buffer(512, 64), buffer(512, 64), buffer(512, 64)
    one = Dispatch("rms_norm", {}, {}, (1, 1, 1), (step, x, buffer(64, kind="weights"), up))
    other = Dispatch("rms_norm", {}, {}, (1, 1, 1), (step, x, buffer(64, kind="weights"), gate))
    both = Dispatch("swiglu", {}, {}, (1, 1, 1), (step, up, gate))
    assert bound.num_launches([one, other, both, one]) == 2
