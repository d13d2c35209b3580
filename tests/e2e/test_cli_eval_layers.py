"""vkprefill eval with several layers of a model that scores for itself, and with checked answers."""

import json

import pytest

from tools.make_model import make_config, make_model
from vkprefill.cli.main import main

pytestmark = pytest.mark.usefixtures("gpu")


@pytest.fixture(scope="module")
def eight_layers(tmp_path_factory):
    """Random weights; attention in layers 1, 3, 5 and 7."""
    config = make_config("tiny", num_hidden_layers=8, full_attention_interval=2)
    return make_model(tmp_path_factory.mktemp("models") / "eight.gguf", config, seed=3)


@pytest.fixture
def evaluate(cli, eight_layers, tmp_path):
    """evaluate(*options) -> the JSON of a run with one task of 300 tokens."""

    def run(*options: object) -> dict:
        done = cli("eval", "-m", eight_layers, "--lengths", "300", "--tasks", 1, "-n", 4, "--json", "-", *options)
        assert done.code == 0, done.err
        return json.loads(done.out)

    return run


def test_all_layers_go_on(evaluate, tmp_path):
    """A second start takes all layers' outcomes from the file; other layers are another run. And they are drawn."""
    pytest.importorskip("matplotlib")
    record, plot = tmp_path / "record.jsonl", tmp_path / "plot.png"
    options = "--methods", "dense,self", "--keep", "0.1,1", "--resume", record
    first = evaluate(*options, "--self-layers", "all", "--plot", plot)
    compared = [(c["method"], c["budget"], c["variant"]) for c in first["cells"]]
    by_layer = [("self", budget, f"layer {n}") for budget in ("10 %", "100 %") for n in (1, 3, 5)]
    assert compared == [("dense", "", ""), *by_layer]
    assert all(c["same_answer"] == 1 and c["kl_mean"] == 0 for c in first["cells"] if c["budget"] == "100 %")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert evaluate(*options, "--self-layers", "1,3,5")["outcomes"] == first["outcomes"], "to the millisecond"


def test_a_record_of_other_layers_is_refused(evaluate, eight_layers, tmp_path, capsys):
    record = tmp_path / "record.jsonl"
    options = ["--methods", "self", "--keep", "0.1", "--resume", str(record)]
    evaluate(*options, "--self-layers", "1,5")
    common = ["eval", "-m", str(eight_layers), "--lengths", "300", "--tasks", "1", "-n", "4"]
    assert main([*common, *options, "--self-layers", "1,3"]) == 1
    assert "record.jsonl: is of a run with methods" in capsys.readouterr().err


def test_checked_answers_by_layer(evaluate):
    """Each sparse answer once more, as the dense one."""
    found = evaluate("--methods", "dense,self,checked", "--keep", "0.1", "--self-layers", "1,5")
    dense, *own, one, five = found["cells"]
    assert [c["variant"] for c in (*own, one, five)] == ["layer 1", "layer 5"] * 2
    for cell, sparse in zip((one, five), own, strict=True):
        assert cell["method"] == "checked" and cell["same_answer"] == 1 and cell["check_ms"] > 0
        assert cell["revised"] == 1 - sparse["same_answer"] and cell["kept_share"] == sparse["kept_share"]
    assert dense["revised"] is None and {o["check"] for o in found["outcomes"]} <= {"", "equal", "revised"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--specprefill-check"], "--specprefill-check: checking answers is a method here: --methods checked"),
        (["--variant", "check=on"], "--variant: found check=on, checking answers is a method: --methods checked"),
        (["--methods", "checked", "--self-layers", "3"], "--self-layers: found --methods checked, wanted self"),
    ],
)
def test_bad_options(capsys, args, message):
    assert main(["eval", *args]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"Error: {message}") and err.count("\n") == 1
