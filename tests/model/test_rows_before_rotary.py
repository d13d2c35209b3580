"""Scoring with rows of queries and keys as they were before their rotary, against the float64 oracle of the model."""

import numpy as np
import pytest

from tests.reference import attention
from tests.reference.forward import ReferenceModel
from vkprefill import SpecPrefillConfig
from vkprefill.engine.model import Model
from vkprefill.specprefill.scorer import Scorer
from vkprefill.specprefill.selection import importance_from_rows
from vkprefill.specprefill.self_scorer import SelfScorer

LIMIT = 1e-4  # of the largest value: the model's own rounding in the layers before
POOL = 5


@pytest.fixture(scope="module")
def model(load_model) -> Model:
    """Attention layers 1 and 3 of 4."""
    return load_model("mtp-b-q4km", kv_type="f32", max_context=2048)


def without_positions(model: Model, token_ids: list[int], positions: list[int], layer: int) -> np.ndarray:
    """float64 [H, T, T]: softmax rows of q k before the rotary, which the layers before see with it."""
    oracle = ReferenceModel(model.path)
    out, order = oracle.forward(token_ids, positions, oracle.new_state()), np.arange(len(token_ids))
    queries, keys = out[f"Qcur_normed-{layer}"], out[f"Kcur_normed-{layer}"]
    return attention.attend(queries, keys, np.zeros_like(keys), order, order)[1]


def close_to(found: np.ndarray, want: np.ndarray) -> bool:
    return np.abs(found - want).max() <= LIMIT * want.max()


@pytest.mark.parametrize("gapped", [False, True])
def test_own_layer(model, prompt, gapped):
    """Also where a first turn lies before it, of which most was left out."""
    held = [*range(0, 60, 7), *range(90, 100)] if gapped else []
    new = range(5000, 5200) if gapped else range(300)
    end = new.stop
    ids = (prompt * 20)[:end]
    cache, scorer, config = model.new_cache(), SelfScorer(model), SpecPrefillConfig(rows="nope", pool_size=POOL)
    if held:
        model.prefill([ids[at] for at in held], held, cache)
    where = [*held, *new]
    found = scorer.score(ids, config, cache, queries=40, cached_n=new.start).values[where]
    cache.reset()
    rows = without_positions(model, [ids[at] for at in where], where, 1)
    want = importance_from_rows([rows[None, :, at] for at in range(-40, 0)], len(where), POOL)
    assert close_to(found, want)
    scorer.close()
    cache.close()


def test_the_two_kinds_are_apart(model, prompt):
    """One after another on the same model: neither has the other's rows."""
    cache, scorer = model.new_cache(), SelfScorer(model)
    found = {}
    for rows in ("rope", "nope", "rope", "nope"):
        values = scorer.score(prompt, SpecPrefillConfig(rows=rows), cache).values
        np.testing.assert_array_equal(values, found.setdefault(rows, values))
        cache.reset()
    assert not close_to(found["rope"], found["nope"])
    scorer.close()
    cache.close()


@pytest.mark.parametrize("lookahead", [0, 3])
def test_draft(model, prompt, lookahead):
    """All attention layers, the queries of tokens that are made up too."""
    scorer = Scorer(model)
    config = SpecPrefillConfig(rows="nope", score_depth=1.0, lookahead=lookahead, pool_size=POOL)
    found = scorer.score(prompt, config)
    scorer.close()
    ids, cache = list(prompt), model.new_cache()
    token = int(model.prefill(ids, cache=cache).argmax())
    for _ in range(found.num_steps - 1):
        ids.append(token)
        token = int(model.decode(token, cache).argmax())
    cache.close()
    assert found.num_steps == lookahead + 1
    rows = np.stack([without_positions(model, ids, list(range(len(ids))), layer) for layer in (1, 3)])
    want = importance_from_rows([rows[:, :, at] for at in range(299, len(ids))], 300, POOL)
    assert close_to(found.values, want)


def test_draft_that_stops_early(model, prompt):
    scorer = Scorer(model)
    found = scorer.score(prompt, SpecPrefillConfig(rows="nope", score_layers=(1,), pool_size=POOL))
    scorer.close()
    rows = without_positions(model, prompt, list(range(300)), 1)
    want = importance_from_rows([rows[None, :, at] for at in range(-32, 0)], 300, POOL)
    assert found.num_steps == 32 and close_to(found.values, want)


def test_windows(model, prompt):
    """Each reads its own beginning: positions count from there, and the angles between tokens are the same."""
    scorer = Scorer(model)
    found = scorer.score(
        prompt, SpecPrefillConfig(rows="nope", window=200, score_depth=1.0, lookahead=0, pool_size=POOL)
    )
    scorer.close()
    rows = without_positions(model, prompt[100:], list(range(200)), 1)
    later = without_positions(model, prompt[100:], list(range(200)), 3)
    want = importance_from_rows([np.stack([rows[:, -1], later[:, -1]])], 200, POOL)
    assert close_to(found.values[100:], want)
