"""Scorer self on the command line: asked for by name, by --specprefill without a draft, by variable."""

import json

import pytest

from tests.e2e.command import GREEDY, assert_error
from tests.e2e.conftest import DEMO, TINY
from tests.model.conftest import BUILT_IN
from vkprefill.cli.main import main

SHORT = ("-n", "4", "--json", "--no-specprefill-break-even")


@pytest.mark.parametrize("how", [("--specprefill",), ("--specprefill-scorer", "self"), ("SP_SCORER",)])
def test_generate_without_a_draft(cli_here, gpu, monkeypatch, how):
    if how == ("SP_SCORER",):
        monkeypatch.setenv("SP_SCORER", "self")
        how = ()
    done = cli_here("generate", "-m", str(BUILT_IN), "-p", DEMO[0]["user"], *GREEDY, *SHORT, *how)
    assert done.code == 0, done
    found = json.loads(done.out)
    assert found["specprefill"]["status"] == "active" and found["specprefill"]["settings"]["scorer"] == "self"
    assert found["specprefill"]["reason"].startswith("layer 3 chose ")
    assert "speculative prefill: active: layer 3 chose" in done.err


def test_without_being_asked_for_nothing_changes(cli_here, gpu):
    done = cli_here("generate", "-m", str(BUILT_IN), "-p", DEMO[0]["user"], *GREEDY, "-n", "1", "--json")
    assert json.loads(done.out)["specprefill"]["status"] == "disabled"


def test_the_draft_is_left_aside(cli_here, gpu):
    draft = str(BUILT_IN.with_name("draft.gguf"))
    given = ("-m", str(BUILT_IN), "-md", draft, "-p", DEMO[0]["user"], *GREEDY, *SHORT)
    done = cli_here("generate", *given, "--specprefill-scorer", "self", "--specprefill-lookahead", "4")
    assert "draft.gguf: not used, the model scores prompts itself" in done.err
    assert "\n--specprefill-lookahead: not used, counts with a draft only\n" in f"\n{done.err}"
    assert list(json.loads(done.out)["specprefill"]["unused"]) == ["lookahead"]
    assert json.loads(done.out)["specprefill"]["reason"].startswith("layer 3 chose ")


def test_explain(cli_here, gpu):
    given = ("explain", "-m", str(BUILT_IN), "-p", DEMO[0]["user"], "--specprefill-scorer", "self")
    done = cli_here(*given, "--json", "--specprefill-select-mode", "chunk")
    found = json.loads(done.out)
    assert found["draft"] == "layer 3 of the model itself" and found["kept_n"] < len(found["token_ids"])
    assert "layers 0 to 3 of the model ran, on a cache of their own" in done.err


def test_what_cannot_be(cli_here, gpu):
    asked = ("generate", "-m", TINY, "-p", "x", "--specprefill-scorer")
    assert_error(cli_here(*asked, "draft"), "scorer draft: there is no draft model; give one with -md FILE")
    assert_error(cli_here(*asked, "self"), "scorer self: .* has no full-attention layer before its last")
    asked = ("generate", "-m", str(BUILT_IN), "-p", "x", "--specprefill-scorer", "self")
    assert_error(
        cli_here(*asked, "--specprefill-score-layer", "7"), "--specprefill-score-layer: found 7, wanted one of 3"
    )
    several = cli_here(*asked, "--specprefill-score-layer", "3,7")
    assert_error(several, "--specprefill-score-layer: found 3,7, wanted auto, or a whole number")
    assert_error(cli_here("eval", "--variant", "score_layer=3,7"), "score_layer: found 3,7, wanted auto, or a whole")
    for scorer in (("--specprefill-scorer", "self"), ("--variant", "scorer=self")):
        assert_error(cli_here("eval", "-m", str(BUILT_IN), *scorer), "who scores is a method.*: --methods draft,self")


def test_inspect_has_the_memory(capsys):
    assert main(["inspect", "-m", str(BUILT_IN), "-c", "1000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_rows"] == 1024 * 256 * 4
