"""How many tokens a selection is expected to keep: first guesses, what was learnt, the file it is kept in."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vkprefill.specprefill.selection import Selection
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.specprefill.shares import FEW, MAX_CHOICES, KeptShares

MASS = SpecPrefillConfig(max_keep=0)
SHARE = SpecPrefillConfig(select_mode="chunk", keep_ratio=0.2)


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vkprefill" / "shares.json"


def selection(kept: int, protected: int = 0, capped: int = 0) -> Selection:
    some = np.arange(kept)
    return Selection(some, ((0, kept),), some[:protected], some, some, protected, capped)


@pytest.mark.parametrize(
    "config, new, protected, expected",
    [
        (MASS, 1000, 0, 595),  # 0.7 of 0.85: above what demo prompts keep, 0.29 to 0.51
        (replace(MASS, cumulative_mass=0.5), 1000, 0, 350),
        (MASS, 1000, 100, 100 + 0.595 * 900),
        (SpecPrefillConfig(), 10_000, 0, 2000),
        (SpecPrefillConfig(), 10_000, 3000, 3000),
        (SHARE, 1000, 0, 200),
        (SHARE, 1000, 150, 200),  # within the share
        (SHARE, 1000, 300, 300),
        (SHARE, 50_000, 0, 10_000),
        (replace(SHARE, max_keep=500), 50_000, 0, 500),
        (replace(MASS, keep_ratio=1.0, max_keep=5), 1000, 0, 1000),
    ],
)
def test_first_guesses(config, new, protected, expected):
    assert KeptShares().expected(config, new, protected) == pytest.approx(expected)


def test_means_and_the_safe_side_until_there_are_some():
    shares = KeptShares()
    seen = (300, 400, 500)
    for kept in seen:
        assert shares.expected(MASS, 1000) == pytest.approx(595), "less was seen, but seldom"
        shares.note(MASS, selection(kept), 1000)
    assert len(seen) == FEW and shares.expected(MASS, 1000) == pytest.approx(400)
    shares.note(SHARE, selection(900), 1000)
    assert shares.expected(SHARE, 1000) == 900, "more was seen"


def test_protected_tokens_and_limits_are_not_learnt():
    shares = KeptShares()
    for _ in range(FEW):
        shares.note(MASS, selection(600, protected=200, capped=80), 1000)  # 480 of 800
        shares.note(SHARE, selection(300, protected=300), 1000)  # more than the share: it says nothing of it
        shares.note(MASS, selection(10, protected=10), 10)
    assert shares.expected(MASS, 1000) == pytest.approx(600)
    assert shares.expected(MASS, 1000, 500) == pytest.approx(500 + 0.6 * 500)
    assert shares.expected(SHARE, 1000) == 200


def test_other_settings_do_not_count():
    """But guards do not change which tokens are chosen."""
    shares = KeptShares()
    for _ in range(FEW):
        shares.note(MASS, selection(250), 1000)
    others = [{"cumulative_mass": 0.9}, {"select_mode": "chunk"}, {"protect": ((0, 9),)}, {"tail": 1}, {"lookahead": 2}]
    before = [KeptShares().expected(replace(MASS, **settings), 1000) for settings in others]
    assert [shares.expected(replace(MASS, **settings), 1000) for settings in others] == before
    for settings in others:
        shares.note(replace(MASS, **settings), selection(1000), 1000)
    same = replace(
        MASS, min_tokens=5, tool_guard=False, tool_match="substrings", break_even=False, break_even_safety=3.0,
        draft_tokens_per_s=4.0, target_tokens_per_s=5.0, on_error="error",
    )  # fmt: skip
    assert shares.expected(MASS, 1000) == shares.expected(same, 1000) == pytest.approx(250)


def test_what_is_learnt_is_kept(file):
    """By name; the 1st, 2nd, 4th ... of a kind is written, ranges of one prompt's own are not."""
    shares = KeptShares("a model|a draft")
    for _ in range(4):
        shares.note(MASS, selection(250), 1000)
        shares.note(replace(MASS, protect=((0, 9),)), selection(999), 1000)
    assert [entry["count"] for entry in json.loads(file.read_text()).values()] == [4]
    assert KeptShares("a model|a draft").expected(MASS, 1000) == pytest.approx(250)
    assert KeptShares("another").expected(MASS, 1000) == KeptShares().expected(MASS, 1000) == pytest.approx(595)
    file.write_text("{")
    assert KeptShares("a model|a draft").expected(MASS, 1000) == pytest.approx(595)


def test_both_are_bounded(file):
    shares = KeptShares("x")
    for tail in range(5 * MAX_CHOICES):
        shares.note(replace(MASS, tail=tail), selection(100), 1000)
    assert len(shares._shares) == MAX_CHOICES
    assert len(json.loads(file.read_text())) == 4 * MAX_CHOICES
