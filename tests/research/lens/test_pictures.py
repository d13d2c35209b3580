"""bertviz and circuitsvis draw our arrays."""

import circuitsvis
import pytest
import torch
from bertviz import head_view, model_view

from vkprefill import AttentionCapture


@pytest.mark.parametrize("draw", [head_view, model_view])
def test_bertviz(recorded, tokens, draw):
    """Rows of the attention layers, and of a delta-net layer as magnitudes."""
    html = draw([torch.from_numpy(recorded.attention(3))], tokens, html_action="return").data
    assert all(str(round(float(weight), 3))[:4] in html for weight in recorded.attention(3)[0, :, -1, 0])


def test_bertviz_draws_delta_net_rows(model, recorded, tokens):
    capture = AttentionCapture(layers=None, queries=None, delta_layers=None)
    model.prefill(recorded.token_ids.tolist(), capture=capture)
    every = {**capture.pattern, **{layer: abs(rows) for layer, rows in capture.delta_pattern.items()}}
    drawn = [torch.from_numpy(every[layer][None]) for layer in sorted(every)]
    assert "head" in head_view(drawn, tokens, html_action="return").data


def test_circuitsvis(recorded, tokens):
    drawn = circuitsvis.attention.attention_patterns(tokens=tokens, attention=torch.from_numpy(recorded["pattern", 3]))
    assert "AttentionPatterns" in str(drawn) and all(text.strip() in str(drawn) for text in tokens if text.isalpha())
