"""What calls about drafts are given, of wrong types and out of range: one line, before anything is used."""

from __future__ import annotations

import argparse
import math
from types import SimpleNamespace

import pytest

from vkprefill.cli.drafting_options import add_drafting_options, drafting_config
from vkprefill.drafting.drafters import Drafting, check_drafts
from vkprefill.drafting.settings import SpecDecodeConfig
from vkprefill.engine.drafter import Drafter
from vkprefill.engine.memory import LoadOptions
from vkprefill.engine.model import Model
from vkprefill.errors import RequestError
from vkprefill.generation.generate import stream_generate
from vkprefill.generation.options import AnswerOptions
from vkprefill.generation.prompt import EncodedPrompt
from vkprefill.generation.session import Session
from vkprefill.gguf.mtp import find_block


def refused(call, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        call()
    assert str(caught.value).startswith(message) and str(caught.value).isprintable()


NOT_A_CONFIG = ["ngram", {"a": 1}, True, 0, {}, "", False, SpecDecodeConfig]


@pytest.mark.parametrize("decode", NOT_A_CONFIG, ids=repr)
def test_decode_of_another_type(decode, monkeypatch):
    """Where it is falsy too; the model is not looked at."""
    monkeypatch.setattr("vkprefill.generation.generate.encode_prompt", lambda *args, **kwargs: EncodedPrompt([1]))
    message = f"decode: found {type(decode).__name__}, wanted SpecDecodeConfig"
    refused(lambda: Session(object(), decode=decode), message)
    refused(lambda: next(stream_generate(object(), "x", decode=decode)), message)
    refused(lambda: AnswerOptions(decode=decode), message)
    refused(lambda: check_drafts(object(), decode), message)


@pytest.mark.parametrize("kind", ["draft-mtp", "draft-mtp,ngram"])
def test_models_without_a_block(kind):
    """The file may have one that was not loaded: the message does not speak of the file."""
    model = SimpleNamespace(has_mtp=False, path=SimpleNamespace(name="some.gguf"))
    message = f"drafts of type {kind}: some.gguf was loaded without a multi-token-prediction block; wanted"
    refused(lambda: check_drafts(model, SpecDecodeConfig(kind)), message)
    with pytest.raises(
        RequestError, match=r"companion file .*\(mtp=FILE, -md FILE\), or drafts of type ngram, auto or"
    ):
        check_drafts(model, SpecDecodeConfig(kind))


@pytest.mark.parametrize("head_rows, found", [(1.5, "1.5"), (True, "True"), ("x", "'x'"), (None, "None"), (-1, "-1")])
def test_head_rows(head_rows, found):
    model = SimpleNamespace(_drafter=SimpleNamespace(head_rows=head_rows))
    refused(lambda: Model.drafter(model, head_rows), f"head_rows: found {found}, wanted a whole number from 0 to ")


@pytest.mark.parametrize("count, found", [("3", "'3'"), (2.5, "2.5"), (True, "True"), (None, "None"), (-1, "-1")])
def test_count_of_drafts(count, found):
    refused(lambda: Drafter.draft(object(), 5, None, count), f"count: found {found}, wanted a whole number from 0 to ")


@pytest.mark.parametrize("p_min, found", [(math.nan, "nan"), (2.0, "2.0"), (-1, "-1"), ("x", "'x'"), (None, "None")])
def test_p_min_of_drafts(p_min, found):
    refused(lambda: Drafter.draft(object(), 5, None, 3, p_min), f"p_min: found {found}, wanted a number from 0 to 1")


@pytest.mark.parametrize("wanted, found", [(True, "True"), (0, "0"), (b"x", "b'x'"), ("", "''"), ([], "[]")])
def test_block_to_load(wanted, found):
    refused(lambda: find_block(None, None, wanted), f'mtp: found {found}, wanted "auto", None or the path of a file')


def config_of(*args: str) -> SpecDecodeConfig:
    parser = argparse.ArgumentParser()
    add_drafting_options(parser)
    return drafting_config(parser.parse_args(args))


def test_types_in_either_order():
    """Everywhere: what was measured with one spelling counts for the other."""
    for kind in ("draft-mtp,ngram", "ngram,draft-mtp"):
        config = SpecDecodeConfig(kind)
        assert config_of("--spec-type", kind) == config and config.type == "draft-mtp,ngram"
        assert config.sources == ("ngram", "draft-mtp")
    assert len({SpecDecodeConfig("draft-mtp,ngram"), SpecDecodeConfig("ngram,draft-mtp")}) == 1


@pytest.mark.parametrize("value", [0, -1, 2**30 + 1, 99999999999])
def test_window_of_the_block(value):
    """In one form, by the flag and by the argument, and before a model is opened."""
    message = f"found {value}, wanted a whole number from 1 to {2**30}"
    refused(lambda: config_of("--spec-draft-window", str(value)), f"--spec-draft-window: {message}")
    refused(lambda: LoadOptions(mtp_window=value), f"mtp_window: {message}")
    assert LoadOptions(mtp_window=2**30).mtp_window == 2**30


@pytest.mark.parametrize("drafted", [[5, 2, 5], [2, 5, 2], [5, 5, 2], [5, 5, 5]], ids=str)
def test_nothing_is_drafted_after_the_end_of_an_answer(drafted):
    """Token 2 ends it. A draft is not short because it ends there."""
    model = SimpleNamespace(draft=lambda *_: drafted)
    drafting = Drafting([model], SpecDecodeConfig("draft-mtp", n_min=3), ends={2, 7})
    assert drafting.propose(1, object(), 3) == drafted[: drafted.index(2) + 1 if 2 in drafted else 3]
