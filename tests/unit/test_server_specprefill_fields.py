"""Speculative prefill in bodies of requests: its settings, and how they are refused."""

import pytest

from tests.unit.request_bodies import DEFAULTS, HELLO, chat
from vkprefill import SpecPrefillConfig
from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.requests import Defaults, of_setting, parse_chat


def test_speculative_prefill_of_a_request():
    def settings(**fields: object) -> SpecPrefillConfig:
        return chat(**fields).specprefill.settings

    assert chat(specprefill=False).specprefill.enabled is False and chat(specprefill=True).specprefill.enabled
    assert (
        settings(specprefill={"min_tokens": 5}).min_tokens == 5
        and settings(specprefill={"lookahead": 2}).min_tokens == 8192
    )
    for name in ("specprefill_keep_pct", "speculative_prefill_keep_pct"):
        for value, share in ((0.2, 0.2), (20, 0.2), (1, 1.0), (100, 1.0)):
            found = settings(**{name: value})
            assert (found.keep_ratio, found.select_mode) == (share, "chunk")
    found = chat(specprefill={"kept_ranges": [[0, 4]], "chunk_size": 8}).specprefill
    assert found.kept_ranges == [[0, 4]] and found.settings.chunk_size == 8


def test_settings_are_checked_without_a_draft_too():
    body = {"messages": HELLO, "specprefill": {"lookahead": 2}}
    assert parse_chat(body, Defaults()).specprefill.settings == SpecPrefillConfig(lookahead=2)
    assert parse_chat({"messages": HELLO, "specprefill": True}, Defaults()).specprefill.settings is None
    with pytest.raises(ApiError, match="lookahead"):
        parse_chat({**body, "specprefill": {"lookahead": -2}}, Defaults())


@pytest.mark.parametrize("spec", [None, SpecPrefillConfig(scorer="self")])
def test_there_is_no_draft_to_score(spec):
    body = {"messages": HELLO, "specprefill": {"scorer": "draft"}}
    with pytest.raises(ApiError, match=r"^specprefill.scorer: found draft, but there is no draft model; wanted self"):
        parse_chat(body, Defaults(spec=spec))
    assert parse_chat(body, DEFAULTS).specprefill.settings.scorer == "draft"


def test_what_is_asked_of_all_requests_holds_for_those_that_switch_it_on():
    """Where speculative prefill is off, the server's settings are under those of a request that has some."""
    defaults = Defaults(own_spec=SpecPrefillConfig(check="on", min_tokens=8192))
    for asked in ({"scorer": "self", "min_tokens": 0}, {"kept_ranges": [[0, 4]], "min_tokens": 0}):
        found = parse_chat({"messages": HELLO, "specprefill": asked}, defaults).specprefill.settings
        assert (found.check, found.min_tokens) == ("on", 0)
    assert parse_chat({"messages": HELLO, "specprefill_keep_pct": 20}, defaults).specprefill.settings.keep_ratio == 0.2


@pytest.mark.parametrize(("given", "found"), [("auto", None), (None, None), (3, 3), (3.0, 3)])
def test_the_layer_that_scores(given, found):
    assert chat(specprefill={"scorer": "self", "score_layer": given}).specprefill.settings.score_layer == found


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"score_layer": "all"}, "score_layer"),
        ({"score_layer": 3.5}, "score_layer"),
        ({"score_layer": [3, 7]}, "score_layer"),
        ({"score_layer": "3,7"}, "score_layer"),
        ({"rows": "both"}, "rows"),
        ({"score_layers": [3], "score_depth": 0.5}, "score_depth"),
        ({"window": 8}, "window"),
    ],
)
def test_settings_are_refused_by_their_names(settings, name):
    with pytest.raises(ApiError, match=f"^specprefill.{name}: found") as refused:
        chat(specprefill=settings)
    assert refused.value.param == f"specprefill.{name}"


def test_what_the_engine_refuses_of_settings():
    """It knows settings by their names alone."""
    for message, param in (
        ("score_layer: found 1, wanted one of 3", "specprefill.score_layer"),
        ("check: no room for a second cache", "specprefill.check"),
        ("kept_ranges: found [5, 3]", "specprefill.kept_ranges"),
        ("scorer self: m has no full-attention layer", "specprefill.scorer"),
        ("context: the prompt needs 9 tokens", None),
    ):
        found = of_setting(ApiError(400, message))
        assert found.param == param and found.message == ("specprefill." if param else "") + message
    assert of_setting(ApiError(503, "check: no memory")).param is None
