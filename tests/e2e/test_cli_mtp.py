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


def test_answers_are_the_same_with_a_companion(cli, gpu, companions, tmp_path):
    """The block's tensors alone are enough. That the file's own block is not used is said."""
    alone = str(companion_of(WHOLE, tmp_path / "alone.gguf", copies=False))
    drafted = cli("generate", "-m", WHOLE, *PROMPT, "-md", alone, "--spec-type", "draft-mtp")
    assert "alone.gguf: its multi-token-prediction block is used in place of that of " in drafted.err
    answers = [
        json.loads(cli("generate", "-m", WHOLE, *PROMPT, *more).out)
        for more in ((), ("-md", companions["mtp-a-f32"]), ("-md", TINY, "-md", companions["mtp-a-f32"]))
    ]
    assert answers[0]["token_ids"] == answers[1]["token_ids"] == answers[2]["token_ids"]
    assert json.loads(drafted.out)["token_ids"] == answers[0]["token_ids"]
    assert json.loads(drafted.out)["timings"]["draft_n"] > 0
    assert [answer["specprefill"]["status"] for answer in answers[:2]] == ["disabled"] * 2
    assert answers[2]["specprefill"]["reason"] != answers[1]["specprefill"]["reason"], "here is a draft model"


OFTEN_RIGHT = str(model_path("mtp-b-q4km"))
DRAFTED = ("--spec-type", "draft-mtp", "--no-spec-draft-adaptive", "--spec-draft-n-max", "4")


def test_chat_with_drafts(cli, gpu):
    """Several turns, a stop text inside a round, /clear: the same lines as without."""
    lines = b"hello\nand now?\n/clear\nhello\nmore\n"
    chat = ("chat", "-m", OFTEN_RIGHT, "-c", "1024", "-n", "20", "--temp", "1.2", "-s", "3", "--stop", "a")
    plain, drafted = (cli(*chat, *more, stdin=lines) for more in (("--spec-type", "none"), DRAFTED))
    assert drafted.code == 0 and drafted.out == plain.out != ""
    assert "drafted accepted" in drafted.err and "drafted accepted" not in plain.err


def test_generate_ends_at_a_text_inside_a_round(cli_here, gpu):
    args = ("generate", "-m", OFTEN_RIGHT, "-p", "Hello", "-n", "30", "-c", "256", "--json", *GREEDY)
    text = json.loads(cli_here(*args, "--spec-type", "none").out)["text"]
    for stop in (text[5], text[9:12], text[14]):
        found = [json.loads(cli_here(*args, *more, "-r", stop).out) for more in (("--spec-type", "none"), DRAFTED)]
        assert found[0]["text"] == found[1]["text"] == text[: text.index(stop)]
        assert found[0]["token_ids"] == found[1]["token_ids"]
        assert found[1]["finish_reason"] == "stop" and found[1]["timings"]["draft_n"] > 0


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


@pytest.mark.parametrize(
    ("flag", "value", "wanted"), [("window", "0", "a whole number from 1"), ("head-rows", "-1", "a whole")]
)
def test_bad_settings_of_the_block(cli_here, flag, value, wanted):
    outcome = cli_here("generate", f"--spec-draft-{flag}", value, "-p", "x")  # no word of the model that would be used
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
    own = json.loads(cli_here("inspect", "-m", WHOLE, "--json").out)
    for block in (companions["mtp-a-f32"], companion_of(WHOLE, tmp_path / "alone.gguf", copies=False)):
        beside = json.loads(cli_here("inspect", "-m", WHOLE, "--json", "-md", str(block)).out)
        assert own["mtp"] == beside["mtp"] and own["memory"] == beside["memory"]
    assert_error(cli_here("inspect", "-m", TINY, "-md", TINY), "no multi-token-prediction block, wanted one")
