import numpy as np
import pytest

from tests.shaders.run_kernel import KernelRun, using_profile
from vkprefill.engine import kernels
from vkprefill.engine.sizes import MAX_CANDIDATES


def top_k(device, logits: np.ndarray, k: int, seen=(), penalty: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """-> (ids [k], logits [k])"""
    vocab = len(logits)
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[list(seen)] = 1
    run = KernelRun(device, 1, penalty=penalty, num_candidates=k)
    candidates = run.in_out("candidates", np.full((MAX_CANDIDATES, 2), 123, np.uint32), by_row=False)
    bits = run.input("seen", np.packbits(bits, bitorder="little").view(np.uint32), by_row=False)
    beyond = np.full(64, 1e38, np.float32)  # would be the best
    whole = run.input("logits", np.concatenate([logits, beyond]), by_row=False)
    best = run.scratch("best", -(-vocab // 64), 2)
    kernels.top_k(run.program, whole.part("logits", 0, (vocab,)), bits, best, candidates)
    found = run.finish()["candidates"]
    assert (found[k:] == 123).all(), "wrote more than k candidates"
    return found[:k, 1].astype(np.int64), np.ascontiguousarray(found[:k, 0]).view(np.float32)


def expected(logits: np.ndarray, k: int, seen=(), penalty: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    lowered = logits.astype(np.float32).copy()
    lowered[list(seen)] -= np.float32(penalty)
    ids = np.lexsort((np.arange(len(lowered)), -lowered))[:k]  # falling, equal ones by rising id
    return ids, lowered[ids]


def compare(device, *arguments) -> None:
    (ids, values), (wanted_ids, wanted) = top_k(device, *arguments), expected(*arguments)
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_array_equal(values, wanted)


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(
    ("vocab", "k"), [(1, 1), (63, 5), (64, 64), (65, 2), (320, 64), (4097, 20), (50001, 64), (248320, 40)]
)
def test_sizes(device, profile, vocab, k):
    with using_profile(device, profile):
        compare(device, np.random.default_rng(vocab).standard_normal(vocab).astype(np.float32), k)


@pytest.mark.smoke
@pytest.mark.parametrize("profile", ["cpu", "amd"])
def test_ties_go_to_the_lower_id(device, profile):
    rng = np.random.default_rng(1)
    logits = rng.integers(-2, 3, 5000).astype(np.float32)
    with using_profile(device, profile):
        compare(device, logits, 64)
        compare(device, np.zeros(200, np.float32), 64)
        compare(
            device, np.where(np.arange(700) % 64 == 63, 0.0, -0.0).astype(np.float32), 64
        )  # zeros of both signs are equal


def test_best_all_in_one_block(device):
    logits = np.random.default_rng(2).uniform(-1, 0, 1000).astype(np.float32)
    logits[640:704] += 10
    compare(device, logits, 64)


def test_negative_and_huge_values(device):
    logits = np.linspace(-3e38, -1e-30, 333).astype(np.float32)
    compare(device, logits, 10)
    compare(device, -logits, 10)


@pytest.mark.parametrize("penalty", [0.0, 0.7, 3.0, -1.5])
def test_penalty_on_seen_tokens(device, penalty):
    rng = np.random.default_rng(4)
    logits = rng.standard_normal(777).astype(np.float32)
    best = np.argsort(-logits)
    seen = [0, 31, 32, 776, *best[:20:2].tolist()]
    compare(device, logits, 64, seen, penalty)


NOT_FINITE = {
    "NaN": 0x7FC00000,
    "negative NaN": 0xFFC00000,  # what x86 makes of 0 * infinity
    "signalling NaN": 0x7F800001,
    "infinity": 0x7F800000,
    "minus infinity": 0xFF800000,
}


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize("bits", NOT_FINITE.values(), ids=NOT_FINITE)
@pytest.mark.parametrize(("vocab", "at"), [(1, [0]), (65, [64]), (4097, [63, 64, 4096]), (5000, [0, 1, 4999])])
def test_what_is_not_finite_comes_first(device, profile, bits, vocab, at):
    """However few candidates are asked for: the host must see it. Behind it all is as usual."""
    logits = np.random.default_rng(vocab).standard_normal(vocab).astype(np.float32)
    logits.view(np.uint32)[at] = bits
    k = min(8, vocab)
    with using_profile(device, profile):
        (first, *_), (value, *_) = top_k(device, logits, 1)
        ids, values = top_k(device, logits, k, seen=[0], penalty=0.5)
    assert first == at[0] and not np.isfinite(value)
    others = logits.copy()
    others[at] = -np.inf
    others[0] -= np.float32(0.5)
    wanted = np.lexsort((np.arange(vocab), -others))[: k - len(at)]
    assert ids.tolist() == [*at, *wanted]
    assert not np.isfinite(values[: len(at)]).any()
    np.testing.assert_array_equal(values[len(at) :], others[wanted])


def test_all_that_are_not_finite_by_rising_id(device):
    logits = np.full(200, 1.0, np.float32)
    logits[[150, 3, 64]] = np.nan, np.inf, -np.inf
    ids, values = top_k(device, logits, 5)
    assert ids.tolist() == [3, 64, 150, 0, 1]
    np.testing.assert_array_equal(values, [np.inf, -np.inf, np.nan, 1, 1])


@pytest.mark.parametrize("vocab", [2, 3])
def test_missing_candidates_are_minus_infinity_without_an_id(device, vocab):
    """Fewer tokens than k: what the host sees is no token."""
    ids, values = top_k(device, np.arange(vocab, dtype=np.float32), 4)
    missing = 4 - vocab
    assert ids.tolist() == [*range(vocab - 1, -1, -1), *[2**32 - 1] * missing]
    assert values.tolist() == [*range(vocab - 1, -1, -1), *[-np.inf] * missing]
