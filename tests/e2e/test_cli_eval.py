"""vkprefill eval as typed: JSON, table, files, mistakes in options and files."""

import json
import sys

import pytest

from tests.e2e.conftest import Outcome
from vkprefill.cli.main import main
from vkprefill.errors import OutOfMemoryError, RequestError
from vkprefill.evaluation import runs

pytestmark = pytest.mark.usefixtures("gpu")


@pytest.fixture
def evaluate(cli):
    """evaluate(*options, code=0): the outcome of `vkprefill eval`, which must end with the code."""

    def run(*options: object, code: int = 0) -> Outcome:
        done = cli("eval", *options)
        assert done.code == code, done.err
        return done

    return run


def test_json_and_report(evaluate, tmp_path):
    report = tmp_path / "report.md"
    done = evaluate(
        "--lengths", "200", "--tasks", 1, "--keep", "0.3", "--variant", "window=100", "--json", "-", "--report", report
    )
    found = json.loads(done.out)
    assert {
        "command",
        "date",
        "device",
        "driver",
        "model",
        "draft",
        "seed",
        "settings",
        "complete",
        "cells",
        "outcomes",
    } <= set(found)
    assert found["command"].startswith("vkprefill eval --lengths 200") and found["complete"]
    methods = [(c["method"], c["variant"]) for c in found["cells"]]
    assert methods == [
        ("dense", ""),
        ("draft", ""),
        ("random", ""),
        ("ends", ""),
        ("dense-state", ""),
        ("draft", "window=100"),
    ]
    dense = found["cells"][0]
    assert (dense["length"], dense["n"], dense["right"], dense["same_first"], dense["kl_mean"]) == (200, 1, 1, 1.0, 0.0)
    assert {
        "right_low",
        "right_high",
        "right_by_kind",
        "kept_share",
        "ttft_ms",
        "score_ms",
        "lookahead_ms",
        "select_ms",
        "prefill_ms",
    } <= set(dense)
    assert found["outcomes"][1]["ttft_ms"] > found["outcomes"][1]["score_ms"] > 0
    assert "dense-state" in done.err, "the table makes way"
    assert "not used" not in done.err and "measuring" not in done.err, "nothing of guards, which were not asked for"
    assert "| 200 | 30 % | draft |" in report.read_text() and found["device"] in report.read_text()


def test_file_of_tasks(evaluate, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(
        json.dumps(
            {"prompt": "Robert keeps a pet pigeon.\nWhich pet does Robert keep?", "answer": ["a pigeon", "pigeon"]}
        )
    )
    done = evaluate("-f", path, "--methods", "dense")
    assert "file" in done.out and "1/1" in done.out and "1 tasks" in done.err

    path.write_text(path.read_text() + '\n{"prompt": "x"}\n')
    done = evaluate("-f", path, code=1)
    assert f'Error: {path} line 2: "answer": found None' in done.err and "Traceback" not in done.err


def test_missing_plots_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["eval", "--plot", str(tmp_path / "p.png")]) == 1
    assert (
        capsys.readouterr().err == "Error: --plot: matplotlib is not installed; run: pip install 'vkprefill[plots]'\n"
    )


def test_plot(evaluate, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "p.png"
    evaluate("--lengths", "128", "--tasks", 1, "--methods", "dense", "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_interrupted_run_reports_what_is_done(capsys, monkeypatch):
    run_task, asked = runs.Evaluation._run_task, []

    def stop_at_second(self, task, cache, step):
        asked.append(task)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return run_task(self, task, cache, step)

    monkeypatch.setattr(runs.Evaluation, "_run_task", stop_at_second)
    assert main(["eval", "--lengths", "128", "--tasks", "3", "--methods", "dense", "--json", "-"]) == 130
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert not found["complete"] and [o["task"] for o in found["outcomes"]] == ["single-128-0"]
    assert "interrupted: 1 runs of 3 are done" in err


def test_failed_run_reports_what_is_done(capsys, monkeypatch):
    new_cache, made = runs.Model.new_cache, []

    def fail_at_third(self, *args):
        made.append(self)
        if len(made) == 3:
            raise OutOfMemoryError("no room")
        return new_cache(self, *args)

    monkeypatch.setattr(runs.Model, "new_cache", fail_at_third)
    assert main(["eval", "--lengths", "128", "--tasks", "3", "--methods", "dense"]) == 1
    out, err = capsys.readouterr()
    assert "2/2" in out and "failed: 2 runs of 3 are done" in err and err.endswith("Error: no room\n")


def test_a_task_that_is_refused_ends_no_other(capsys, monkeypatch):
    new_cache, made = runs.Model.new_cache, []

    def refuse_second(self, *args):
        made.append(self)
        if len(made) == 2:
            raise RequestError("not this one")
        return new_cache(self, *args)

    monkeypatch.setattr(runs.Model, "new_cache", refuse_second)
    assert main(["eval", "--lengths", "128", "--tasks", "3", "--methods", "dense"]) == 1
    out, err = capsys.readouterr()
    assert "2/2" in out and "failed: 2 runs of 3 are done" in err and err.endswith("Error: not this one\n")


def test_self_by_layer_on_tasks_by_name_goes_on(evaluate, tmp_path):
    """A second start takes what the first did from the file, and runs what is new."""
    record, haystack = tmp_path / "record.jsonl", tmp_path / "hay.txt"
    haystack.write_text("The old lamp stood near the hotel. It was a warm day. " * 20)
    kinds = ("--kinds", "single,ruler:niah_single_2,nolima_like", "--haystack", haystack)
    common = (*kinds, "--methods", "dense,self", "--self-layers", "all", "-n", 12, "--resume", record, "--json", "-")
    first = json.loads(evaluate("--lengths", "200", "--tasks", 3, *common).out)
    assert [(o["kind"], o["method"], o["variant"]) for o in first["outcomes"][:4]] == [
        ("single", "dense", ""),
        ("single", "self", "layer 3"),
        ("ruler:niah_single_2", "dense", ""),
        ("ruler:niah_single_2", "self", "layer 3"),
    ]
    dense, own = first["cells"]
    assert dense["same_answer"] == 1 and own["dense_right"] == dense["right"] == dense["kept_right"] > 0
    again = json.loads(evaluate("--lengths", "200,240", "--tasks", 3, *common).out)
    assert again["outcomes"][:6] == first["outcomes"], "to the millisecond"
    assert [o["length"] for o in again["outcomes"]] == [200] * 6 + [240] * 6
    assert len(record.read_text().splitlines()) == 1 + 6
    done = evaluate("--lengths", "200", "--tasks", 3, *common, "-s", 1, code=1)
    assert "record.jsonl: is of a run with seed 0, wanted 1, or another file" in done.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--kinds", "singel"],
            "--kinds: found singel, wanted some of single, several, distractors, code, nolima_like, r",
        ),
        (["--kinds", "ruler:qa_1"], "--kinds: ruler:qa_1 needs a data set of questions, give one by -f"),
        (["--self-layers", "3", "--methods", "dense"], "--self-layers: found --methods dense, wanted self"),
        (
            ["--no-specprefill", "--methods", "dense,draft"],
            "--no-specprefill: found --methods dense,draft, wanted dense",
        ),
        (["--specprefill-scorer", "self", "--methods", "draft"], "--specprefill-scorer: who scores is a method here"),
        (["--haystack", "/no/such"], "/no/such: cannot be read: No such file or directory"),
        (
            ["--methods", "dense,best"],
            "--methods: found best, wanted some of dense, draft, self, checked, random, ends, dense-state",
        ),
        (["--tasks", "0"], "--tasks: found 0, wanted at least 1"),
        (["--keep", "20"], "--keep: found 20, wanted a share above 0, at most 1"),
        (["--mass", "0"], "--mass: found 0, wanted a share above 0, at most 1"),
        (["--variant", "windw=3"], "--variant: found windw=3, wanted NAME=VALUE"),
        (["--specprefill-keep-ratio", "0.2"], "--specprefill-keep-ratio: eval sets it by --keep and --mass"),
        (
            ["-f", "x.jsonl", "--lengths", "512"],
            "-f: --lengths, --kinds, --haystack and --instruction are for made tasks",
        ),
        (["--json", "/no/such/folder/x.json"], "/no/such/folder/x.json: cannot be written"),
    ],
)
def test_bad_options(capsys, args, message):
    assert main(["eval", *args]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"Error: {message}") and err.count("\n") == 1


def test_bad_number(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["eval", "--lengths", "long"])
    assert stopped.value.code == 2 and "invalid list of int value: 'long'" in capsys.readouterr().err


def test_help_names_all(capsys):
    with pytest.raises(SystemExit):
        main(["eval", "--help-all"])
    text = "".join(capsys.readouterr().out.split())  # lines may break at a hyphen
    assert all(
        word in text for word in ("dense-state", "distractors", "--force-question", "--specprefill-lookahead", "-md")
    )


def test_what_only_the_loaded_model_can_refuse(evaluate):
    done = evaluate("--lengths", "128", "--tasks", 1, "--self-layers", "4", "--methods", "dense,self", code=1)
    assert "Error: score_layer: found 4, wanted one of 3, a full-attention layer of" in done.err
    done = evaluate("--lengths", "128", "--tasks", 1, "--methods", "dense", "--resume", "/no/such/x", code=1)
    assert "Error: /no/such/x: cannot be gone on with: No such file or directory" in done.err


def test_lengths_that_cannot_be_made(evaluate):
    done = evaluate("--lengths", "10", "--methods", "dense", code=1)
    assert "Error: length: 10 tokens, the facts and the question" in done.err
    done = evaluate("--lengths", "512", "--tasks", 1, "-c", 256, "--methods", "dense", code=1)
    assert "Error: context: a task has" in done.err
