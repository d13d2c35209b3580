"""The benchmarks that run whole prompts: each runs, and writes a record that can be read."""

import re

import pytest

from benchmarks import check_cost, first_token, self_scoring
from vkprefill.benchmark.record import Record

RUNS = {
    first_token: (["--turn", "40,8"], {"dense", "speculative", "as many, dense", "scoring", "sparse prefill"}),
    self_scoring: ([], {"dense", "self", "draft"}),
    check_cost: ([], {"dense", "sparse", "checked"}),
}


@pytest.mark.parametrize("benchmark", RUNS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_it_runs_and_writes_a_record(benchmark, tmp_path, capsys):
    more, ways = RUNS[benchmark]
    benchmark.main(["--lengths", "192", "-r", "1", "--json", str(tmp_path / "record.json"), *more])
    record = Record.read(tmp_path / "record.json")
    assert ways <= {figure.name.partition(", ")[2] for figure in record.figures}
    assert all(len(figure.values) == 1 and figure.median >= 0 for figure in record.figures)
    assert f"python -m {benchmark.__name__} --lengths 192" in record.about["command"]
    out = capsys.readouterr().out
    assert "| 192 " in out
    assert benchmark is not check_cost or re.search("1 (equal|revised) *[|]", out), "confirmed or revised at its end"
