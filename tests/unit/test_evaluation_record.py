"""The file that an evaluation goes on from: what it keeps, what it takes back, what it refuses."""

import json
from dataclasses import replace

import pytest

from tests.unit.test_evaluation_methods import outcome
from vkprefill.errors import RequestError
from vkprefill.evaluation.record import Record
from vkprefill.evaluation.task import Task

RUN = {"model": {"name": "m.gguf", "bytes": 3}, "methods": ["dense"], "seed": 0}
ONE, TWO = (Task(f"single-9-{i}", "single", 9, "p", (1, 2, i), 1, ("x",)) for i in range(2))


def test_goes_on(tmp_path):
    path = tmp_path / "run.jsonl"
    found = [outcome(method="dense", budget=""), outcome(kl=None, same_first=None, answer="é\n")]
    with Record(path, RUN) as record:
        assert record.outcomes_of(ONE) is None
        record.add(ONE, found)
    with Record(path, RUN) as record:
        assert record.outcomes_of(ONE) == found and record.outcomes_of(TWO) is None
        for other in (replace(ONE, token_ids=(1, 2, 9)), replace(ONE, answers=("y",)), replace(ONE, match="any")):
            assert record.outcomes_of(other) is None, "another task of the same name"
        record.add(TWO, found[:1])
    with Record(path, RUN) as record:
        assert record.outcomes_of(ONE) == found and record.outcomes_of(TWO) == found[:1]


def test_a_line_that_was_cut_off_is_run_again(tmp_path):
    path = tmp_path / "run.jsonl"
    with Record(path, RUN) as record:
        record.add(ONE, [outcome()])
        record.add(TWO, [outcome()])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with Record(path, RUN) as record:
        assert record.outcomes_of(ONE) and record.outcomes_of(TWO) is None
        record.add(TWO, [outcome()])
    assert path.read_bytes() == whole
    path.write_bytes(b'{"evalu')  # not even its first line
    with Record(path, RUN):
        pass
    assert json.loads(path.read_bytes()) == {"evaluation": RUN}


def test_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    with Record(path, RUN) as record:
        record.add(ONE, [outcome()])
    whole = path.read_bytes()
    with pytest.raises(RequestError, match="is of a run with seed 0, wanted 1, or another file"):
        Record(path, {**RUN, "seed": 1}).__enter__()
    assert path.read_bytes() == whole
    for content, line in (
        (b"text\n", 1),
        (b"[]\n", 1),
        (b"{}\n", 1),
        (whole + b"{}\n", 3),
        (whole + b'{"task": 1}\n', 3),
    ):
        path.write_bytes(content)
        with pytest.raises(RequestError, match=f"run.jsonl line {line}: is not what an evaluation wrote"):
            Record(path, RUN).__enter__()
        assert path.read_bytes() == content
    with pytest.raises(RequestError, match="cannot be gone on with"):
        Record(tmp_path, RUN).__enter__()
