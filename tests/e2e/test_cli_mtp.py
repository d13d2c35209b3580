"""Files with a multi-token-prediction block on the command line: whole, and as companions given with -md."""

import json
from pathlib import Path

import pytest

from tests.e2e.command import GREEDY, assert_error
from tests.e2e.conftest import TINY
from tests.reference.fixtures import model_path
from tools.make_model import companion_of
from vkprefill.cli.draft_files import DraftFiles, sorted_drafts
from vkprefill.display import printable

WHOLE = str(model_path("mtp-a-f32"))
PROMPT = ("-p", "Hello", "-n", "6", "-c", "256", "--json", *GREEDY)


@pytest.fixture(scope="module")
def companions(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("companions")
    return {name: str(companion_of(model_path(name), folder / f"{name}.gguf")) for name in ("mtp-a-f32", "mtp-c-mixed")}


def test_files_are_told_apart(companions):
    block = companions["mtp-a-f32"]
    assert sorted_drafts([]) == DraftFiles()
    assert sorted_drafts([TINY]) == DraftFiles(draft=Path(TINY))
    assert sorted_drafts([WHOLE]) == DraftFiles(draft=Path(WHOLE)), "a model with a block is a model"
    assert sorted_drafts([block]) == DraftFiles(companion=Path(block))
    assert sorted_drafts([block, TINY]) == sorted_drafts([TINY, block]) == DraftFiles(Path(TINY), Path(block))


def test_answers_are_the_same_with_a_companion(cli, gpu, companions):
    answers = [
        json.loads(cli("generate", "-m", WHOLE, *PROMPT, *more).out)
        for more in ((), ("-md", companions["mtp-a-f32"]), ("-md", TINY, "-md", companions["mtp-a-f32"]))
    ]
    assert answers[0]["token_ids"] == answers[1]["token_ids"] == answers[2]["token_ids"]
    assert [answer["specprefill"]["status"] for answer in answers[:2]] == ["disabled"] * 2
    assert answers[2]["specprefill"]["reason"] != answers[1]["specprefill"]["reason"], "here is a draft model"


def test_what_does_not_fit(cli_here, gpu, companions):
    block, other = companions.values()
    for args, message in (
        (("-m", block), "block alone .* wanted a model; give this file beside"),
        (("-m", WHOLE, "-md", other), "mtp-c-mixed.gguf: multi-token-prediction block with trunk layers 3, wanted 4"),
        (
            ("-m", WHOLE, "-md", block, "-md", other),
            "second multi-token-prediction block alone, after .*mtp-a-f32.gguf; wanted one",
        ),
        (("-m", WHOLE, "-md", block, "-md", block), "mtp-a-f32.gguf: found a second .* alone, after .*mtp-a-f32.gguf;"),
        (("-m", WHOLE, "-md", TINY, "-md", WHOLE), "found a second draft model, after .*tiny-a-f32.gguf; wanted one"),
        (("-m", WHOLE, "-md", block, "-md", "no such file"), "no such file"),
    ):
        assert_error(cli_here("generate", *args, *PROMPT), message)


@pytest.mark.parametrize(
    ("model", "args", "unused"),
    [
        (WHOLE, "--spec-type ngram -md BLOCK", "-md BLOCK: not used with --spec-type ngram"),
        (
            WHOLE,
            "--spec-type none -md BLOCK --spec-draft-n-max 3 --no-spec-draft-adaptive",
            "-md BLOCK, --spec-draft-n-max, --spec-draft-adaptive: not used with --spec-type none",
        ),
        (
            WHOLE,
            "--spec-type ngram --spec-draft-p-min 0 --spec-draft-head-rows 9 --spec-draft-window 9",
            "--spec-draft-p-min, --spec-draft-head-rows, --spec-draft-window: not used with --spec-type ngram",
        ),
        (
            TINY,
            "--spec-draft-n-max 2 --spec-draft-window 9",
            "--spec-draft-n-max, --spec-draft-window: not used, tiny-a-f32.gguf has no multi-token-prediction block",
        ),
        (WHOLE, "--spec-draft-n-max 2 --spec-draft-head-rows 0 --spec-draft-window 9", ""),
        (WHOLE, "--spec-type draft-mtp -md BLOCK --spec-draft-p-min 0.1", ""),
    ],
)
def test_what_is_not_used_is_said(cli_here, gpu, companions, model, args, unused):
    block = companions["mtp-a-f32"]
    outcome = cli_here("generate", "-m", model, *args.replace("BLOCK", block).split(), *PROMPT)
    lines = [line.replace(printable(block), "BLOCK") for line in outcome.err.splitlines() if "not used" in line]
    assert outcome.code == 0 and lines == ([unused] if unused else []) and json.loads(outcome.out)["token_ids"]


def test_a_companion_where_nothing_is_drafted(cli_here, gpu, companions):
    block = companions["mtp-a-f32"]
    outcome = cli_here("explain", "-m", WHOLE, "-md", TINY, "-md", block, "-p", "Hello " * 9, "-c", "256")
    assert f"-md {printable(block)}: not used here, where no tokens are drafted" in outcome.err.splitlines()


@pytest.mark.parametrize(("flag", "value", "wanted"), [("window", "0", "at least 1"), ("head-rows", "-1", "a whole")])
def test_bad_settings_of_the_block(cli_here, flag, value, wanted):
    outcome = cli_here("generate", "-m", WHOLE, f"--spec-draft-{flag}", value, *PROMPT)
    assert_error(outcome, f"--spec-draft-{flag}: found {value}, wanted {wanted}")


def test_nothing_is_written_over_a_draft(cli_here, companions):
    block = companions["mtp-a-f32"]
    outcome = cli_here("generate", "-m", WHOLE, "-md", TINY, "-md", block, "-p", "x", "--profile", "--trace", block)
    assert_error(outcome, "wanted another file than that of --model-draft")


def test_inspect_shows_the_block(cli_here, companions):
    shown = json.loads(cli_here("inspect", "-m", WHOLE, "--json").out)
    assert shown["mtp"]["layer"] == 4 and shown["mtp"]["types"] == {"F32": 15} and shown["mtp"]["parameters"] > 40_000
    assert shown["memory"]["mtp"] > 4 * shown["mtp"]["parameters"], "weights, keys and values, rows"
    text = cli_here("inspect", "-m", WHOLE).out
    assert "multi-token-prediction block: blk.4, 0.0" in text and "  mtp " in text
    without = cli_here("inspect", "-m", TINY)
    assert "multi-token-prediction block: none" in without.out
    assert json.loads(cli_here("inspect", "-m", TINY, "--json").out)["mtp"] is None
    assert_error(cli_here("inspect", "-m", companions["mtp-a-f32"]), "block alone")


def test_inspect_with_a_companion(cli_here, companions, tmp_path):
    block = companions["mtp-a-f32"]
    own, beside = (json.loads(cli_here("inspect", "-m", WHOLE, "--json", *more).out) for more in ((), ("-md", block)))
    assert own["mtp"] == beside["mtp"] and own["memory"] == beside["memory"]
    assert_error(cli_here("inspect", "-m", TINY, "-md", TINY), "no multi-token-prediction block, wanted one")
