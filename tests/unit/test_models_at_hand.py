"""Models by name: what is listed, what -m NAME, -md auto, -hf and -hfd become."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference.fixtures import model_path
from tests.unit.gguf_bytes import gguf_bytes, key, string
from tests.unit.hub_server import REPO, Hub, running
from tools.make_model import companion_of
from vkprefill.cli.main import main
from vkprefill.cli.model_names import find_models
from vkprefill.errors import GGUFError, HubError, RequestError
from vkprefill.hub.at_hand import Facts, best_draft, built_in, can_draft, examine, named, places

TARGET, DRAFT = built_in("built-in"), built_in("built-in-draft")
OTHER = gguf_bytes([key("general.architecture", 8, string("llama"))])


@pytest.fixture(autouse=True)
def own(monkeypatch, tmp_path) -> Path:
    """A folder with models; empty caches."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    folder = tmp_path / "own"
    folder.mkdir()
    shutil.copy(TARGET, folder / "Big-Q4_K_M.gguf")
    shutil.copy(DRAFT, folder / "Small-Q8_0.gguf")
    (folder / "Other.gguf").write_bytes(OTHER)
    (folder / "mmproj-Big.gguf").write_bytes(OTHER)
    return folder


def in_hub(tmp_path: Path, repo: str, commit: str, name: str, content: bytes, *, main: bool = True) -> Path:
    base = tmp_path / "hf" / "hub" / f"models--{repo.replace('/', '--')}"
    path = base / "snapshots" / commit / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if main:
        (base / "refs").mkdir(exist_ok=True)
        (base / "refs" / "main").write_text(commit)
    return path


def names(*folders: Path) -> list[str]:
    return [place.name for place in places(folders)]


def test_places(own, tmp_path, monkeypatch):
    assert names() == ["built-in", "built-in-draft"]
    new = in_hub(tmp_path, "u/r", "a", "New-Q8_0.gguf", b"new")
    in_hub(tmp_path, "u/r", "b", "New-Q8_0.gguf", b"old", main=False)
    in_hub(tmp_path, "u/r", "b", "Old-Q8_0.gguf", b"old", main=False)
    in_hub(tmp_path, "u/r", "a", "Half-00001-of-00002.gguf", b"a part is missing")
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "u_r_Llama-Q8_0.gguf").write_bytes(OTHER)
    assert names(own, own)[2:] == ["New-Q8_0", "Old-Q8_0", "u_r_Llama-Q8_0", "Big-Q4_K_M", "Other", "Small-Q8_0"]
    assert named("-m", "New-Q8_0") == new
    monkeypatch.setenv("VKPREFILL_MODELS", f"{own}:{tmp_path / 'none'}")
    assert named("-m", "big-q4_k_m") == named("-m", "Big-Q4_K_M.gguf") == own / "Big-Q4_K_M.gguf"
    with pytest.raises(RequestError, match="-md none: no such file, nor a listed model"):
        named("-md", "none")
    assert main(["generate", "-m", "none", "-p", "x"]) == 1


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that others may look into; pytest's own are their owner's alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_folders_that_cannot_be_looked_into(open_folder, monkeypatch, request):
    """Names can be listed there, and nothing else."""
    monkeypatch.setenv("HF_HOME", str(open_folder))
    cached = open_folder / "hub" / "models--u--r" / "snapshots" / "a"
    cached.mkdir(parents=True)
    for folder in (open_folder, cached):
        (folder / "New-Q8_0.gguf").write_bytes(b"new")
    assert names(open_folder)[2:] == ["u/r/New-Q8_0", f"{open_folder}/New-Q8_0"]
    cached.chmod(0o744)
    request.getfixturevalue("unprivileged")
    assert names(open_folder)[2:] == ["New-Q8_0"]


def test_two_of_a_name(tmp_path):
    one = in_hub(tmp_path, "u/one", "a", "Same.gguf", b"1")
    in_hub(tmp_path, "u/two", "a", "Same.gguf", b"2")
    assert names()[2:] == ["u/one/Same", "u/two/Same"] and named("-m", "u/one/same") == one
    with pytest.raises(RequestError, match="-m Same: is one of u/one/Same, u/two/Same"):
        named("-m", "Same")


def test_facts(own):
    big, other = examine(own / "Big-Q4_K_M.gguf"), examine(own / "Other.gguf")
    assert (big.architecture, big.problem, big.is_block) == ("qwen35", None, False)
    assert sum(big.types.values()) < big.size_bytes == TARGET.stat().st_size and "Q4_K" in big.types
    assert 0 < big.work < big.parameters
    assert other.architecture == "llama" and "architecture llama is not supported" in other.problem
    (own / "damaged.gguf").write_bytes(TARGET.read_bytes()[:5000])
    assert examine(own / "damaged.gguf").problem.startswith(f"{own}/damaged.gguf: tokenizer.ggml.tokens: ")
    assert "no such file" in examine(own / "none.gguf").problem


MODEL = Facts(1000, "qwen35", {}, None, parameters=1000, work=1000, vocabulary="v")


@pytest.mark.parametrize(
    ("draft", "model", "wanted"),
    [
        ({"work": 500}, {}, True),
        ({"work": 501}, {}, False),
        ({"work": 1, "vocabulary": "w"}, {}, False),
        ({"work": 1, "problem": "p"}, {}, False),
        ({"work": 1, "is_block": True}, {}, False),
        ({"work": 0, "vocabulary": "", "is_block": True}, {"vocabulary": "", "is_block": True}, False),
    ],
)
def test_who_can_draft(draft, model, wanted):
    assert can_draft(Facts(**{**vars(MODEL), **draft}), Facts(**{**vars(MODEL), **model})) is wanted


def test_the_best_draft():
    """Little work first; of the same, 4 bits before fewer, then the smaller file."""

    def draft(work: int, size_bytes: int) -> Facts:
        return Facts(size_bytes, "qwen35", {}, None, parameters=1000, work=work, vocabulary="v")

    best = [draft(100, 600), draft(100, 1000), draft(100, 300), draft(200, 500)]
    assert sorted(reversed(best), key=lambda facts: facts.as_draft) == best


def test_a_draft_is_found(own, tmp_path):
    assert best_draft(TARGET) == DRAFT
    lone = in_hub(tmp_path, "u/r", "a", "Lone.gguf", TARGET.read_bytes())
    assert best_draft(lone) == DRAFT, "wherever the model lies"
    with pytest.raises(RequestError, match="-md auto: no model at hand shares the vocabulary of draft.gguf"):
        best_draft(DRAFT)
    with pytest.raises(GGUFError, match="architecture llama is not supported"):
        best_draft(own / "Other.gguf")


def found(**given: object) -> argparse.Namespace:
    options = {"model": None, "hf_repo": None, "hf_repo_draft": None, "offline": False, "model_draft": None}
    args = argparse.Namespace(**{**options, **given})
    find_models(args)
    return args


def test_names_become_files(own, monkeypatch, capsys):
    monkeypatch.setenv("VKPREFILL_MODELS", str(own))
    args = found(model="Big-Q4_K_M", model_draft=["Small-Q8_0"])
    assert (args.model, args.model_draft) == (str(own / "Big-Q4_K_M.gguf"), [str(own / "Small-Q8_0.gguf")])
    args = found(model="built-in", model_draft=["auto"])
    assert args.model == str(TARGET) and args.model_draft[0] in (str(DRAFT), str(own / "Small-Q8_0.gguf"))
    assert found(model_draft=["auto"]).model is None
    assert "-md auto: " in capsys.readouterr().err
    for path in ("", "./none", "/none", "../none.gguf", str(own)):
        assert found(model=path, model_draft=[path]).model == path, "no name: told of where the file is opened"


def test_from_the_hub(tmp_path, monkeypatch, capsys):
    contents = {"T-Q4_K_M.gguf": TARGET.read_bytes(), "D-Q8_0.gguf": DRAFT.read_bytes()}
    with running(Hub(contents)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        args = found(hf_repo=REPO, hf_repo_draft=f"{REPO}:Q8_0", model_draft=["./b"])
        assert Path(args.model).read_bytes() == contents["T-Q4_K_M.gguf"]
        assert args.model_draft[0] == "./b" and Path(args.model_draft[1]).read_bytes() == contents["D-Q8_0.gguf"]
        assert f"-hf {REPO}: {args.model}" in capsys.readouterr().err
        with pytest.raises(RequestError, match="-hf user/Some-GGUF: found -m x too"):
            found(hf_repo=REPO, model="x")
    assert found(hf_repo=REPO, offline=True).model == args.model
    with pytest.raises(HubError, match="user/none: not fetched yet"):
        found(hf_repo="user/none", offline=True)
    assert main(["inspect", "--json", "--offline", "-hf", REPO]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == args.model
    assert main(["inspect", "-hf", "no name"]) == 1
    assert "Error: 'no name': wanted USER/REPO or USER/REPO:QUANT" in capsys.readouterr().err


def test_the_list(own, capsys):
    assert main(["models", "--json", str(own)]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    big, other = listed["Big-Q4_K_M"], listed["Other"]
    assert big["runs"] and big["drafts"] == ["built-in-draft", "Small-Q8_0"] and big["vocabulary"]
    assert big["vocabulary"] == listed["Small-Q8_0"]["vocabulary"] and listed["built-in"]["source"] == "built-in"
    assert not other["runs"] and other["drafts"] == [] and "llama" in other["problem"]
    assert main(["models", str(own)]) == 0
    out, err = capsys.readouterr()
    assert f"Big-Q4_K_M: qwen35, {big['parameters'] / 1e6:,.0f} M parameters, Q4_K " in out
    assert f"   runs; vocabulary {big['vocabulary'][:8]}; drafts for it: built-in-draft, Small-Q8_0\n" in out
    assert out.count(f"   runs; vocabulary {big['vocabulary'][:8]}\n") == 2, "the drafts themselves"
    assert "Other: llama, 0.0 MiB\n" in out and "   cannot be used: " in out and "mmproj" not in out
    assert f"{own}" in err
    assert main(["models", str(own / "none")]) == 1
    assert "none: no such folder" in capsys.readouterr().err


def test_a_block_alone(tmp_path, capsys):
    """Listed as what it is; nobody's draft."""
    companion_of(model_path("mtp-a-f32"), tmp_path / "block.gguf")
    assert main(["models", str(tmp_path)]) == 0
    assert "   a multi-token-prediction block alone, for -md beside its model\n" in capsys.readouterr().out
    with pytest.raises(GGUFError, match="holds a multi-token-prediction block alone"):
        best_draft(tmp_path / "block.gguf")
