import numpy as np
import pytest

from tests.shaders.run_kernel import KernelRun, using_profile
from vkprefill.engine import kernels
from vkprefill.engine.sizes import MAX_CANDIDATES
from vkprefill.errors import ShapeError


def top_k_rows(
    device,
    logits: np.ndarray,
    k: int,
    seen=(),
    penalty: float = 0.0,
    token_ids: tuple[int, ...] = (),
    num_rows: int | None = None,
    allowed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """logits [R, V], token_ids [R] (none: all 0) -> (ids [R, k], logits [R, k]); num_rows: of the program; allowed:
    bool [R, V].
    """
    rows, vocab = logits.shape
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[list(seen)] = 1
    run = KernelRun(device, rows, num_rows, penalty=penalty, num_candidates=k)
    candidates = run.in_out("candidates", np.full((rows, MAX_CANDIDATES, 2), 123, np.uint32))
    bits = run.input("seen", np.packbits(bits, bitorder="little").view(np.uint32), by_row=False)
    ids = run.input("token_ids", np.asarray(token_ids or [0] * rows, np.uint32))
    beyond = np.full(64, 1e38, np.float32)  # would be the best
    whole = run.input("logits", np.concatenate([logits.reshape(-1), beyond]), by_row=False)
    # rows that are not in use lie past the values: the guards would be seen
    whole = whole.part("logits", 0, (run.num_rows, vocab))
    mask = run.input("allowed", mask_words(allowed, run.num_rows, vocab), by_row=False)
    best = run.scratch("best", run.num_rows, -(-vocab // 64), 2)
    kernels.top_k(run.program, whole, bits, ids, mask, best, candidates)
    found = run.finish()["candidates"]
    assert (found[:, k:] == 123).all(), "wrote more than k candidates"
    return found[:, :k, 1].astype(np.int64), np.ascontiguousarray(found[:, :k, 0]).view(np.float32)


def mask_words(allowed: np.ndarray | None, num_rows: int, vocab: int) -> np.ndarray:
    """As the shader reads it. Where it does not count it is full of bits that would forbid; bits past the vocabulary
    are set.
    """
    bits = np.zeros((num_rows, -(-vocab // 32) * 32), np.uint8)
    if allowed is not None:
        bits[:, vocab:] = 1
        bits[: len(allowed), :vocab] = allowed
    words = np.packbits(bits, bitorder="little").view(np.uint32)
    return np.concatenate([np.array([allowed is not None], np.uint32), words])


def top_k(device, logits: np.ndarray, k: int, seen=(), penalty: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """One row: logits [V] -> (ids [k], logits [k])"""
    ids, values = top_k_rows(device, logits[None], k, seen, penalty)
    return ids[0], values[0]


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


def compare_rows(device, logits: np.ndarray, k: int, seen, penalty: float, token_ids, num_rows=None) -> None:
    """Row r as expected of it alone, with tokens 1 to r of the run among those seen."""
    ids, values = top_k_rows(device, logits, k, seen, penalty, tuple(token_ids), num_rows)
    for r, row in enumerate(logits):
        wanted_ids, wanted = expected(row, k, {*seen, *token_ids[1 : r + 1]}, penalty)
        np.testing.assert_array_equal(ids[r], wanted_ids, err_msg=f"row {r}")
        np.testing.assert_array_equal(values[r], wanted, err_msg=f"row {r}")


@pytest.mark.smoke
@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("rows", "num_rows"), [(1, 8), (2, 2), (3, 4), (8, 8)])
@pytest.mark.parametrize(("vocab", "k"), [(33, 7), (97, 33), (4097, 20)])
def test_rows_have_the_penalties_of_tokens_before_them(device, profile, rows, num_rows, vocab, k):
    """The best of each row are in the run, so that every row differs from the others by them: the first token of the
    run does not count, one that is there twice or was seen before counts once.
    """
    rng = np.random.default_rng(vocab + rows)
    logits = rng.standard_normal((rows, vocab)).astype(np.float32)
    token_ids = rng.integers(0, vocab, rows)
    token_ids[0] = logits[-1].argmax()
    token_ids[1:2] = vocab - 1
    token_ids[2:3] = logits[-1].argmin()
    logits[:, token_ids] += 3
    token_ids[4:6] = token_ids[1:2]
    with using_profile(device, profile):
        compare_rows(device, logits, k, [0, vocab - 1, 31], 1.5, token_ids.tolist(), num_rows)
        compare_rows(device, logits, k, [], 0.0, token_ids.tolist(), num_rows)


def test_rows_at_the_size_of_the_vocabulary(device):
    rng = np.random.default_rng(9)
    logits = rng.standard_normal((3, 248320)).astype(np.float32)
    best = np.argsort(-logits, axis=1)[:, :40]
    compare_rows(device, logits, 40, best[0, ::3].tolist(), 0.25, [7, int(best[1, 0]), int(best[2, 0])])


def test_rows_with_ties_and_what_is_not_finite(device):
    """A NaN in one row is that row's alone."""
    logits = np.random.default_rng(3).integers(-2, 3, (4, 777)).astype(np.float32)
    wanted = [expected(row, 12) for row in logits]
    logits[2, [64, 776]] = np.nan, np.inf
    ids, values = top_k_rows(device, logits, 12)
    for r in (0, 1, 3):
        np.testing.assert_array_equal(ids[r], wanted[r][0])
        np.testing.assert_array_equal(values[r], wanted[r][1])
    assert (
        ids[2, :2].tolist() == [64, 776] and not np.isfinite(values[2, :2]).any() and np.isfinite(values[2, 2:]).all()
    )


@pytest.mark.parametrize("what", ["logits", "token_ids", "allowed", "block_best", "candidates"])
def test_more_rows_than_there_is_room_for_are_refused(device, what):
    run = KernelRun(device, 4, num_candidates=1)
    shapes = {
        "logits": (4, 64),
        "token_ids": (4,),
        "allowed": (9,),
        "block_best": (4, 1, 2),
        "candidates": (4, 64, 2),
    }
    shapes[what] = (3 if what != "allowed" else 8, *shapes[what][1:])
    room = {name: run.scratch(name, *shape) for name, shape in shapes.items()}
    with pytest.raises(ShapeError, match="top_k: 4 rows, wanted at most 3"):
        kernels.top_k(run.program, seen=run.scratch("seen", 2), **room)


NO_ID = 2**32 - 1


def expected_allowed(logits: np.ndarray, k: int, allowed: np.ndarray, seen=(), penalty: float = 0.0):
    """Those of the allowed tokens, then minus infinity without an id."""
    lowered = np.where(allowed, logits.astype(np.float32), 0)
    lowered[list(seen)] -= np.float32(penalty)
    ids = np.flatnonzero(allowed)
    ids = ids[np.lexsort((ids, -lowered[ids]))][:k]
    missing = k - len(ids)
    return np.append(ids, [NO_ID] * missing), np.append(lowered[ids], np.full(missing, -np.inf, np.float32))


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(
    ("vocab", "k", "share"),
    [(1, 1, 1.0), (31, 5, 0.5), (33, 8, 0.1), (65, 64, 0.5), (4097, 20, 0.002), (50001, 40, 0.5), (248320, 20, 0.01)],
)
def test_only_allowed_tokens_are_candidates(device, profile, vocab, k, share):
    """Each row by its own bits, penalties too; the best token of all is never among them."""
    rng = np.random.default_rng(vocab)
    logits = rng.standard_normal((3, vocab)).astype(np.float32)
    allowed = rng.random((3, vocab)) < share
    allowed[:, vocab - 1] = True
    if vocab > 1:
        allowed[np.arange(3), logits.argmax(axis=1)] = False
    seen, token_ids = [0, vocab - 1], (0, vocab - 1, vocab // 2)
    with using_profile(device, profile):
        ids, values = top_k_rows(device, logits, k, seen, 0.5, token_ids, 4, allowed=allowed)
    for r, row in enumerate(logits):
        wanted_ids, wanted = expected_allowed(row, k, allowed[r], {*seen, *token_ids[1 : r + 1]}, 0.5)
        np.testing.assert_array_equal(ids[r], wanted_ids, err_msg=f"row {r}")
        np.testing.assert_array_equal(values[r], wanted, err_msg=f"row {r}")


@pytest.mark.smoke
def test_a_mask_that_allows_all_changes_no_bit(device):
    logits = np.random.default_rng(6).integers(-2, 3, (2, 777)).astype(np.float32)
    plain = top_k_rows(device, logits, 30, [5], 0.5)
    masked = top_k_rows(device, logits, 30, [5], 0.5, allowed=np.ones((2, 777), bool))
    for one, other in zip(plain, masked, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_not_finite_is_seen_where_it_is_not_allowed(device):
    """A fault of the device is one whatever the grammar wants."""
    logits = np.zeros((2, 200), np.float32)
    logits[1, 70] = np.nan
    allowed = np.zeros((2, 200), bool)
    allowed[:, 3] = True
    ids, values = top_k_rows(device, logits, 2, allowed=allowed)
    assert ids.tolist() == [[3, NO_ID], [70, 3]]
    assert np.isnan(values[1, 0]) and values[1, 1] == 0


def test_nothing_allowed_gives_no_token(device):
    ids, values = top_k_rows(device, np.ones((1, 65), np.float32), 3, allowed=np.zeros((1, 65), bool))
    assert ids.tolist() == [[NO_ID] * 3] and (values == -np.inf).all()
