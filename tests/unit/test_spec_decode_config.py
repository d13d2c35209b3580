"""Settings of drafts: what is refused, in one line that names the setting."""

import pytest

from vkprefill.drafting.settings import MTP, NGRAM, TYPES, SpecDecodeConfig
from vkprefill.errors import RequestError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "mtp"}, r"type: found 'mtp', wanted one of none \| auto \| draft-mtp \| ngram \| draft-mtp,ngram"),
        ({"type": None}, "type: found None"),
        ({"type": []}, r"type: found \[\]"),
        ({"n_max": 0}, "n_max: found 0, wanted a whole number from 1 to 7"),
        ({"n_max": 8}, "n_max: found 8"),
        ({"n_max": 3.0}, "n_max: found 3.0"),
        ({"n_max": "3"}, "n_max: found '3', wanted a whole number"),
        ({"n_max": True}, "n_max: found True"),
        ({"n_min": -1}, "n_min: found -1, wanted a whole number from 0 to 7"),
        ({"n_max": 2, "n_min": 3}, "n_min: found 3, wanted at most n_max, which is 2"),
        ({"p_min": 1.5}, "p_min: found 1.5, wanted a number from 0 to 1"),
        ({"p_min": float("nan")}, "p_min: found nan"),
        ({"p_min": "0.5"}, "p_min: found '0.5', wanted a number"),
        ({"adaptive": 1}, "adaptive: found 1, wanted true or false"),
        ({"head_rows": -1}, "head_rows: found -1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(RequestError, match=f"^{message}") as error:
        SpecDecodeConfig(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "sources"),
    [("none", ()), ("auto", ()), ("draft-mtp", (MTP,)), ("ngram", (NGRAM,)), ("draft-mtp,ngram", (NGRAM, MTP))],
)
def test_sources_in_the_order_they_are_asked_in(kind, sources):
    assert kind in TYPES and SpecDecodeConfig(kind).sources == sources


def test_defaults():
    config = SpecDecodeConfig()
    assert (config.type, config.n_max, config.n_min, config.p_min, config.adaptive, config.head_rows) == (
        "auto",
        3,
        0,
        0.0,
        True,
        65536,
    )
    assert {config: 1}[SpecDecodeConfig()] == 1
