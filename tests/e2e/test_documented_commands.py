"""Commands and Python of README.md and docs/ as their readers type them, in a folder where the models that they name
are the built-in pair, and the hub is a small one on this machine.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.documents import ASSIGNED, USED, arguments, commands, lines, named, parts, snippets
from tests.e2e.conftest import COMMAND, DEMO, PATIENCE_S, ROOT
from tests.e2e.server_process import ServerProcess
from tests.unit.hub_server import REPO, Hub, running
from vkprefill.cli.main import main

DATA = ROOT / "vkprefill" / "data"
TARGETS = ("4B.gguf", "model.gguf", "Qwen3.5-4B-Q4_K_M.gguf")
DRAFTS = ("0.8B.gguf", "small.gguf", "Qwen3.5-0.8B-Q4_K_M.gguf")
TEXTS = ("long.txt", "notes.txt", "report.txt", "examples/long-prompt.txt")

# What is run with less to do: these stand last, so that they count.
LESS = {
    "generate": "-n 4",
    "chat": "-n 4",
    "bench": "-p 16 -n 2 -r 1",
    "eval": "--keep 0.5",
}
# What is not run, by its beginning or by an option, with the reason; that it can be read is tested in
# tests/unit/test_documents.py.
NOT_RUN = {
    "doctor": "every kernel is tested in tests/e2e/test_cli_doctor.py, a minute or two",
    "serve": "what runs until it is stopped: below, once; each option in tests of its own",
    "generate -m 4B.gguf --steer": "a control vector is of one model: tests/model/test_steering.py",
    "--ray": "Ray is fetched by make test-research, which runs these",
    "--ray-address": "the same",
    "eval -m model.gguf -md small.gguf": "has every kind of task: tests/e2e/test_cli_eval.py has one of each",
}


def reason_not_to_run(words: list[str]) -> str | None:
    return next((why for rule, why in NOT_RUN.items() if speaks_of(rule, words)), None)


def speaks_of(rule: str, words: list[str]) -> bool:
    return rule in words if rule.startswith("--") else words[: len(rule.split())] == rule.split()


def typed() -> list[list[str]]:
    """Each once."""
    found = (arguments(words) for document in USED for words in commands(document.read_text()))
    return [shlex.split(line) for line in dict.fromkeys(map(shlex.join, found))]


RUN = [words for words in typed() if not reason_not_to_run(words)]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, gpu) -> Path:
    folder = tmp_path_factory.mktemp("workshop")
    for name in TARGETS:
        shutil.copyfile(DATA / "target.gguf", folder / name)
    for name in DRAFTS:
        shutil.copyfile(DATA / "draft.gguf", folder / name)
    (folder / "examples").mkdir()
    for name in TEXTS:
        (folder / name).write_text(DEMO[0]["user"])
    (folder / "mine.jsonl").write_text(json.dumps({"prompt": DEMO[0]["user"], "answer": DEMO[0]["answer"]}))
    (folder / "prompts.jsonl").write_text('{"prompt": "The pet of Harold is a ferret."}\n')
    (folder / "docs" / "pictures").mkdir(parents=True)
    (folder / "FOLDER").mkdir()
    shutil.copyfile(DATA / "draft.gguf", folder / "FOLDER" / "some.gguf")
    script = folder / "vkprefill"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.fixture
def at_work(workshop, monkeypatch) -> Path:
    monkeypatch.chdir(workshop)
    monkeypatch.setenv("VKPREFILL_MODELS", str(workshop))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{workshop}:{os.environ['PATH']}")
    return workshop


@pytest.fixture
def hub(workshop, monkeypatch):
    """Where USER/REPO and the smaller one are."""
    pair = {"Some-Q4_K_M.gguf": DATA / "target.gguf", "Some-Q8_0.gguf": DATA / "draft.gguf"}
    with running(Hub({name: file.read_bytes() for name, file in pair.items()})) as found:
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        monkeypatch.setenv("HF_HOME", str(workshop / "hub"))
        yield found


def at_the_hub(word: str) -> str:
    return word.replace("USER/SMALLER-REPO", REPO).replace("USER/REPO", REPO)


@pytest.mark.parametrize("words", RUN, ids=shlex.join)
def test_commands(words, at_work, hub, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello\n")))
    shutil.rmtree(at_work / "DIR", ignore_errors=True)
    if "--offline" in words:
        assert main(["generate", "-hf", REPO, "-p", "Hello", "-n", "1"]) == 0
    argv = [*map(at_the_hub, words), *LESS.get(words[0], "").split()]
    try:
        code = main(argv)
    except SystemExit as ended:
        code = ended.code
    assert code == 0, capsys.readouterr().err


def test_reasons_are_of_commands():
    for rule in NOT_RUN:
        assert any(speaks_of(rule, words) for words in typed()), f"{rule}: in no document"


def piped() -> list[str]:
    """Lines with pipes and redirections, which a shell has to run."""
    found = [line for document in USED for line in lines(document.read_text()) if "vkprefill " in line]
    return [line for line in dict.fromkeys(found) if len(parts(line)) > 1 or " > " in line.partition(" # ")[0]]


@pytest.mark.parametrize("line", piped())
def test_lines_of_a_shell(line, at_work, monkeypatch):
    monkeypatch.setenv("HOME", str(at_work))
    done = subprocess.run(
        ["bash", "-c", f"set -eo pipefail; {line}"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr


def requests() -> list[list[str]]:
    found = (
        part for document in USED for line in lines(document.read_text()) if "curl " in line for part in parts(line)
    )
    return [list(words) for words in dict.fromkeys(map(tuple, found)) if words[0] == "curl"]


def test_requests(at_work):
    """Each curl line, to a server as it is started in docs/start.md."""
    served = next(words for words in typed() if words[0] == "serve")
    assert not any(map(ASSIGNED.match, served)) and requests()
    files = ("-m", at_work / served[2], "-md", at_work / served[4])
    with ServerProcess(*files, "-n", "4") as server:
        for words in requests():
            argv = [word.replace("http://127.0.0.1:8080", server.url) for word in words]
            done = subprocess.run([*argv, "-sSf"], capture_output=True, text=True, timeout=PATIENCE_S)
            assert done.returncode == 0 and '"choices"' in done.stdout, (words, done)


# Names that the stand-in has not, and others.
ONLY_IN_LARGER = {"blocks.12.": "blocks.4.", "heads=[0, 5]": "heads=[0, 3]"}
# Names that snippets take as given.
GIVEN = {
    "docs/research.md": (
        "prompt = 'The pet of Harold is a ferret.'; token = 5; "
        "ids = [n % 300 for n in range(1100)]; vector = numpy.zeros(D, 'float32'); "
        "other = model.record(prompt, ['mlp_out'], tokens='all')"
    )
}


@pytest.mark.parametrize("document", [path for path in USED if snippets(path.read_text())], ids=named)
def test_python(document, at_work):
    """The snippets of a document, one after another."""
    names: dict[str, object] = {"numpy": np, "long_text": DEMO[0]["user"], "text": "Is a ferret a pet? yes or no"}
    for number, snippet in enumerate(snippets(document.read_text())):
        for name, other in ONLY_IN_LARGER.items():
            snippet = snippet.replace(name, other)
        exec(compile(snippet, f"{named(document)}, snippet {number}", "exec"), names)
        if number == 0 and named(document) in GIVEN:
            names["D"] = names["model"].config.hidden_size
            exec(GIVEN[named(document)], names)
    for name in ("draft", "model"):
        if name in names:
            names[name].close()
