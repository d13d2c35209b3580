"""Strips of layers: what a bar stands for, in short prompts and in long ones."""

import re

import numpy as np

from vkprefill.explain.layer_map import ATTENTION, DELTA_NET, MOST_COLUMNS, LayerMap, strips


def bars(text: str) -> list[tuple[int, int, int, str]]:
    """(level, first token, tokens, title) of each."""
    found = re.findall(r'<rect class="h(\d)" x="(\d+)" y="0" width="(\d+)" height="1"><title>([^<]+)</title>', text)
    return [(int(level), int(x), int(width), title) for level, x, width, title in found]


def test_a_bar_for_each_token_that_counts():
    weights = np.float32([[0.5, 1e-6, 0.25], [0.0, 0.0, 3.0]])
    text = strips(LayerMap((DELTA_NET, ATTENTION), weights))
    assert [(x, width, title) for _, x, width, title in bars(text)] == [
        (0, 1, "layer 0, token 0: 0.5"),
        (2, 1, "layer 0, token 2: 0.25"),
        (2, 1, "layer 1, token 2: 3"),
    ]
    assert "0 delta net</th>" in text and "1 attention</th>" in text


def test_long_prompts_have_several_tokens_in_a_bar():
    """The greatest of them, and the last bar is as wide as there are tokens left."""
    total = 3 * MOST_COLUMNS - 1
    weights = np.full((1, total), 0.1, np.float32)
    weights[0, 4] = 0.2
    found = bars(strips(LayerMap((ATTENTION,), weights)))
    assert len(found) == MOST_COLUMNS and found[1][1:] == (3, 3, "layer 0, tokens 3 to 5: 0.2")
    assert found[-1][1:] == (total - 2, 2, f"layer 0, tokens {total - 2} to {total - 1}: 0.1")


def test_columns():
    weights = np.float32([[1, 5, 2, 0, 3], [0, 1, 0, 4, 0]])
    bounds, columns = LayerMap((ATTENTION, DELTA_NET), weights).columns(most=3)
    assert bounds.tolist() == [0, 2, 4, 5] and columns.tolist() == [[5, 2, 3], [1, 4, 0]]
    bounds, columns = LayerMap((ATTENTION, DELTA_NET), weights).columns(most=5)
    assert bounds.tolist() == [0, 1, 2, 3, 4, 5] and np.array_equal(columns, weights)
