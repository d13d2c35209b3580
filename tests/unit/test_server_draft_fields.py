"""Drafts in bodies of requests: llama-server's fields over the server's own settings."""

from dataclasses import replace

import pytest

from tests.unit.request_bodies import HELLO, chat, completion
from vkprefill import SpecDecodeConfig
from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.requests import Defaults, parse_chat, parse_completion

DRAFTS = SpecDecodeConfig("ngram", n_max=4, n_min=2, p_min=0.5)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, DRAFTS),
        ({"speculative.n_max": 2, "speculative.p_min": 0}, replace(DRAFTS, n_max=2, p_min=0)),
        ({"speculative.n_max": 16.0, "speculative.n_min": 0}, replace(DRAFTS, n_max=7, n_min=0)),
        ({"speculative.n_max": 1}, replace(DRAFTS, n_max=1, n_min=1)),
        ({"speculative.n_min": 9}, replace(DRAFTS, n_min=4)),
        ({"speculative.n_max": 0, "speculative.n_min": 5}, replace(DRAFTS, type="none")),
        ({"speculative.n_max": None, "speculative": {}}, DRAFTS),
        ({"speculative.type": "none"}, replace(DRAFTS, type="none")),
        ({"speculative": {"n_max": 2, "p_min": 0, "type": None}}, replace(DRAFTS, n_max=2, p_min=0)),
        ({"speculative": {"n_max": 2}, "speculative.n_max": 3}, replace(DRAFTS, n_max=3)),
        ({"speculative": {"n_max": 2, "n_min": 1}, "speculative.n_max": 16}, replace(DRAFTS, n_max=7, n_min=1)),
        ({"speculative.n_max": 16, "speculative.n_min": 9}, replace(DRAFTS, n_max=7, n_min=7)),
        ({"speculative.types": "draft-mtp"}, replace(DRAFTS, type="draft-mtp")),
        ({"speculative": {"types": "none"}, "speculative.type": "none"}, replace(DRAFTS, type="none")),
        ({"speculative.type": "ngram,draft-mtp"}, replace(DRAFTS, type="draft-mtp,ngram")),
    ],
)
def test_drafts_over_the_servers_own(fields, found):
    """llama-server's fields; what is out of the range that can be done is brought into it, as there."""
    defaults = Defaults(decode=DRAFTS)
    assert parse_chat({"messages": HELLO, **fields}, defaults).decode == found
    assert parse_completion({"prompt": "x", **fields}, defaults).decode == found


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_max", -1, "found -1, wanted a whole number of at least 0"),
        ("n_max", 1.5, "found 1.5, wanted"),
        ("n_max", "3", "found '3', wanted a whole number"),
        ("n_min", "1", "found '1', wanted"),
        ("p_min", 1.1, "found 1.1, wanted a number from 0 to 1"),
        ("p_min", "half", "found 'half', wanted a number from 0 to 1"),
        ("type", "draft", "found 'draft', wanted none or auto or draft-mtp"),
        ("types", "draft", "found 'draft', wanted none or auto or draft-mtp"),
        ("n_maximum", 3, r"not known, wanted one of (speculative\.)?type, (speculative\.)?n_max, "),
        ("ngram_size_n", 3, "not known, wanted one of"),
    ],
)
def test_bad_settings_of_drafts(name, value, message):
    for fields in ({f"speculative.{name}": value}, {"speculative": {name: value}}):
        for asked in (chat, completion):
            with pytest.raises(ApiError, match=f"^speculative.{name}: {message}") as refused:
                asked(**fields)
            assert (refused.value.status, refused.value.param) == (400, f"speculative.{name}")
    with pytest.raises(ApiError, match="^speculative: found 3, wanted an object"):
        chat(speculative=3)


def test_settings_of_drafts_that_contradict_each_other():
    """Both of the request: where one is the server's, n_min is lowered."""
    for fields in (
        {"speculative.n_max": 2, "speculative.n_min": 7},
        {"speculative": {"n_max": 2, "n_min": 7}},
        {"speculative": {"n_min": 7}, "speculative.n_max": 2},
    ):
        with pytest.raises(ApiError, match="^speculative.n_min: found 7, wanted at most n_max, which is 2"):
            chat(**fields)
    with pytest.raises(ApiError, match="^speculative.types: found ngram beside type none, wanted one of them"):
        chat(**{"speculative.type": "none", "speculative.types": "ngram"})
