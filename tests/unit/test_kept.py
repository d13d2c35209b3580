"""Files of kept measurements: what is damaged, what is no file, who says so and how often."""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from vkprefill import kept
from vkprefill.kept import Kept


@dataclass(frozen=True)
class Weight:
    kg: float


KEPT = Kept("weights.json", Weight)


@pytest.fixture
def path(tmp_path, monkeypatch, caplog) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    caplog.set_level(logging.WARNING, "vkprefill")
    (tmp_path / "vkprefill").mkdir()
    kept._warn_once.cache_clear()
    return tmp_path / "vkprefill" / "weights.json"


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"3", b"\xff", b'{"a": 3}', b'{"a": {"kg": "x"}}', b'{"a": {"kg": 0}}']
)
def test_a_damaged_file_is_set_aside_and_told_of_once(path, caplog, content):
    path.write_bytes(content)
    assert KEPT.load() == {} == KEPT.load()
    (told,) = caplog.messages
    assert told == f"weights: {path} is not usable: it is damaged; moved to weights.json.damaged"
    assert not path.exists() and path.with_name("weights.json.damaged").read_bytes() == content
    KEPT.store("a", Weight(2.0))
    assert KEPT.load() == {"a": Weight(2.0)} and len(caplog.messages) == 1


def test_a_pipe_is_not_read(path, caplog):
    """It would block; the next file that is written takes its place."""
    os.mkfifo(path)
    assert KEPT.load() == {}
    assert caplog.messages == [f"weights: {path} is not usable: it is not a regular file"]
    KEPT.store("a", Weight(2.0))
    assert json.loads(path.read_text()) == {"a": {"kg": 2.0}} and len(caplog.messages) == 1


def test_what_cannot_be_written_is_told_in_words(path, caplog):
    path.parent.rmdir()
    path.parent.write_text("")
    assert KEPT.load() == {}
    for _ in range(2):
        KEPT.store("a", Weight(2.0))
    assert caplog.messages == [f"weights: {path} cannot be written: file exists"]
