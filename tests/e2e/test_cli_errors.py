"""Wrong input on the command line: usage, settings, prompts, model files; one line and an exit code."""

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.command import assert_error, tiny
from tests.e2e.conftest import TINY


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("no-such-command",),
        ("generate",),
        ("generate", "-p", "x", "-f", "y"),
        ("generate", "-p"),
        ("generate", "-p", "x", "-n", "many"),
        ("generate", "-p", "x", "--temp", "hot"),
        ("generate", "-p", "x", "-s", "1.5"),
        ("generate", "-p", "x", "-ctk", "q8_0"),
        ("generate", "-p", "x", "--no-such-flag"),
        ("generate", "-p", "x", "--spec-type", "mtp"),
        ("generate", "-p", "x", "--spec-draft-n-max", "two"),
        ("inspect", "-c", "long"),
    ],
    ids=" ".join,
)
def test_usage(cli_here, args):
    outcome = cli_here(*args)
    assert (outcome.code, outcome.out) == (2, "") and outcome.err.startswith("usage: vkprefill")
    assert "Traceback" not in outcome.err


SETTINGS = [
    (("--temp", "-1"), "--temp: found -1.0, wanted a number from 0 to 100"),
    (("--temp", "nan"), "--temp: found nan"),
    (("--temp", "inf"), "--temp: found inf"),
    (("--top-k", "-1"), "--top-k: found -1"),
    (("--top-p", "1.1"), "--top-p: found 1.1"),
    (("--min-p", "-0.1"), "--min-p: found -0.1"),
    (("--presence-penalty", "3"), "--presence-penalty: found 3.0"),
    (("-s", "-2"), "--seed: found -2"),
    (("-s", str(2**64)), "--seed: found"),
    (("-n", "0"), "-n: found 0"),
    (("-n", "-2"), "-n: found -2"),
    (("-c", "0"), "-c: found 0, wanted 1 to"),
    (("-c", str(10**30)), "-c: found 1000"),
    (("-c", str(10**9)), "context of 1000000000 tokens: .* MiB in one buffer, which is .* tokens"),
    (("-b", "0"), "-b: found 0, wanted 1 to 4096"),
    (("-b", "4097"), "-b: found 4097"),
    (("-ctk", "f16", "-ctv", "f32"), "-ctk f16 -ctv f32: keys and values must have the same type"),
    (("-ctv", "f32"), "-ctv f32 without -ctk, then f16: keys and values must have the same type"),
    (("-m", ""), "-m: it is empty, wanted a GGUF file"),
    (("-md", ""), "-md: it is empty, wanted a GGUF file"),
    (("--device", "no such device"), "device 'no such device': no devices have this in their name"),
    (("--device", ""), "device '': no devices have this in their name"),
    (("--spec-draft-n-max", "0"), "--spec-draft-n-max: found 0, wanted a whole number from 1 to 7"),
    (("--spec-draft-n-max", "8"), "--spec-draft-n-max: found 8"),
    (("--spec-draft-n-min", "-1"), "--spec-draft-n-min: found -1"),
    (("--spec-draft-n-min", "4"), "--spec-draft-n-min: found 4, wanted at most n_max, which is 3"),
    (("--spec-draft-p-min", "2"), "--spec-draft-p-min: found 2.0, wanted a number from 0 to 1"),
    (("--spec-draft-p-min", "nan"), "--spec-draft-p-min: found nan"),
    (("--spec-type", "draft-mtp"), "drafts of type draft-mtp: .* without a multi-token-prediction block"),
    (("--spec-type", "draft-mtp,ngram"), "drafts of type draft-mtp,ngram: .* without a multi-token-prediction block"),
    (("--device", "77"), r"device 77: found \d+ Vulkan devices? "),
    (("--chat-template-kwargs", "{"), "--chat-template-kwargs: not JSON"),
    (("--chat-template-kwargs", "[" * 10000), "--chat-template-kwargs: not JSON"),
    (("--chat-template-kwargs", "[1]"), "--chat-template-kwargs: found list, wanted a JSON object"),
    (("--chat-template-kwargs", '{"enable_thinking": "off"}'), "variable 'enable_thinking': found off, wanted true or"),
    (("--chat-template-kwargs", '{"x": NaN}'), "--chat-template-kwargs: not JSON: NaN"),
    (("--chat-template-kwargs", '{"messages": 5}'), "variable 'messages': cannot be set here"),
    (("--raw", "-sys", "x"), "--raw: there is no chat template"),
    (("-sys", b"a\xff"), r"command line: byte 0xFF in 'a\\udcff' is not UTF-8, the terminal's encoding"),
    (("--chat-template-kwargs", b'{"a": "\xe9"}'), "byte 0xE9 in .* is not UTF-8, the terminal's encoding"),
    (("--stop", b"\x80"), "byte 0x80 in .* is not UTF-8, the terminal's encoding"),
    (("--stop", ""), "--stop: it is empty, wanted a text"),
]


@pytest.mark.parametrize(("args", "message"), SETTINGS, ids=[repr(args)[:40] for args, _ in SETTINGS])
def test_bad_settings(cli_here, gpu, args, message):
    outcome = cli_here(*tiny("-p", "x", *args))
    assert_error(outcome, message)
    assert outcome.out == ""


@pytest.mark.parametrize("command", [("generate",), ("explain",), ("capture", "-o", "/dev/null")])
def test_empty_prompts_are_refused_before_anything_is_loaded(cli, tmp_path, command):
    """There is no such model, and it is not missed."""
    (tmp_path / "empty.txt").touch()
    for prompt, stdin in ((("-p", ""), b""), (("-f", "-"), b""), (("-f", tmp_path / "empty.txt"), b"x")):
        assert_error(cli(*command, "-m", "none.gguf", *prompt, stdin=stdin), "prompt: it is empty")


def test_bad_prompts(cli, gpu):
    limited = tiny("-c", "64", "-f", "-")
    assert_error(cli(*limited, stdin=b"abc\xffdef"), "stdin: byte 3 is not UTF-8")
    assert_error(cli(*limited, stdin=b"word " * 100), "64")
    assert_error(cli(*tiny("-c", "64", "-p", b"\xff")), "byte 0xFF in .* is not UTF-8, the terminal's encoding")


@pytest.mark.parametrize("command", [("generate",), ("capture", "-o", "rows.npz")])
def test_options_for_a_template_that_is_not_there(cli_here, gpu, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    Path("plain.gguf").write_bytes(
        Path(TINY).read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_templatE")
    )
    for options in (("-sys", "Be brief."), ("--chat-template-kwargs", '{"enable_thinking": false}')):
        outcome = cli_here(*command, "-m", "plain.gguf", "-c", "256", "-p", "Hi", *options)
        assert_error(outcome, "plain.gguf has no chat template")
        assert outcome.out == ""


def test_bad_prompt_files(cli_here, tmp_path):
    (tmp_path / "binary").write_bytes(b"\x80")
    assert_error(cli_here(*tiny("-f", str(tmp_path))), "cannot be read: Is a directory")
    assert_error(cli_here(*tiny("-f", str(tmp_path / "none"))), "cannot be read: No such file")
    assert_error(cli_here(*tiny("-f", str(tmp_path / "two\nlines"))), r"two\\nlines: cannot be read")
    assert_error(cli_here(*tiny("-f", str(tmp_path / "binary"))), "byte 0 is not UTF-8")


@pytest.mark.parametrize("command", ("generate", "inspect", "chat"))
def test_bad_model_files(cli_here, tmp_path, command):
    model = Path(TINY).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(model[: len(model) // 2])
    (tmp_path / "head.gguf").write_bytes(model[:100])
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "text.gguf").write_text("GGUF, but not really: a text of some length\n" * 10)
    (tmp_path / "foreign.gguf").write_bytes(model.replace(b"qwen35", b"llama2"))
    os.mkfifo(tmp_path / "fifo")
    prompt = ("-p", "x") if command == "generate" else ()
    for name in (
        "cut.gguf",
        "head.gguf",
        "empty.gguf",
        "text.gguf",
        "foreign.gguf",
        "none.gguf",
        "fifo",
        "",
        "none\nof them",
    ):
        outcome = cli_here(command, "-m", str(tmp_path / name), *prompt)
        assert_error(outcome, "^Error: ")
        assert outcome.out == ""


def test_unreadable_model_file(cli_here, tmp_path, request):
    assert cli_here("inspect", "-m", TINY).code == 0
    shutil.copy(TINY, tmp_path / "model.gguf")
    (tmp_path / "model.gguf").chmod(0)
    request.getfixturevalue("unprivileged")
    assert_error(cli_here("inspect", "-m", str(tmp_path / "model.gguf")), "cannot be read: permission denied")


def test_without_vulkan_driver(cli):
    nowhere = {"VK_ICD_FILENAMES": "/nonexistent.json", "VK_DRIVER_FILES": "/nonexistent.json"}
    for args in (tiny("-p", "x"), ("devices",), ("devices", "--json"), ("chat", "-m", TINY)):
        outcome = cli(*args, env=nowhere)
        assert_error(outcome, "Vulkan: ")
        assert outcome.out == ""
    assert cli("inspect", "-m", TINY, env=nowhere).code == 0
