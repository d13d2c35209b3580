"""The scripts of examples/microscope: what docs/research.md says of the built-in model, and that they draw."""

import importlib
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from tests.e2e.conftest import ROOT

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("gpu")
FOLDER = ROOT / "examples" / "microscope"


@pytest.fixture
def script(monkeypatch, tmp_path, capsys):
    """script(name): the module, after its `main` with a picture; its lines."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name: str):
        picture = tmp_path / f"{name}.svg"
        monkeypatch.setattr(sys, "argv", [name, "-o", str(picture)])
        module = importlib.import_module(name)
        module.main()
        *lines, last = capsys.readouterr().out.splitlines()
        assert last == f"{picture}: written" and picture.stat().st_size < 100_000
        texts = [node.text for node in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
        assert "after layer" in texts
        return lines, texts

    yield run
    for name in [path.stem for path in FOLDER.glob("*.py")]:
        sys.modules.pop(name, None)


def test_logit_lens(script):
    """A pet after layer 5, the right one after layer 7."""
    lines, texts = script("logit_lens")
    assert len(lines) == 8 and "'donkey'" in lines[5] and lines[7].startswith("after layer 7: 'pigeon' ")
    assert not any("pigeon" in line for line in lines[:7]) and {"donkey", "pigeon", " keep"} <= set(texts)


def test_patch_a_fact(script):
    """The fact stays where it was read until attention layers carry it."""
    lines, _ = script("patch_a_fact")
    assert lines[0] == "answers: pigeon ferret"
    assert all("' pigeon' (token 6) moves" in line for line in lines[1:8])
    shares = [int(line.rpartition(" ")[2].rstrip("%")) for line in lines[1:]]
    assert shares[:3] == [100] * 3 and shares[3:7] == [shares[3]] * 4 and shares[7] == 100 and 30 < shares[3] < 90
    assert "(token 24)" in lines[8], "the last token"


def test_sparse_layers(script):
    """Layers before the first attention see no difference; what the draft chose is nearer than the last tokens are."""
    lines, texts = script("sparse_layers")
    named = dict(line.split(": ") for line in lines)
    half, third, fifth, last = (np.array(values.split(), float) for values in named.values())
    assert list(named)[0].endswith("by importance") and list(named)[3].endswith("the last tokens")
    assert set(named) <= set(texts)
    for values in (half, third, fifth):
        assert len(values) == 8 and values[:3].max() < 0.01 and values[3:].max() < 0.1
    assert last[3:].min() > 0.1 and last[7] > 3 * last[3] / 2
