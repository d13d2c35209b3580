"""vkprefill's subcommands: what goes to stdout and stderr, and what the options do."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.command import GREEDY, tiny
from tests.e2e.conftest import COMMAND, DEMO, PATIENCE_S, ROOT, TINY, Outcome
from vkprefill.display import visible
from vkprefill.gguf.file import open_gguf
from vkprefill.text.tokenizer import Tokenizer
from vkprefill.vulkan.companion import abilities
from vkprefill.vulkan.probe import choose

SUBCOMMANDS = ("generate", "chat", "inspect", "devices", "doctor")
TIMINGS = {
    "cache_n",
    "prompt_n",
    "prompt_ms",
    "prompt_per_token_ms",
    "prompt_per_second",
    "predicted_n",
    "predicted_ms",
    "predicted_per_token_ms",
    "predicted_per_second",
    "draft_n",
    "draft_n_accepted",
    "specprefill",
}


def on_terminal(*args: object, stdout: bool) -> Outcome:
    """A run whose stderr is a terminal, and stdout too if asked for: then both are in `err`."""
    ours, terminal = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, *map(str, args)], stdout=terminal if stdout else subprocess.PIPE, stderr=terminal, cwd=ROOT
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # what reading gives when the other side is closed
        while piece := os.read(ours, 65536):
            shown += piece
    out = b"" if stdout else process.stdout.read()
    return Outcome(process.wait(PATIENCE_S), out.decode(), shown.decode())


@pytest.mark.parametrize("stdout", [True, False], ids=["and stdout", "alone"])
def test_answer_on_a_terminal(gpu, stdout, tmp_path):
    """The bar of prefill is gone before the answer comes, and touches nothing of it."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(DEMO[0]["user"])
    outcome = on_terminal("generate", "-f", prompt, stdout=stdout)
    assert outcome.code == 0 and "prefill" in outcome.err and "loading" in outcome.err
    if stdout:
        assert f"\n{DEMO[0]['answer']}\r\n" in outcome.err.replace("\x1b[?25h\r", "\n")
    else:
        assert outcome.out == DEMO[0]["answer"] + "\n"


def test_structured_answers(cli, gpu, tmp_path):
    """--json-schema and --grammar-file shape the answer; what cannot be followed is one line that names the file."""
    schema, grammar = tmp_path / "schema.json", tmp_path / "answer.gbnf"
    one = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    schema.write_text(json.dumps(one))
    grammar.write_text('root ::= "left" | "right"')
    found = json.loads(cli("generate", "-p", "Hello", "--json-schema", str(schema)).out)
    assert found in ({"a": 1}, {"a": 2})
    assert cli("generate", "-p", "Hello", "--grammar-file", str(grammar), "--temp", "2").out in ("left\n", "right\n")
    schema.write_text('{"type": "nope"}')
    outcome = cli("generate", "-p", "Hello", "-jf", str(schema))
    assert outcome.code == 1 and outcome.err.endswith("schema.json: Invalid type: nope\n")
    outcome = cli("generate", "-p", "Hello", "-jf", str(tmp_path / "none.json"))
    assert outcome.code == 1 and "none.json: cannot be read: No such file or directory" in outcome.err


def test_control_characters_of_an_answer_on_a_terminal(cli, gpu):
    """Made visible there, and left as they are in a pipe; noise of a random model has plenty."""
    noise = ("-p", "x", "-n", "100", "--temp", "5", "--top-k", "0", "-s", "3", "-c", "256")
    text = json.loads(cli(*tiny(*noise, "--json")).out)["text"]
    assert visible(text) != text and cli(*tiny(*noise)).out == text + "\n"
    shown = on_terminal(*tiny(*noise), stdout=True).err
    assert visible(text).replace("\n", "\r\n") in shown and text.replace("\n", "\r\n") not in shown


@pytest.mark.parametrize("writable", [True, False])
def test_where_measured_speeds_are_kept(cli, gpu, tmp_path, writable):
    """The file is named only where it can be written."""
    home = tmp_path if writable else "/dev/null"
    outcome = cli("generate", "-p", DEMO[0]["user"], "-n", "1", env={"XDG_CACHE_HOME": str(home)})
    measuring = [line for line in outcome.err.splitlines() if line.startswith("measuring the speed of ")]
    assert outcome.code == 0 and len(measuring) == 2
    place = tmp_path / "vkprefill" / "calibration.json"
    assert place.exists() == writable
    for line in measuring:
        assert line.endswith(f" on this device, once (kept in {place})" if writable else " on this device")
    assert ("/dev/null/vkprefill/calibration.json" in outcome.err) == (not writable), "a warning that it cannot"


@pytest.mark.smoke
def test_answer_of_the_built_in_model(cli, gpu):
    outcome = cli("generate", "-f", "-", "--no-specprefill", stdin=DEMO[0]["user"].encode())
    assert (outcome.code, outcome.out) == (0, DEMO[0]["answer"] + "\n")
    assert "no -m given: using the built-in demo model" in outcome.err
    assert f"prompt: {DEMO[0]['n_tokens']} tokens" in outcome.err


def test_the_answer_alone_goes_to_stdout(cli, gpu):
    plain, as_json = (
        cli(*tiny("-p", "hello", "-n", "8", *GREEDY)),
        cli(*tiny("-p", "hello", "-n", "8", *GREEDY, "--json")),
    )
    result = json.loads(as_json.out)
    assert plain.code == as_json.code == 0
    assert plain.out == result["text"] + "\n"
    assert as_json.out.count("\n") == 1
    assert "context 262144 tokens (the file has 262144)" in plain.err and "per second" in plain.err
    assert "\x1b" not in plain.err and "\r" not in plain.err, "no bar where stderr is no terminal"


def test_json_fields(cli, gpu):
    result = json.loads(cli(*tiny("-p", "hello", "-n", "8", *GREEDY, "--json", "-c", "256")).out)
    assert set(result) == {"text", "token_ids", "finish_reason", "timings", "specprefill"}
    assert set(result["timings"]) == TIMINGS
    assert result["timings"]["specprefill"] == result["specprefill"]["status"] == "disabled"
    assert result["finish_reason"] == "length" and len(result["token_ids"]) == result["timings"]["predicted_n"] == 8


@pytest.mark.parametrize(
    "flags", [(), ("--temp", "1.5", "--presence-penalty", "1", "-s", "3")], ids=["greedy", "sampled"]
)
def test_drafts_change_no_token(cli, gpu, flags):
    args = ("generate", "-p", DEMO[1]["user"], "-n", "12", "--no-specprefill", "--json", *flags)
    args += ("--no-spec-draft-adaptive",)
    plain, drafted = (cli(*args, "--spec-type", kind) for kind in ("none", "ngram"))
    assert plain.code == drafted.code == 0
    wanted, found = json.loads(plain.out), json.loads(drafted.out)
    assert (found["text"], found["token_ids"], found["finish_reason"]) == (
        wanted["text"],
        wanted["token_ids"],
        wanted["finish_reason"],
    )
    assert wanted["timings"]["draft_n"] == 0 and "drafted" not in plain.err
    timings = found["timings"]
    assert 0 <= timings["draft_n_accepted"] <= timings["draft_n"]
    if not flags:
        assert timings["draft_n_accepted"] > 0, "the answer is copied out of the prompt"
        assert f", {timings['draft_n_accepted']} of {timings['draft_n']} drafted accepted" in drafted.err


def test_settings_reach_the_sampler(cli, gpu):
    sampling = ("--temp", "1.5", "--top-k", "0", "--top-p", "0.99", "--min-p", "0.001", "--presence-penalty", "0.5")
    first = cli(*tiny("-p", "x", "-n", "20", *sampling, "-s", "5"))
    assert cli(*tiny("-p", "x", "-n", "20", *sampling, "--seed", "5")).out == first.out
    assert cli(*tiny("-p", "x", "-n", "20", *sampling, "--seed", "-1")).code == 0
    assert cli(*tiny("-p", "x", "-n", "20", *sampling, "--seed", "6")).out != first.out


def test_prompt_options_are_the_same(cli, gpu, tmp_path):
    (tmp_path / "prompt.txt").write_bytes("ü a\0b\r\n".encode())
    from_file = cli(
        *tiny("-f", str(tmp_path / "prompt.txt"), "-n", "5", *GREEDY, "-b", "7", "-ctk", "f32", "-ctv", "f32")
    )
    from_stdin = cli(*tiny("-f", "-", "-n", "5", *GREEDY, "--device", "0"), stdin="ü a\0b\r\n".encode())
    assert from_file.code == from_stdin.code == 0 and from_file.out == from_stdin.out


def test_special_tokens_in_a_prompt_stay_text(cli, gpu):
    tokenizer = Tokenizer.from_metadata(open_gguf(TINY).metadata, 320)
    end = tokenizer.token_text(tokenizer.eos_token_id)
    count = {}
    for name, prompt in (("special", end), ("plain", "#" * len(tokenizer.encode(end, special=False)))):
        result = json.loads(cli(*tiny("-p", prompt, "-n", "1", *GREEDY, "--json", "-c", "256")).out)
        count[name] = result["timings"]["prompt_n"]
    assert count["special"] == count["plain"]
    raw = json.loads(cli(*tiny("-p", end, "-n", "1", *GREEDY, "--json", "--raw", "-c", "256")).out)
    assert raw["timings"]["prompt_n"] == 1


def test_texts_that_end_an_answer(cli, gpu):
    """All of the answer before the first of them that comes, and what was held back for one that did not."""
    whole = json.loads(cli(*tiny("-p", "hello", "-n", "24", *GREEDY, "--json")).out)["text"]
    middle, rest = whole[len(whole) // 2 :][:3], "~" * 9
    stopped = cli(*tiny("-p", "hello", "-n", "24", *GREEDY, "--json", "--stop", rest, "-r", middle))
    result = json.loads(stopped.out)
    assert (result["text"], result["finish_reason"]) == (whole[: whole.index(middle)], "stop")
    assert cli(*tiny("-p", "hello", "-n", "24", *GREEDY, "--reverse-prompt", middle)).out == result["text"] + "\n"
    held = cli(*tiny("-p", "hello", "-n", "24", *GREEDY, "--json", "--stop", whole[-1] + rest))
    assert json.loads(held.out)["text"] == whole


def test_precision(cli, gpu):
    """The same answer; a line where halves are a detour."""
    direct = abilities(choose(None).index).has_dot2
    outcomes = {p: cli("generate", "-p", DEMO[0]["user"], "--precision", p, "-v") for p in ("full", "half")}
    for precision, outcome in outcomes.items():
        assert (outcome.code, outcome.out) == (0, DEMO[0]["answer"] + "\n")
        assert f", precision {precision}, " in outcome.err
        assert ("rms_norm_half" in outcome.err) == (precision == "half")
        assert ("no instruction for sums of products of halves" in outcome.err) == (precision == "half" and not direct)
    assert outcomes["half"].err.count("no instruction for") <= 1, "once, not for the draft again"


def test_verbose_names_the_kernels(cli, gpu):
    outcome = cli(*tiny("-p", "x", "-n", "1", "-c", "256", "-v"))
    assert re.search(r"kernels: .*attention\w*_f16", outcome.err) and "profile" in outcome.err


def test_template_variables(cli, gpu):
    on, off = (
        json.loads(cli(*tiny("-p", "x", "-n", "1", "-c", "256", "--json", "--chat-template-kwargs", text)).out)
        for text in ('{"enable_thinking": true}', '{"enable_thinking": false, "unknown": [1]}')
    )
    assert on["timings"]["prompt_n"] > 0 and off["timings"]["prompt_n"] > 0


def test_devices(cli, gpu):
    listed = json.loads(cli("devices", "--json").out)
    assert listed[0]["index"] == 0 and {"name", "type", "driver", "profile", "heaps", "missing"} <= set(listed[0])
    text = cli("devices")
    assert text.code == 0 and text.out.startswith(f"0: {listed[0]['name']}\n")


@pytest.mark.parametrize("command", ((), *((name,) for name in SUBCOMMANDS)), ids=lambda c: " ".join(c) or "none")
def test_help(cli, command):
    outcome = cli(*command, "--help")
    assert (outcome.code, outcome.err) == (0, "") and outcome.out.startswith("usage: vkprefill")
    if not command:
        assert all(name in outcome.out for name in SUBCOMMANDS)


def test_version(cli):
    assert re.fullmatch(r"vkprefill \d+\.\d+\S*\nwith kp 0\.9\.0, .*\n", cli("--version").out)


def test_installed_command():
    script = shutil.which("vkprefill", path=str(Path(sys.executable).parent))
    if script is None:
        pytest.skip("vkprefill is not installed beside this Python")
    result = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 0 and result.stdout.startswith("vkprefill ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--specprefill-keep-ratio", "0.2"], "--specprefill-keep-ratio: not used, speculative prefill has no draft"),
        (["--specprefill-preset", "fork"], "--specprefill-preset: not used, speculative prefill has no draft"),
        (["--no-specprefill", "--specprefill-tail", "3"], "--specprefill-tail: not used, speculative prefill is off"),
        (
            ["-m", str(ROOT / "vkprefill" / "data" / "target.gguf"), "-c", "40000"],
            "-c 40000: more than the 32768 tokens",
        ),
    ],
)
def test_options_that_do_nothing_are_named(cli_here, gpu, options, said):
    outcome = cli_here("generate", "-m", TINY, "--raw", "-p", "hi", "-n", "1", *options)
    assert outcome.code == 0 and said in outcome.err
