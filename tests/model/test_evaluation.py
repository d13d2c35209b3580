"""The built-in pair by every method, and caches cut to some of their rows."""

from collections import Counter
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

import vkprefill
from vkprefill import AttentionCapture, SpecPrefillConfig
from vkprefill.engine.model import Model
from vkprefill.evaluation.methods import (
    CHECKED,
    DENSE,
    DENSE_STATE,
    DRAFT,
    ENDS,
    METHODS,
    RANDOM,
    SELF,
    Budget,
    Variant,
    choose,
)
from vkprefill.evaluation.report import cells
from vkprefill.evaluation.runs import Evaluation, Outcome
from vkprefill.evaluation.task import Task
from vkprefill.evaluation.tasks import make_tasks
from vkprefill.generation.prompt import encode_prompt
from vkprefill.specprefill.pipeline import lent_cache
from vkprefill.specprefill.self_scorer import SelfScorer

from .conftest import BUILT_IN

LENGTH, NUM_TASKS = 600, 4
BASE = Variant("", SpecPrefillConfig())
FREE = Variant("protect_question=off", SpecPrefillConfig(protect_question=False))


@pytest.fixture(scope="module")
def draft(built_in) -> Model:
    with vkprefill.load(BUILT_IN.with_name("draft.gguf"), built_in.device, 2048) as model:
        yield model


@pytest.fixture(scope="module")
def tasks(built_in) -> list[Task]:
    return make_tasks(
        lambda prompt: encode_prompt(built_in, prompt), LENGTH, ("single", "distractors"), NUM_TASKS, seed=0
    )


def outcomes(
    model: Model,
    draft: Model | None,
    tasks: list[Task],
    methods: list[str],
    budgets: list[Budget],
    variants=(BASE,),
    **more,
) -> list[Outcome]:
    """All of a run; what it took is given back, but for what a model keeps once it has scored for itself."""
    if SELF in methods:
        with lent_cache(model, None) as cache, closing(SelfScorer(model)) as scorer:
            ids = max((task.token_ids for task in tasks), key=len)
            scorer.score(ids, variants[0].config, cache)
            model.prefill(ids[-1:], [len(ids) - 1], cache)
            model.decode(ids[-1], cache)
    before, free = Counter(model.device.allocated), len(model.runner.pool.free_pages)
    evaluation = Evaluation(model, draft, methods, budgets, variants, max_tokens=12, **more)
    found = list(evaluation.run(tasks))
    assert len(found) == evaluation.comparisons.runs_per_task * len(tasks)
    evaluation.close()
    assert +Counter(model.device.allocated) == +before and len(model.runner.pool.free_pages) == free
    return found


@pytest.fixture(scope="module")
def run(built_in, draft, tasks) -> list[Outcome]:
    return outcomes(built_in, draft, tasks, [*METHODS], [Budget("chunk", 0.2)], (BASE, FREE))


def test_the_draft_keeps_answers_that_controls_lose(run):
    right = {cell.name: cell.right for cell in cells(run)}
    assert right[DENSE] == right[DRAFT] == right[DENSE_STATE] == right[f"{SELF} layer 3"] == NUM_TASKS
    assert max(right[RANDOM], right[ENDS]) < NUM_TASKS
    kl = {cell.name: cell.kl_mean for cell in cells(run)}
    assert kl[DENSE] == 0 and kl[DRAFT] < 0.1 < min(kl[RANDOM], kl[ENDS])


def test_outcomes(run, tasks):
    for one in run:
        assert one.same_first or one.method != DENSE
        assert (one.score_ms > 0) == (one.method in (DRAFT, SELF, CHECKED)) and one.prefill_ms > 0
        assert bool(one.check) == (one.check_ms > 0) == (one.method == CHECKED)
        assert one.dense_right and one.score == float(one.right) and (one.same_answer or not one.right)
    by_method = {m: [o for o in run if o.method == m and o.variant in ("", "layer 3")] for m in METHODS}
    for method in (RANDOM, ENDS, DENSE_STATE):
        assert [o.kept_n for o in by_method[method]] == [o.kept_n for o in by_method[DRAFT]]
    assert [o.kept_n for o in by_method[DENSE]] == [len(task.token_ids) for task in tasks]


def test_the_same_again(run, built_in, draft, tasks):
    again = outcomes(built_in, draft, tasks[:1], [RANDOM, DRAFT], [Budget("chunk", 0.2)])
    first = {o.method: o for o in run if o.task == tasks[0].id and not o.variant}
    assert [(o.answer, o.kept_n) for o in again] == [(first[o.method].answer, first[o.method].kept_n) for o in again]


def test_all_kept_is_dense(built_in, draft, tasks):
    found = outcomes(built_in, draft, tasks[:1], [DENSE, DRAFT, SELF, RANDOM, DENSE_STATE], [Budget("chunk", 1.0)])
    assert {o.kl for o in found} == {0.0} and len({o.answer for o in found}) == 1


def test_without_draft(built_in, tasks):
    (found,) = outcomes(built_in, None, tasks[:1], [DENSE], [Budget("chunk", 0.2)])
    assert found.right and found.kl == 0


def test_the_models_own_layers_without_a_draft(load_model, tasks):
    """Every layer that can, each with its own choice, and controls as large as the first's."""
    tiny = load_model("mtp-b-q4km", max_context=1024)
    two = [Budget("chunk", 0.2), Budget("chunk", 1.0)]
    variants = (
        BASE,
        Variant("lookahead=3", SpecPrefillConfig(lookahead=3)),
        Variant("tail=99", SpecPrefillConfig(tail=99)),
    )
    layers = [n for n in tiny.config.attention_layers if n < tiny.config.num_hidden_layers - 1]
    ids = tuple(np.random.Generator(np.random.SFC64(3)).integers(0, 256, 300).tolist())
    task = replace(tasks[0], token_ids=ids, protected=None)
    found = outcomes(tiny, None, [task], [DENSE, SELF, RANDOM], two, variants, self_layers=layers)
    named = [f"layer {n}{more}" for more in ("", " tail=99") for n in layers]
    assert {o.variant for o in found if o.method == SELF} == {*named}, "look-ahead makes no difference to them"
    assert {o.kl for o in found if o.budget == "100 %"} == {0.0}
    first = next(o for o in found if o.method == SELF and o.budget == "20 %")
    assert [o.kept_n for o in found if o.method == RANDOM][0] == first.kept_n < len(ids)
    with pytest.raises(vkprefill.RequestError, match="score_layer: found 0, wanted one of"):
        Evaluation(tiny, None, [SELF], two, (BASE,), self_layers=[0])


def test_the_own_choice_is_that_of_speculative_prefill(built_in, tasks):
    config = SpecPrefillConfig(select_mode="chunk", keep_ratio=0.2, scorer="self", break_even=False)
    speculative = vkprefill.SpecPrefill(built_in, None, config)
    task = tasks[1]
    result = speculative.prefill(list(task.token_ids), protected=task.protected)
    result.cache.close()
    speculative.close()
    evaluation = Evaluation(built_in, None, [SELF], [Budget("chunk", 0.2)], (BASE,), max_tokens=12)
    variant = BASE.by_layer(3)
    run, _ = evaluation._run_own(task, variant, Budget("chunk", 0.2))
    evaluation.close()
    assert np.array_equal(run.logits, result.logits) and run.kept_n == len(result.kept)


def test_the_choice_is_that_of_speculative_prefill(built_in, draft, tasks):
    config = SpecPrefillConfig(select_mode="chunk", keep_ratio=0.2)
    speculative = vkprefill.SpecPrefill(built_in, draft, config)
    task = tasks[0]
    scored = speculative.score(list(task.token_ids))
    selection = choose(scored.importance, task, FREE, Budget("chunk", 0.2), built_in.tokenizer)
    speculative.close()
    assert np.array_equal(selection.kept, scored.kept)


def test_checked_answers_are_the_dense_ones(load_model, tasks):
    """Of a model that says anything, from random tokens of which next to nothing is kept: some must be revised."""
    tiny = load_model("mtp-b-q4km", max_context=1024)
    rng = np.random.Generator(np.random.SFC64(9))
    random = [
        replace(tasks[0], id=str(i), token_ids=tuple(rng.integers(0, 256, 260).tolist()), protected=None)
        for i in range(4)
    ]
    found = outcomes(tiny, None, random, [DENSE, SELF, CHECKED], [Budget("chunk", 0.01)], (FREE,), self_layers=[1])
    checked = [o for o in found if o.method == CHECKED]
    own = [o for o in found if o.method == SELF]
    assert all(o.same_answer for o in checked) and {o.variant for o in checked} == {"layer 1 protect_question=off"}
    # A sparse answer that differs late only may be on the dense side by then: that depends on the speeds.
    revised = [o.check == "revised" for o in checked]
    assert revised[0] and all(not sparse.same_answer for sparse, was in zip(own, revised, strict=True) if was)
    assert [o.kept_n for o in checked] == [o.kept_n for o in own] and all(o.check_ms > 0 for o in checked)


def test_who_chooses_for_checked_answers(built_in, draft):
    """Whoever is compared, else the draft where there is one."""

    def compared(draft: Model | None, *methods: str) -> list[str]:
        evaluation = Evaluation(built_in, draft, methods, [Budget("chunk", 0.2)], (BASE,))
        evaluation.close()
        return [v.label for method, v in evaluation.comparisons.compared if method == CHECKED]

    assert compared(draft, DENSE, CHECKED) == compared(draft, DRAFT, CHECKED) == [""]
    assert compared(draft, DRAFT, SELF, CHECKED) == ["", "layer 3"]
    assert compared(draft, SELF, CHECKED) == compared(None, CHECKED) == ["layer 3"]


def test_no_room_for_a_check(load_model, tasks):
    """One line, before an answer that would not be the dense one."""
    tiny = load_model("mtp-b-q4km", max_context=512)
    task = replace(tasks[0], token_ids=tuple(range(250)) + tuple(range(50)), protected=None)
    with pytest.raises(vkprefill.RequestError, match="^check: "):
        outcomes(tiny, None, [task], [CHECKED], [Budget("chunk", 0.2)])


# Cache.copy_rows


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_copied_rows(load_model, kv_type):
    """All rows: bit for bit. Some: the first attention layer's row is the dense one cut and scaled to sum 1."""
    model = load_model("tiny-c-q4km", kv_type=kv_type, max_context=1536)
    ids = np.random.Generator(np.random.SFC64(7)).integers(0, 256, 301).tolist()
    cache = model.new_cache()
    model.extend(ids[:-1], cache)
    whole = cache.copy_rows(range(300))
    rows = [*range(5), *range(100, 150), *range(253, 262), 299]
    some = cache.copy_rows(rows)
    assert (some.positions, some.token_ids, some.next_position) == (rows, [ids[r] for r in rows], 300)

    layer = model.config.attention_layers[0]
    captures = [AttentionCapture(layers=[layer]) for _ in range(2)]
    dense = model.prefill(ids[-1:], cache=cache, capture=captures[0])
    assert np.array_equal(model.prefill(ids[-1:], cache=whole), dense)
    sparse = model.prefill(ids[-1:], cache=some, capture=captures[1])
    assert not np.array_equal(sparse, dense) and np.isfinite(sparse).all()
    want = captures[0].pattern[layer][:, 0, [*rows, 300]]
    got = captures[1].pattern[layer][:, 0]
    assert np.abs(got - want / want.sum(-1, keepdims=True)).max() < 1e-5
    for one in (cache, whole, some):
        one.close()


@pytest.mark.parametrize("rows", [[], [3, 2], [1, 1], [-1], [5], [0.5], [[1]]])
def test_bad_rows(tiny, rows):
    cache = tiny.new_cache()
    tiny.extend([1, 2, 3, 4, 5], cache)
    before = Counter(tiny.device.allocated)
    with pytest.raises(vkprefill.RequestError, match="rows: wanted rising indices from 0 to 4"):
        cache.copy_rows(rows)
    assert Counter(tiny.device.allocated) == before
    cache.close()


def test_no_room_for_a_copy(tiny):
    cache = tiny.new_cache()
    tiny.extend([1] * 1300, cache)
    before, free = Counter(tiny.device.allocated), len(tiny.runner.pool.free_pages)
    with pytest.raises(vkprefill.OutOfMemoryError, match="KV cache"):
        cache.copy_rows(range(1300))
    assert len(tiny.runner.pool.free_pages) == free and +Counter(tiny.device.allocated) == +before
    cache.close()
