"""Edits of chosen heads, of queries that the device has scaled, and of nothing: numpy's own result, and bits."""

import numpy as np
import pytest

from vkprefill import Edit, RequestError

QUERIES = ("q", 0)  # of a delta-net layer: the device has them divided by the square root of Dk
HEADS = [1, 0]
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def model(load_model):
    """Dk is 32, whose square root float32 does not hold; chunks of 8."""
    return load_model("tiny-d-mixed", kv_type="f32", prefill_chunk=8)


@pytest.fixture(scope="module")
def plain(model):
    names = [name for name in model.points if not name.endswith("ssm_state")]
    return model.record(IDS, names, tokens="all")


def expected(rows: np.ndarray, operation: str, heads: list[int], numbers: np.ndarray) -> np.ndarray:
    """numbers [T or 1, len(heads), ...], the i-th of them to the i-th head named."""
    found = rows.astype(np.float64)
    for i, head in enumerate(heads):
        one = numbers[:, i]
        found[:, head] = {"set": 0 * found[:, head] + one, "add": found[:, head] + one, "scale": found[:, head] * one}[
            operation
        ]
    return found


@pytest.mark.parametrize("operation", ["set", "add", "scale"])
@pytest.mark.parametrize("name", [("z", 3), QUERIES, ("beta", 1)])
def test_numbers_go_to_the_heads_as_they_are_named(model, plain, name, operation):
    """One row for all tokens, and one for each."""
    rows, rng = plain[name], np.random.default_rng(1)
    for count in (1, len(IDS)):
        numbers = rng.uniform(0.25, 0.75, (count, len(HEADS), *rows.shape[2:]))
        edit = Edit(name, heads=HEADS, **{operation: numbers})
        got = model.record(IDS, [name], tokens="all", edits=edit)[name]
        want = expected(rows, operation, HEADS, numbers)
        assert np.abs(got - want).max() <= 4e-7 * np.abs(want).max()  # a few roundings of float32
        others = [h for h in range(rows.shape[1]) if h not in HEADS]
        assert np.array_equal(got[:, others], rows[:, others])


@pytest.mark.parametrize("name", [("z", 3), QUERIES, ("beta", 1)])
def test_a_function_gets_the_heads_named_and_no_others(model, plain, name):
    rows = plain[name]
    seen = []

    def change(found, positions):
        seen.append(found.copy())
        return found * 0.5 + np.array([0.25, 0.5]).reshape(2, *(1,) * (rows.ndim - 2))

    got = model.record(IDS, [name], tokens="all", edits=[Edit(name, call=change, heads=HEADS)])[name]
    assert np.array_equal(np.concatenate(seen), rows[:, HEADS])
    numbers = np.broadcast_to(np.array([0.25, 0.5]).reshape(1, 2, *(1,) * (rows.ndim - 2)), (1, *rows[0, HEADS].shape))
    want = expected(expected(rows, "scale", HEADS, np.full_like(numbers, 0.5)), "add", HEADS, numbers)
    assert np.abs(got - want).max() <= 4e-7 * np.abs(want).max()  # a few roundings of float32
    others = [h for h in range(rows.shape[1]) if h not in HEADS]
    assert np.array_equal(got[:, others], rows[:, others])


def test_a_function_gets_heads_of_a_state(model):
    name, last = ("ssm_state", 1), len(IDS) - 1
    plain = model.record(IDS, [name])[name]

    def change(states, positions):
        assert states.shape == (1, 2, *plain.shape[1:]) and np.array_equal(states[0], plain[HEADS])
        states[:, 0] = 0

    got = model.record(IDS, [name], edits=Edit(name, call=change, heads=HEADS, positions=last))[name]
    assert not got[HEADS[0]].any()
    others = [h for h in range(len(plain)) if h != HEADS[0]]
    assert np.array_equal(got[others], plain[others])
    with pytest.raises(RequestError, match=r"call: of blocks.1.*ssm_state: it returned float64 of shape \[3\]"):
        model.record(IDS, [name], edits=[Edit(name, call=lambda *_: np.zeros(3))])


NOTHING = {
    "set": lambda rows: {"set": rows},
    "add": lambda rows: {"add": 0.0},
    "scale": lambda rows: {"scale": 1.0},
    "returns nothing": lambda rows: {"call": lambda found, positions: None},
    "returns what it got": lambda rows: {"call": lambda found, positions: found},
    "returns a copy": lambda rows: {"call": lambda found, positions: found.astype(np.float64)},
}


@pytest.mark.parametrize("change", NOTHING)
def test_an_edit_of_nothing_keeps_all_bits(model, plain, change):
    """Of every point that can be edited at once."""
    edits = [
        Edit(name, **NOTHING[change](rows))
        for name, rows in plain.items()
        if not name.endswith(("attn_scores", "pattern", "logits"))
    ]
    got = model.record(IDS, list(plain), tokens="all", edits=edits)
    for name, rows in plain.items():
        assert np.array_equal(got[name].view(np.uint32), rows.view(np.uint32)), name


def test_one_number_of_a_row_is_changed(model, plain):
    """The others of the scaled queries keep their bits; so does all before it."""
    rows = plain[QUERIES].copy()
    rows[5, 1, 7] = 0.125
    got = model.record(IDS, [QUERIES], tokens="all", edits=[Edit(QUERIES, set=rows)])[QUERIES]
    assert abs(got[5, 1, 7] - 0.125) < 1e-7
    got[5, 1, 7] = plain[QUERIES][5, 1, 7]
    assert np.array_equal(got.view(np.uint32), plain[QUERIES].view(np.uint32))
    edits = [Edit(QUERIES, zero=[3], heads=1, positions=[2, 9]), Edit(QUERIES, add=1.0, positions=-1)]
    got, want = model.record(IDS, [QUERIES], tokens="all", edits=edits)[QUERIES], plain[QUERIES].copy()
    want[[2, 9], 1, 3] = 0
    assert np.array_equal(got[:-1], want[:-1]) and np.abs(got[-1] - want[-1] - 1).max() < 1e-6


def test_edits_need_not_be_a_list(model):
    with pytest.raises(RequestError, match="edits: found 5, wanted vkprefill.Edit"):
        model.record(IDS, "embed", edits=5)
