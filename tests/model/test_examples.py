"""The scripts in examples/, run as they stand with the built-in model: what they say is so."""

import runpy
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ELSEWHERE = {"record_over_actors"}  # tests/research/ray


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """run(name): (the script's names, what it printed); it runs in a folder of its own."""

    def run(name: str) -> tuple[dict[str, object], str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", [f"{name}.py"])
        return runpy.run_path(str(EXAMPLES / f"{name}.py")), capsys.readouterr().out

    return run


def test_record_activations(run, tmp_path):
    names, out = run("record_activations")
    assert "answer: ferret" in out and "after layer 7: 'ferret'" in out
    saved = np.load(tmp_path / "activations.npz")
    assert saved["blocks.7.hook_resid_post"].shape == (len(names["cache"].tokens), 256)
    assert names["lens"].shape == (8, len(names["cache"].tokens), names["model"].config.vocab_size)


def test_ablate_head(run):
    names, out = run("ablate_head")
    assert "answer 'ferret'" in out
    assert len(names["losses"]) == 8 and max(names["losses"], key=names["losses"].get)[0] == "blocks.7.attn.hook_z"


def test_attention_rows(run):
    names, out = run("attention_rows")
    assert [*sorted(names["rows"])] == [*range(8)] and "layer 7 (softmax)" in out and "' ferret'" in out


def test_steer(run):
    _, out = run("steer")
    assert "strength 0.0: the answer begins with 'ferret'\nstrength 1.0: the answer begins with 'pigeon'" in out


def test_states(run):
    """The script itself compares the bits."""
    names, out = run("states")
    assert not np.array_equal(names["first"], names["without"]) and out.count("from the") == 2


def test_each_is_tested():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} - ELSEWHERE <= tested
