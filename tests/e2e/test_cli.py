"""vkprefill's subcommands: what goes to stdout and stderr, exit codes, and what wrong input and interrupts give."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from array import array
from dataclasses import asdict
from pathlib import Path

import pytest

import vkprefill
from tests.e2e.conftest import COMMAND, DEMO, PATIENCE_S, ROOT, TINY, Outcome
from tests.reference.fixtures import FIXTURES, model_path
from vkprefill.display import visible
from vkprefill.gguf.file import open_gguf
from vkprefill.text.tokenizer import Tokenizer
from vkprefill.vulkan.probe import choose

SUBCOMMANDS = ("generate", "chat", "inspect", "devices")
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
    "specprefill",
}
GREEDY = ("--temp", "0")
# A prompt after which this model does not end its answer for thousands of tokens.
ENDLESS = ("generate", "-m", str(model_path("tiny-b-f32")), "--raw", *GREEDY)


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


def tiny(*args: str | bytes) -> tuple[str | bytes, ...]:
    return ("generate", "-m", TINY, *args)


def assert_error(outcome: Outcome, message: str) -> None:
    assert outcome.code == 1, outcome
    assert len(outcome.error_lines) == 1 and re.search(message, outcome.error_lines[0]), outcome
    assert outcome.err.splitlines()[-1] == outcome.error_lines[0] and "Traceback" not in outcome.err, outcome


# -- what comes out --------------------------------------------------------------------------------------------------


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


def test_verbose_names_the_kernels(cli, gpu):
    outcome = cli(*tiny("-p", "x", "-n", "1", "-c", "256", "-v"))
    assert re.search(r"kernels: .*attention\w*_f16", outcome.err) and "profile" in outcome.err


def test_template_variables(cli, gpu):
    on, off = (
        json.loads(cli(*tiny("-p", "x", "-n", "1", "-c", "256", "--json", "--chat-template-kwargs", text)).out)
        for text in ('{"enable_thinking": true}', '{"enable_thinking": false, "unknown": [1]}')
    )
    assert on["timings"]["prompt_n"] > 0 and off["timings"]["prompt_n"] > 0


@pytest.mark.parametrize("name", FIXTURES)
def test_inspect(cli, name):
    outcome = cli("inspect", "-m", str(model_path(name)), "--json")
    assert (outcome.code, outcome.err) == (0, "")
    result = json.loads(outcome.out)
    bill = result["memory"]
    assert bill["total"] == sum(count for kind, count in bill.items() if kind != "total") > 0
    assert result["file_bytes"] == model_path(name).stat().st_size and result["parameters"] > 100_000
    assert result["max_context"] == result["config"]["max_position_embeddings"]
    smaller = json.loads(
        cli("inspect", "-m", str(model_path(name)), "--json", "-c", "256", "-b", "32", "-ctk", "f32").out
    )
    assert smaller["memory"]["total"] < bill["total"] and smaller["max_context"] == 256


def test_inspect_for_people(cli):
    outcome = cli("inspect", "-m", TINY)
    assert outcome.code == 0 and "total" in outcome.out and "kv_cache" in outcome.out


@pytest.mark.parametrize("options", [(), ("-c", "512"), ("-c", "300", "-b", "64", "-ctk", "f32")], ids=" ".join)
def test_inspect_has_the_bill_of_the_device(cli, gpu, options):
    """That of the loaded model; a GPU's timing at load may make a step shorter, never longer."""
    shown = json.loads(cli("inspect", "-m", TINY, "--json", *options).out)
    sizes = {"-c": "max_context", "-b": "prefill_chunk", "-ctk": "kv_type"}
    given = {sizes[name]: value for name, value in zip(options[::2], options[1::2], strict=True)}
    given |= {name: int(value) for name, value in given.items() if value.isdecimal()}
    with vkprefill.load(TINY, **given) as model:
        assert shown["device"] == model.device.info.name and shown["prefill_chunk"] >= model.prefill_chunk
        if shown["prefill_chunk"] == model.prefill_chunk and shown["max_context"] == model.max_context:
            assert shown["memory"] == {**asdict(model.memory), "total": model.memory.total}


def test_inspect_of_a_device(cli_here, gpu):
    info = choose(None)
    by_name = json.loads(cli_here("inspect", "-m", TINY, "--json", "--device", info.name).out)
    assert by_name["device"] == info.name
    assert_error(cli_here("inspect", "-m", TINY, "--device", "no such device"), "no devices have this in their name")


BROKEN = {  # bytes of the tiny model -> others
    "tokenizer": (b"gpt2", b"gpt9"),
    "template's syntax": (b"{% endfor %}", b"{% endfob %}"),
    "template that fails": (b"m['role'] }}", b"m.get(9)() "),
    "template's type": (b"chat_template\x08", b"chat_template\x0b"),
    "tensor's type": (
        b"output_norm.weight\1\0\0\0@" + b"\0" * 11,
        b"output_norm.weight\1\0\0\0@" + b"\0" * 7 + b"\x0a\0\0\0",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_inspect_refuses_what_generate_refuses(cli_here, gpu, tmp_path, what):
    path = tmp_path / "broken.gguf"
    whole = Path(TINY).read_bytes()
    assert whole.count(BROKEN[what][0]) == 1
    path.write_bytes(whole.replace(*BROKEN[what]))
    refused = cli_here("generate", "-m", path, "-p", "Hello", "-n", "1", "-c", "256")
    assert_error(refused, "broken.gguf|chat template|tokenizer")
    outcome = cli_here("inspect", "-m", path)
    assert (outcome.code, outcome.out, outcome.error_lines) == (1, "", refused.error_lines)


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
    assert re.fullmatch(r"vkprefill \d+\.\d+\S*\n", cli("--version").out)


def test_installed_command():
    script = shutil.which("vkprefill", path=str(Path(sys.executable).parent))
    if script is None:
        pytest.skip("vkprefill is not installed beside this Python")
    result = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 0 and result.stdout.startswith("vkprefill ")


# -- wrong input -----------------------------------------------------------------------------------------------------


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
        ("inspect", "-c", "long"),
    ],
    ids=" ".join,
)
def test_usage(cli_here, args):
    outcome = cli_here(*args)
    assert (outcome.code, outcome.out) == (2, "") and outcome.err.startswith("usage: vkprefill")
    assert "Traceback" not in outcome.err


SETTINGS = [
    (("--temp", "-1"), "temperature: found -1.0, wanted a number from 0 to 100"),
    (("--temp", "nan"), "temperature: found nan"),
    (("--temp", "inf"), "temperature: found inf"),
    (("--top-k", "-1"), "top_k: found -1"),
    (("--top-p", "1.1"), "top_p: found 1.1"),
    (("--min-p", "-0.1"), "min_p: found -0.1"),
    (("--presence-penalty", "3"), "presence_penalty: found 3.0"),
    (("-s", "-2"), "seed: found -2"),
    (("-s", str(2**64)), "seed: found"),
    (("-n", "0"), "-n: found 0"),
    (("-n", "-2"), "-n: found -2"),
    (("-c", "0"), "-c: 0, wanted 1 to"),
    (("-c", str(10**30)), "-c: 1000"),
    (("-c", str(10**9)), "context of 1000000000 tokens: .* MiB in one buffer, which is .* tokens"),
    (("-b", "0"), "-b: 0, wanted 1 to 4096"),
    (("-b", "4097"), "-b: 4097"),
    (("-ctk", "f16", "-ctv", "f32"), "keys and values must have the same type"),
    (("--device", "no such device"), "device 'no such device': no devices have this in their name"),
    (("--device", "77"), r"device 77: found \d+ Vulkan devices"),
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


@pytest.mark.parametrize("args", (("-c", "0"), ("-b", "0"), ("-b", "4097"), ("-ctk", "f16", "-ctv", "f32")))
def test_bad_settings_of_inspect(cli_here, args):
    assert_error(cli_here("inspect", "-m", TINY, *args), "^Error: -[cb]: .*, wanted 1 to|same type")


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


# -- streams that are closed, full or cut off ------------------------------------------------------------------------


def shell(line: str) -> Outcome:
    """A line of bash; V is the command, M the tiny model."""
    names = {**os.environ, "V": " ".join(COMMAND), "M": TINY}
    result = subprocess.run(
        ["bash", "-c", "set -o pipefail; " + line], capture_output=True, cwd=ROOT, env=names, timeout=PATIENCE_S
    )
    return Outcome(result.returncode, result.stdout.decode(errors="replace"), result.stderr.decode())


@pytest.mark.parametrize("command", ("generate -m $M -p x -n 300 --temp 0", "inspect -m $M", "devices --json"))
def test_reader_of_stdout_leaves(gpu, command):
    outcome = shell(f"$V {command} | head -c 1")
    assert outcome.code in (0, 1) and "Traceback" not in outcome.err and "Exception" not in outcome.err
    assert outcome.error_lines == []


@pytest.mark.parametrize("command", ("generate -m $M -p x -n 3", "generate -m $M -p x -n 3 --json", "inspect -m $M"))
def test_stdout_is_full(gpu, command):
    outcome = shell(f"$V {command} > /dev/full")
    assert_error(outcome, "stdout: cannot be written: No space left on device")


def test_closed_streams(gpu):
    outcome = shell("$V generate -m $M -p x -n 3 -c 256 2>&-")
    assert outcome.code == 0 and "per second" not in outcome.out, "notices must not go to stdout"
    assert_error(shell("$V generate -m $M -p x -n 3 -c 256 >&-"), "stdout: it is closed")
    full = shell("$V generate -m $M -p x -n 3 -c 256 --temp 0 2>/dev/full")
    assert full.code == 0 and full.out.strip(), "an answer must not be lost because notices are"
    assert_error(shell("$V generate -m $M -f - <&-"), "stdin: it is closed")
    assert shell("$V chat -m $M -c 256 <&-").code == 0


def test_terminal_without_unicode(cli, gpu):
    outcome = cli(
        *tiny("-p", "x", "-n", "40", "--temp", "5", "--top-k", "0", "-s", "1"), env={"PYTHONIOENCODING": "ascii"}
    )
    assert outcome.code == 0 and outcome.out.isascii() and "Traceback" not in outcome.err


# -- interrupts ------------------------------------------------------------------------------------------------------


def start(*args: str, **options: object) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0, **options}
    return subprocess.Popen([*COMMAND, *args], cwd=ROOT, **pipes)


def write(process: subprocess.Popen, data: bytes) -> None:
    """To its stdin; returns when the process has read it all."""
    process.stdin.write(data)
    unread = array("i", [1])
    while unread[0]:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
        fcntl.ioctl(process.stdin, termios.FIONREAD, unread)


def interrupt(process: subprocess.Popen) -> bytes:
    """Ctrl-C, which ends the process within a minute, however busy the machine; the rest of stderr."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in err, err
    return err


def test_interrupt_in_prefill(gpu, tmp_path):
    (tmp_path / "long.txt").write_text("word and " * 25000)  # a token each character: many minutes
    process = start(*ENDLESS, "-f", str(tmp_path / "long.txt"))
    with process:
        assert b" on " in process.stderr.readline()  # the notice that the model is loaded
        time.sleep(0.5)
        assert interrupt(process).endswith(b"interrupted\n")


def test_interrupt_in_decode(gpu):
    process = start(*ENDLESS, "-p", "a", "-n", "50000", "-c", "65536")
    with process:
        assert process.stdout.read(1)
        assert interrupt(process).endswith(b"interrupted\n")


def test_interrupt_while_waiting_for_a_prompt():
    process = start(*tiny("-f", "-"), stdin=subprocess.PIPE)
    with process:
        write(process, b"a beginning")
        assert interrupt(process).endswith(b"interrupted\n")


@pytest.mark.parametrize("module", ["vkprefill.cli.commands", "numpy", "rich.console", "vkprefill.generation.session"])
def test_interrupt_while_modules_are_imported(tmp_path, module):
    """Ctrl-C as the import of a module begins, from its finder; pyproject.toml's entry and -m."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS.format(module=module))
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    entry = [sys.executable, "-c", "import sys; from vkprefill.cli.main import main; sys.exit(main())"]
    for command in ([*entry, "devices"], [*COMMAND, "devices"]):
        done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT)
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


INTERRUPTS = """
import os, signal, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
"""


def test_an_ignored_interrupt_stays_ignored():
    """As under nohup, or behind & in a script."""
    done = shell("trap '' INT; $V devices & kill -INT $!; wait $!")
    assert done.code == 0 and "interrupted" not in done.err


# -- chat ------------------------------------------------------------------------------------------------------------

CHAT = ("chat", "-m", TINY, *GREEDY, "-n", "4", "-c", "512")


def test_chat(cli, gpu):
    lines = "hello\nand now?\n\n/clear\nhello\n/quit\nnever asked\n"
    outcome = cli(*CHAT, stdin=lines.encode())
    speeds = [line for line in outcome.err.splitlines() if line.startswith("prompt: ")]
    assert outcome.code == 0 and outcome.error_lines == []
    assert len(speeds) == 3
    assert "from the cache" not in speeds[0] and "from the cache" in speeds[1]
    first = json.loads(cli(*tiny("-p", "hello", "-n", "4", *GREEDY, "--json")).out)["text"]
    assert outcome.out.startswith(first + "\n") and outcome.out.endswith("\n" + first + "\n"), (
        "after /clear, as at the start"
    )


def test_chat_ends_with_its_input(cli, gpu):
    for stdin in (b"", b"/quit", b"\n\n"):
        outcome = cli(*CHAT, stdin=stdin)
        assert (outcome.code, outcome.out) == (0, "")
    outcome = cli(*CHAT, stdin=b"last line without an end")
    assert outcome.code == 0 and outcome.out


def test_chat_goes_on_after_errors(cli, gpu):
    outcome = cli(*CHAT, "-sys", "Be brief.", stdin=b"hi\xff\n" + b"long " * 500 + b"\nhello\n")
    assert outcome.code == 0 and len(outcome.error_lines) == 2
    assert "not UTF-8" in outcome.error_lines[0] and "context" in outcome.error_lines[1]
    assert sum(line.startswith("prompt: ") for line in outcome.err.splitlines()) == 1


def test_chat_interrupted(gpu):
    """Ctrl-C stops the answer, not the chat; at the prompt it ends it."""
    args = ("chat", "-m", str(model_path("tiny-b-f32")), *GREEDY, "-c", "65536")
    process = start(*args, stdin=subprocess.PIPE)
    with process:
        process.stdin.write(b"a\n")
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        lines = []
        while not lines or not re.match(r"stopped|prompt: ", lines[-1]):
            lines.append(process.stderr.readline().decode())
            assert lines[-1], lines
        write(process, b"\n")
        interrupt(process)
