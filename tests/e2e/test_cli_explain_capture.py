"""`vkprefill explain` and `vkprefill capture` as a user runs them, on the built-in models."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import vkprefill
from tests.e2e.conftest import COMMAND, PATIENCE_S, ROOT, TINY
from vkprefill.generation.prompt import encode_prompt

FILLER = "The office and the bridge were kept behind the market. A warm wind came from the market. "
PROMPT = f"{FILLER * 9}Robert keeps a pet pigeon. {FILLER * 9}\nWhich pet does Robert keep?"
SHORT = "Robert keeps a pet pigeon. Which pet does Robert keep?"
ALWAYS = "--no-specprefill-break-even"  # the timing of a machine decides nothing
TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
TARGET = str(files("vkprefill") / "data" / "target.gguf")

pytestmark = pytest.mark.usefixtures("gpu")


@pytest.fixture(scope="module")
def pair():
    """The built-in models in this process."""
    folder = files("vkprefill") / "data"
    with vkprefill.load(str(folder / "target.gguf"), max_context=1024) as target:
        with vkprefill.load(str(folder / "draft.gguf"), target.device, 1024) as draft:
            yield target, draft


def assert_error(done, *words, code=1):
    """One line on stderr with the words, no traceback, nothing on stdout."""
    assert done.code == code, done.err
    assert done.out == ""
    (line,) = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert "Traceback" not in done.err
    for word in words:
        assert word in line


# -- explain ----------------------------------------------------------------------------------------------------------


def test_json_is_what_the_api_gives(cli, pair):
    target, draft = pair
    done = cli("explain", "-p", PROMPT, "--json", ALWAYS)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    ids = encode_prompt(target, PROMPT).token_ids
    spec = vkprefill.SpecPrefill(target, draft, vkprefill.SpecPrefillConfig(break_even=False))
    scored = spec.score(ids)
    spec.close()
    assert found["token_ids"] == ids
    assert "".join(found["tokens"]) == target.tokenizer.decode(ids)
    np.testing.assert_array_equal(np.float32(found["importance"]), scored.importance)
    np.testing.assert_array_equal(np.float32(found["chunk_scores"]), scored.chunk_scores)
    assert [tuple(pair) for pair in found["kept_ranges"]] == list(scored.kept_ranges)
    assert found["kept_n"] == len(scored.kept) < len(ids)
    report = found["specprefill"]
    assert report["status"] == "active" and report["kept_ranges"] == found["kept_ranges"]
    assert report["settings"]["break_even"] is False
    assert report["sparse_prefill_ms"] == 0, "the target did work"
    assert found["times_ms"]["score"] > 0


def test_pipe_gets_plain_markers_and_the_summary_goes_to_stderr(cli, tmp_path):
    (tmp_path / "prompt.txt").write_text(PROMPT)
    done = cli("explain", "-f", tmp_path / "prompt.txt", ALWAYS)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    assert done.out.count("[-") == done.out.count("-]") > 0
    assert (
        done.out.replace("[-", "").replace("-]", "")
        == f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n\n"
    )
    summary = done.err.splitlines()[-1]
    assert summary.startswith("speculative prefill: active: ") and "scoring" in summary
    again = cli("explain", "-f", "-", ALWAYS, stdin=PROMPT.encode())
    assert again.out == done.out


def test_terminal_gets_colours(cli):
    done = cli("explain", "-p", PROMPT, ALWAYS, env={**TERMINAL, "COLORTERM": "truecolor"})
    assert done.code == 0, done.err
    assert "\x1b[2;9m" in done.out, "no dim, struck-through text"
    assert "\x1b[30;48;2;" in done.out, "no heat"
    assert "[-" not in done.out
    plain = cli("explain", "-p", PROMPT, ALWAYS, env={**TERMINAL, "NO_COLOR": "1"})
    assert "\x1b" not in plain.out and "[-" in plain.out


def test_guards_decision_is_reported_with_what_the_draft_would_keep(cli):
    done = cli("explain", "-p", PROMPT, "--json", "--specprefill-min-tokens", "5000")
    found = json.loads(done.out)
    assert found["specprefill"]["status"] == "skipped_min_tokens"
    assert found["specprefill"]["kept_n"] == len(found["token_ids"]) > found["kept_n"] > 0
    assert len(found["importance"]) == len(found["token_ids"])
    assert "skipped_min_tokens" in done.err and "scoring would keep" in done.err


def test_raw_system_prompt_and_special_tokens(cli):
    raw = json.loads(cli("explain", "--raw", "-p", "<|im_start|>hello", "--json", ALWAYS).out)
    assert raw["tokens"][0] == "<|im_start|>"
    user = json.loads(cli("explain", "-p", "<|im_start|>hello", "-sys", "Be brief.", "--json", ALWAYS).out)
    assert user["tokens"].count("<|im_start|>") == 3  # system, user, assistant; the user's own is text
    assert "Be brief." in "".join(user["tokens"])


def test_html_file(cli, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("old")
    done = cli("explain", "-p", f"{PROMPT} <script>alert(1)</script>", "--html", page, ALWAYS)
    assert done.code == 0, done.err
    assert done.out == ""
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>")
    assert "<del>" in text and "<script>alert" not in text
    assert "vkprefill-demo-draft" in text and "cumulative_mass" in text
    assert list(tmp_path.iterdir()) == [page]
    assert stat.S_IMODE(page.stat().st_mode) == 0o666 & ~umask()


def test_map_of_all_layers(cli, cli_here, pair, tmp_path):
    """A strip for each layer in the page; the numbers in the JSON are means of captured rows."""
    target, _ = pair
    done = cli("explain", "-p", PROMPT, ALWAYS, "--json", "--all-layers", "--html", tmp_path / "page.html")
    assert done.code == 0, done.err
    layers = json.loads(done.out)["layers"]
    assert layers["kinds"] == [*["delta net"] * 3, "attention"] * 2
    capture = vkprefill.AttentionCapture(delta_layers=None)
    target.prefill(encode_prompt(target, PROMPT).token_ids, capture=capture)
    weights = np.float32(layers["weights"])
    np.testing.assert_allclose(weights[7], capture.pattern[7][:, 0].mean(axis=0), atol=1e-7)
    np.testing.assert_allclose(weights[4], np.abs(capture.delta_pattern[4][:, 0]).mean(axis=0), atol=1e-7)
    text = (tmp_path / "page.html").read_text()
    assert text.count('role="img" aria-label="layer ') == 8 and "7 attention</th>" in text and "4 delta net" in text
    assert_error(cli_here("explain", "-p", "x", "--all-layers"), "--all-layers", "--html")


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_explain_without_a_draft(cli_here):
    assert_error(cli_here("explain", "-m", TARGET, "-p", "x"), "no draft model", "-md")
    assert_error(cli_here("explain", "-p", "x", "--no-specprefill"), "--no-specprefill")


def test_explain_usage(cli_here):
    assert cli_here("explain").code == 2
    assert cli_here("explain", "-p", "x", "-f", "y").code == 2
    assert_error(cli_here("explain", "-p", ""), "prompt: it is empty")
    assert_error(cli_here("explain", "-f", "/nowhere/prompt.txt"), "/nowhere/prompt.txt: cannot be read")
    assert_error(cli_here("explain", "-p", "x", "--raw", "-sys", "y"), "--raw")


def test_prompt_longer_than_the_draft_holds(cli):
    done = cli("explain", "-p", PROMPT, "--specprefill-draft-context", "64", ALWAYS)
    assert_error(done, "draft context", "64")


# -- output files, for both --------------------------------------------------------------------------------------------


@pytest.fixture(params=["explain", "capture", "plot"])
def writing(request, tmp_path):
    """(arguments up to the path of an output file, path of a file in an empty folder)."""
    if request.param == "plot" and find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    arguments = {
        "explain": ["explain", "-p", SHORT, ALWAYS, "--html"],
        "capture": ["capture", "-p", SHORT, "-o"],
        "plot": ["capture", "-p", SHORT, "-o", tmp_path / "rows.npz", "--plot"],
    }[request.param]
    return arguments, tmp_path / "out" / "file"


def test_output_in_a_folder_that_is_not_there(cli_here, writing):
    arguments, path = writing
    done = cli_here(*arguments, path)
    assert_error(done, str(path), "cannot be written", "No such file")
    assert "context" not in done.err, "the model was loaded first"
    assert not list(path.parent.parent.iterdir())


def test_output_to_what_is_no_file(cli_here, writing):
    arguments, path = writing
    assert_error(cli_here(*arguments, "/dev/null"), "/dev/null: cannot be written: it is not a regular file")
    assert_error(cli_here(*arguments, path.parent.parent), "it is not a regular file")
    reading, writing_end = os.pipe()
    assert_error(cli_here(*arguments, f"/proc/{os.getpid()}/fd/{writing_end}"), "it is not a regular file")
    os.close(reading), os.close(writing_end)
    for name in ("", "-"):
        assert_error(cli_here(*arguments, name), f"{name!r}: cannot be written: it names no file")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_output_to_a_file_that_is_read_or_written_too(cli_here, tmp_path):
    model, text = tmp_path / "model.gguf", tmp_path / "text.txt"
    shutil.copy(TINY, model)
    text.write_text("a prompt")
    (tmp_path / "link").symlink_to(text)
    generate = ("generate", "-m", model, "-f", text, "-n", "1")
    for args, message in [
        ((*generate, "--trace", model), "--trace: found .*model.gguf, wanted another file than that of --model"),
        ((*generate, "--trace", tmp_path / "link"), "--trace: found .*link, wanted another file than that of --file"),
        (("capture", "-f", text, "-o", text), "--output: found .*text.txt, wanted another file than that of --file"),
        (("bench", "--profile", "--json", "x", "--trace", "./x"), "--trace: found ./x, wanted .* that of --json"),
    ]:
        outcome = cli_here(*map(str, args))
        assert outcome.code == 1 and re.search(message, outcome.err), outcome.err
    assert text.read_text() == "a prompt" and model.read_bytes() == Path(TINY).read_bytes()


def test_output_through_a_link_keeps_the_link(cli, writing):
    arguments, path = writing
    path.parent.mkdir()
    path.symlink_to("real")
    assert cli(*arguments, path).code == 0
    assert path.is_symlink() and (path.parent / "real").stat().st_size > 1000
    assert len(list(path.parent.iterdir())) == 2


def test_error_leaves_an_older_file_as_it_was(cli_here, writing):
    arguments, path = writing
    path.parent.mkdir()
    path.write_text("old")
    done = cli_here(*arguments, path, "--device", "no such device")
    assert_error(done, "no such device")
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("command", [["explain", ALWAYS, "--html"], ["capture", "-o"]])
def test_interrupt_leaves_an_older_file_as_it_was(command, tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    prompt = FILLER * 1000  # takes long on any machine
    process = subprocess.Popen([*COMMAND, *command, path, "-p", prompt], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "context" in line:  # loaded
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "interrupted"
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


# -- capture ----------------------------------------------------------------------------------------------------------


def test_npz_is_what_the_api_gives(cli, pair, tmp_path):
    target, _ = pair
    path = tmp_path / "rows"  # the name is taken as it is, without an .npz added
    done = cli("capture", "-p", PROMPT, "--layers", "7,3", "--queries", "0,5,-1", "-o", path)
    assert done.code == 0, done.err
    assert done.out == ""
    assert "layers 3, 7; 4 heads, 3 queries" in done.err.splitlines()[-1]
    ids = encode_prompt(target, PROMPT).token_ids
    capture = vkprefill.AttentionCapture((3, 7), (0, 5, -1))
    target.prefill(ids, capture=capture)
    with np.load(path) as found:
        assert set(found) == {"pattern_3", "pattern_7", "query_positions", "key_positions", "token_ids", "tokens"}
        for layer in (3, 7):
            rows = found[f"pattern_{layer}"]
            assert rows.dtype == np.float32 and rows.shape == (4, 3, len(ids))
            np.testing.assert_array_equal(rows, capture.pattern[layer])
            np.testing.assert_allclose(rows.sum(axis=-1), 1, atol=1e-5)
            assert not rows[:, 1, 6:].any(), "keys after the query have weight"
        assert found["query_positions"].tolist() == [0, 5, len(ids) - 1]
        assert found["key_positions"].tolist() == list(range(len(ids)))
        assert found["token_ids"].tolist() == ids
        assert "".join(found["tokens"].tolist()) == target.tokenizer.decode(ids)


def test_rows_of_delta_net_layers(cli, pair, tmp_path):
    """Of some or of all, with the softmax rows or without."""
    target, _ = pair
    capture = vkprefill.AttentionCapture((), (0, -1), (0, 5))
    target.prefill(encode_prompt(target, SHORT).token_ids, capture=capture)
    done = cli(
        "capture", "-p", SHORT, "--layers", "none", "--delta", "5,0", "--queries", "0,-1", "-o", tmp_path / "a.npz"
    )
    assert done.code == 0, done.err
    assert "delta-net layers 0, 5; " in done.err.splitlines()[-1]
    with np.load(tmp_path / "a.npz") as found:
        assert {name for name in found if "pattern" in name} == {"delta_pattern_0", "delta_pattern_5"}
        for layer, rows in capture.delta_pattern.items():
            np.testing.assert_array_equal(found[f"delta_pattern_{layer}"], rows)
    assert cli("capture", "-p", SHORT, "--delta", "-o", tmp_path / "b.npz").code == 0
    with np.load(tmp_path / "b.npz") as found:
        names = {f"delta_pattern_{layer}" for layer in target.config.linear_layers} | {"pattern_3", "pattern_7"}
        assert {name for name in found if "pattern" in name} == names


def test_defaults_are_all_layers_and_the_last_query(cli, tmp_path):
    assert cli("capture", "-p", SHORT, "-o", tmp_path / "a.npz").code == 0
    with np.load(tmp_path / "a.npz") as found:
        num_keys = len(found["token_ids"])
        assert {name for name in found if name.startswith("pattern_")} == {"pattern_3", "pattern_7"}
        assert found["pattern_3"].shape == (4, 1, num_keys)
        assert found["query_positions"].tolist() == [num_keys - 1]


def test_all_queries(cli, tmp_path):
    assert cli("capture", "-p", SHORT, "--queries", "all", "-o", tmp_path / "a.npz").code == 0
    with np.load(tmp_path / "a.npz") as found:
        rows = found["pattern_3"]
        assert rows.shape[1] == rows.shape[2] == len(found["tokens"])
        assert not np.triu(rows, 1).any()
        np.testing.assert_allclose(rows.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layers", "4"], ["layers: 4", "3, 7"]),
        (["--layers", "three"], ["--layers", "'three'", "whole numbers"]),
        (["--layers", ""], ["--layers"]),
        (["--layers", "none"], ["--layers", "--delta"]),
        (["--delta", "3"], ["delta_layers: 3", "0, 1, 2"]),
        (["--delta", "x"], ["--delta", "'x'"]),
        (["--queries", "9999"], ["queries", "9999"]),
        (["--queries=-2,x"], ["--queries", "'-2,x'", "or all"]),
        (["--queries", "1,1"], ["queries", "more than once"]),
        (["-c", "8"], ["context"]),
        (["-m", "/nowhere.gguf"], ["/nowhere.gguf"]),
    ],
)
def test_capture_errors_leave_no_file(cli_here, tmp_path, options, words):
    assert_error(cli_here("capture", "-p", SHORT, "-o", tmp_path / "a.npz", *options), *words)
    assert not list(tmp_path.iterdir())


def test_capture_that_does_not_fit_is_refused_with_the_numbers(cli, tmp_path):
    done = cli("capture", "-p", FILLER * 1300, "--queries", "all", "-o", tmp_path / "a.npz")
    assert_error(done, "queries", "4 heads", "MiB")
    assert not list(tmp_path.iterdir())


def test_capture_usage(cli_here, tmp_path):
    assert cli_here("capture", "-p", "x").code == 2
    assert cli_here("capture", "-o", tmp_path / "a.npz").code == 2


@pytest.mark.parametrize("options", [["--queries=-1"], ["--queries", "0,3,-1"], ["--delta"]])
def test_plot(cli, tmp_path, options):
    pytest.importorskip("matplotlib")
    done = cli("capture", "-p", SHORT, *options, "-o", tmp_path / "a.npz", "--plot", tmp_path / "a.png")
    assert done.code == 0, done.err
    data = (tmp_path / "a.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 5000


def test_plot_without_matplotlib_is_refused_before_the_work(cli, tmp_path):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "matplotlib.py").write_text("raise ImportError('simulated')")
    command = ("capture", "-p", SHORT, "-o", tmp_path / "a.npz", "--plot", tmp_path / "a.png")
    done = cli(*command, env={"PYTHONPATH": str(tmp_path / "path")})
    assert_error(done, "--plot", "vkprefill[plots]")
    assert "context" not in done.err, "the model was loaded first"
    assert not (tmp_path / "a.npz").exists()
