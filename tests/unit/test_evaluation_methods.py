"""Which tokens each method runs, what a variant and a budget mean, and the numbers of the report."""

import io
import math
import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from vkprefill.errors import RequestError
from vkprefill.evaluation.methods import Budget, Variant, choose, end_chunks, layer_of, random_chunks, read_variant
from vkprefill.evaluation.plot import layer_grids, plot, require_matplotlib
from vkprefill.evaluation.report import COLUMNS, cells, columns, markdown, rows, table, wilson
from vkprefill.evaluation.runs import Outcome, divergence
from vkprefill.evaluation.task import Task
from vkprefill.specprefill.protection import Protected
from vkprefill.specprefill.questions import Requests
from vkprefill.specprefill.selection import boost, normalise, select
from vkprefill.specprefill.settings import SpecPrefillConfig

BASE = Variant("", SpecPrefillConfig(chunk_align="tokens"))
TOKENS = list(range(1000))  # 31 whole chunks and one of 8 tokens
QUESTION_AT = 970  # in chunk 30
IMPORTANCE = np.random.Generator(np.random.SFC64(1)).random(1000).astype(np.float32)
FORCED = Variant("", BASE.config, force_question=True)
PROTECTED = Protected(fixed=((0, 10),), question=Requests(*[((400, 440),)] * 3))
TASK = Task("a", "single", 1000, "", tuple(TOKENS), QUESTION_AT, ("x",), protected=PROTECTED)
NO_TOKENIZER = SimpleNamespace()


def chosen(budget: Budget, variant: Variant = BASE):
    return choose(IMPORTANCE, TASK, variant, budget, NO_TOKENIZER)


def test_forced_question_counts_in_the_budget():
    for share in (0.1, 0.2, 0.5):
        selection = chosen(Budget("chunk", share), FORCED)
        assert set(range(960, 1000)) <= set(selection.kept.tolist())
        assert len(selection.kept) <= math.ceil(share * 32) * 32 + 4
        assert len(selection.kept) > math.ceil(share * 32) * 32 - 32


def test_the_choice_is_the_products():
    for budget in (Budget("chunk", 0.2), Budget("mass", 0.5)):
        config = budget.apply(BASE.config)
        want = select(boost(normalise(IMPORTANCE, "minmax"), config), config, protected=((0, 10), (400, 440)))
        assert np.array_equal(chosen(budget).kept, want.kept)
        assert {*range(10), *range(400, 440)} <= set(want.kept.tolist())
        off = Variant("", replace(BASE.config, protect_question=False))
        assert not {*range(400, 440)} <= set(chosen(budget, off).kept.tolist()) >= {*range(10)}


def test_all_kept():
    assert chosen(Budget("chunk", 1.0)).kept_all


@pytest.mark.parametrize(
    "budget", [Budget("chunk", 0.1), Budget("chunk", 0.3), Budget("mass", 0.4), Budget("chunk", 1.0)]
)
def test_controls_keep_as_many_tokens(budget):
    selection = chosen(budget)
    for kept in (random_chunks(selection, random.Random(1)), end_chunks(selection)):
        assert len(kept) == len(selection.kept) and (np.diff(kept) > 0).all()
        assert set(selection.forced.tolist()) <= set(kept.tolist())


def test_random_chunks_follow_the_seed_and_ends_are_the_ends():
    selection = chosen(Budget("chunk", 0.2))
    one, same, other = (random_chunks(selection, random.Random(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    ends = end_chunks(chosen(Budget("chunk", 0.2), replace(BASE, config=replace(BASE.config, protect_question=False))))
    assert np.diff(ends).max() > 700 and (np.diff(ends) > 1).sum() == 1, "one gap in the middle"


def test_variants():
    found = read_variant("lookahead=3,pool_size=1", BASE)
    assert (found.label, found.config.lookahead, found.config.pool_size, found.force_question) == (
        "lookahead=3,pool_size=1",
        3,
        1,
        False,
    )
    assert found.scoring != BASE.scoring
    assert read_variant("score_layers=3,7,lookahead=0", BASE).config.score_layers == (3, 7)
    forced = read_variant("force_question=yes", BASE)
    assert forced.force_question and forced.scoring == BASE.scoring
    for text in ("", "window", "nothing=1", "keep_ratio=0.2", "force_question=maybe"):
        with pytest.raises(RequestError, match="--variant: found"):
            read_variant(text, BASE)
    with pytest.raises(RequestError, match="pool_size"):
        read_variant("pool_size=2", BASE)


def test_divergence():
    row = np.array([1.0, 2.0, -50.0], np.float32)
    assert divergence(row, row) == 0 and divergence(row, row + 3) < 1e-9
    p, q = np.array([0.25, 0.75]), np.array([0.5, 0.5])
    assert divergence(np.log(p), np.log(q)) == pytest.approx((p * np.log(p / q)).sum())
    assert np.isfinite(divergence(np.array([0.0, 2000.0]), np.array([2000.0, 0.0])))


def test_wilson():
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-3)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-3)
    assert wilson(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-3)


ABOUT = dict(
    command="vkprefill eval", date="2026-01-01", device="d", driver="v", model="m.gguf", draft=None, version="0"
)


def outcome(**given: object) -> Outcome:
    fields = dict(
        task="t",
        kind="single",
        length=512,
        depth=0.5,
        method="draft",
        budget="20 %",
        variant="",
        answer="x",
        right=True,
        score=1.0,
        same_first=True,
        same_answer=True,
        dense_right=True,
        kl=0.5,
        prompt_n=500,
        kept_n=100,
        score_ms=1.0,
        lookahead_ms=2.0,
        select_ms=3.0,
        prefill_ms=4.0,
    )
    return Outcome(**{**fields, **given})


def test_cells():
    found = cells(
        [
            outcome(method="dense", budget=""),
            outcome(length=1024),
            outcome(kl=1.5, right=False, same_first=False, score_ms=5.0),
            outcome(kind="several", kl=0.1, score_ms=3.0),
            outcome(variant="window=9"),
        ]
    )
    assert [(c.length, c.name) for c in found] == [
        (512, "dense"),
        (512, "draft"),
        (512, "draft window=9"),
        (1024, "draft"),
    ]
    cell = found[1]
    assert (cell.n, cell.right, cell.right_by_kind, cell.same_first) == (
        2,
        1,
        {"single": [0, 1], "several": [1, 1]},
        0.5,
    )
    assert (cell.kl_mean, cell.kept_share, cell.score_ms, cell.ttft_ms) == (0.8, 0.2, 4.0, 13.0)
    assert len(markdown(found, ABOUT).splitlines()) == 4 + 2 + 4 + 2


def test_what_is_kept_of_dense_answers():
    found = [
        outcome(),
        outcome(right=False, score=0.5, same_answer=False),
        outcome(right=False, score=0.0, dense_right=False),
        outcome(dense_right=False, same_answer=False),
    ]
    (cell,) = cells(found)
    assert (cell.right, cell.kept_right, cell.dense_right, cell.score, cell.same_answer) == (2, 1, 2, 0.625, 0.5)
    row = dict(zip(columns([cell]), rows([cell])[0], strict=True))
    assert (row["right"], row["dense kept"], row["score %"], row["same %"]) == ("2/4", "1/2", "62", "50")


def test_checked_answers_have_their_own_columns():
    checked = dict(method="checked", kl=None, same_first=None)
    found = cells(
        [
            outcome(method="dense", budget=""),
            outcome(**checked, check="equal", check_ms=10.0),
            outcome(**checked, check="revised", check_ms=30.0),
        ]
    )
    assert [(c.revised, c.check_ms) for c in found] == [(None, None), (1, 20.0)]
    dense, row = (dict(zip(columns(found), texts, strict=True)) for texts in rows(found))
    assert (row["revised"], row["check ms"], row["KL"], row["first %"]) == ("1/2", "20", "-", "-")
    assert (dense["revised"], dense["check ms"]) == ("-", "-")


def test_columns_without_a_value_are_left_out():
    (cell,) = cells([outcome(same_answer=None, dense_right=None)])
    assert (cell.kept_right, cell.dense_right, cell.same_answer) == (None, None, None)
    assert {*COLUMNS} - {*columns([cell])} == {"dense kept", "same %", "revised", "check ms"}
    assert len(rows([cell])[0]) == len(columns([cell]))


def test_variants_by_layer():
    seven = read_variant("pool_size=1", BASE).by_layer(7)
    assert seven.label == "layer 7 pool_size=1"
    assert (seven.config.scorer, seven.config.score_layer, seven.config.pool_size) == ("self", 7, 1)
    looks, early = read_variant("lookahead=3", BASE), read_variant("score_layer=3", BASE)
    assert looks.seen_by("self") == BASE.seen_by("self") != looks.seen_by("draft")
    assert early.seen_by("draft") == BASE.seen_by("draft") != early.seen_by("self")
    assert layer_of(seven.label) == (7, "pool_size=1") and layer_of(BASE.by_layer(11).label) == (11, "")
    assert read_variant("force_question=yes", BASE).seen_by("self") != BASE.seen_by("self")


def test_without_dense_run():
    (cell,) = cells([outcome(kl=None, same_first=None)])
    assert cell.kl_mean is None and cell.same_first is None and "| - |" in markdown([cell], ABOUT)


def test_picture_of_all_and_none_right():
    pytest.importorskip("matplotlib")
    file = io.BytesIO()
    plot(cells([outcome(method="dense", budget="")] * 20 + [outcome(right=False)] * 7), file)
    assert file.getvalue().startswith(b"\x89PNG")


def test_grids_of_layers_and_budgets():
    """A panel for each length and variant: its rows are layers in their order, its columns budgets as they came."""

    def own(layer: int, budget: str, *right: bool, length: int | None = 512, more: str = "") -> list[Outcome]:
        label = f"layer {layer}{more}"
        return [outcome(method="self", variant=label, budget=budget, right=r, length=length) for r in right]

    found = [
        *own(11, "10 %", False, False),
        *own(3, "10 %", True, False),
        *own(3, "mass 85 %", True, True),
        *own(3, "10 %", True, length=None),
        *own(7, "10 %", False, more=" pool_size=1"),
        outcome(),
        outcome(method="dense", budget=""),
        outcome(method="checked", variant="layer 3", check="equal"),
    ]
    half, other, of_file = layer_grids(cells(found))
    assert (half.title, half.layers, half.budgets) == ("512 tokens", [3, 11], ["10 %", "mass 85 %"])
    np.testing.assert_array_equal(half.shares, [[0.5, 1.0], [0.0, np.nan]])
    assert half.texts == [["1/2", "2/2"], ["0/2", ""]]
    assert (other.title, other.layers, other.shares.tolist()) == ("512 tokens pool_size=1", [7], [[0.0]])
    assert (of_file.title, of_file.texts) == ("file", [["1/1"]])
    assert layer_grids(cells([outcome()])) == []
    pytest.importorskip("matplotlib")
    plot(cells(found), file := io.BytesIO())
    plot(cells([outcome()]), without := io.BytesIO())
    assert file.getvalue().startswith(b"\x89PNG") and _height(file) > _height(without)


def _height(png: io.BytesIO) -> int:
    return int.from_bytes(png.getvalue()[20:24])


def test_table_fits_a_terminal():
    out = io.StringIO()
    Console(file=out, width=80).print(
        table(cells([outcome(method="dense-state", budget="mass 85 %", kl=1.234e-5)]), 80)
    )
    assert "dense-state" in out.getvalue() and "mass 85 %" in out.getvalue() and "1.2e-05" in out.getvalue()


def test_missing_plots_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RequestError, match=r"pip install 'vkprefill\[plots\]'"):
        require_matplotlib()
