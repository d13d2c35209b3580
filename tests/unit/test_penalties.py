"""Bias and penalties against numbers worked out by hand."""

import numpy as np
import pytest

from vkprefill.errors import RequestError
from vkprefill.generation.penalties import Penalties
from vkprefill.generation.sampling import SamplingConfig

LOGITS = np.array([2.0, -1.0, 0.5, 4.0, -3.0], np.float32)


def applied(prompt, answer, **settings) -> list[float]:
    penalties = Penalties(SamplingConfig(**{"presence_penalty": 0.0, **settings}), prompt, len(LOGITS))
    for token_id in answer:
        penalties.note(token_id)
    logits = LOGITS.copy()
    penalties.apply(logits)
    return logits.tolist()


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, [2, -1, 0.5, 4, -3]),
        ({"frequency_penalty": 0.5}, [1.5, -2, 0.5, 4, -3]),
        ({"presence_penalty": 1.5}, [0.5, -2.5, 0.5, 4, -3]),
        ({"frequency_penalty": 0.5, "presence_penalty": 1}, [0.5, -3, 0.5, 4, -3]),
        ({"repeat_penalty": 2}, [1, -2, 0.5, 2, -6]),
        ({"repeat_penalty": 2, "repeat_last_n": 4}, [1, -2, 0.5, 4, -6]),
        ({"repeat_penalty": 2, "repeat_last_n": 1}, [2, -2, 0.5, 4, -3]),
        ({"repeat_penalty": 2, "repeat_last_n": 0}, [2, -1, 0.5, 4, -3]),
        ({"repeat_penalty": 2, "repeat_last_n": -1}, [1, -2, 0.5, 2, -6]),
        ({"logit_bias": {1: 100, 3: -4.5}}, [2, 99, 0.5, -0.5, -3]),
        # the bias first: 4 - 4.5 is negative, so the repeat penalty multiplies
        ({"logit_bias": [[3, -4.5]], "repeat_penalty": 2}, [1, -2, 0.5, -1, -6]),
        ({"repeat_penalty": 2, "frequency_penalty": 0.5}, [0.5, -3, 0.5, 2, -6]),
    ],
)
def test_after_a_prompt_and_an_answer(settings, wanted):
    assert applied([3, 4], [1, 0, 1], **settings) == wanted


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ("5", "logit_bias: found '5', wanted numbers by token id"),
        ([5], "logit_bias: found 5, wanted a token id and a number"),
        ({-1: 2}, "logit_bias: a token id: found -1"),
        ({1: float("nan")}, "logit_bias: found nan"),
    ],
)
def test_wrong_biases(bias, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        SamplingConfig(logit_bias=bias)


def test_a_bias_of_no_token():
    with pytest.raises(RequestError, match="^logit_bias: found token id 5, wanted 0 to 4"):
        applied([], [], logit_bias={5: 1})
