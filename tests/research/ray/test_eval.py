"""vkprefill eval --ray: the outcomes of a run here, but for their times; what is done is gone on with."""

import json

from vkprefill.cli.main import main

ARGUMENTS = ["eval", "--lengths", "96", "--tasks", "3", "--methods", "dense,draft", "-n", "4"]


def outcomes(path) -> list[dict[str, object]]:
    found = json.loads(path.read_text())
    return [{name: value for name, value in one.items() if not name.endswith("_ms")} for one in found["outcomes"]]


def test_outcomes_are_those_of_a_run_here(tmp_path, capfd):
    here, there, record = tmp_path / "here.json", tmp_path / "there.json", tmp_path / "record.jsonl"
    assert main([*ARGUMENTS, "--json", str(here)]) == 0
    by_ray = [*ARGUMENTS, "--json", str(there), "--resume", str(record), "--ray"]
    assert main([*by_ray, "--actors", "2"]) == 0
    assert outcomes(there) == outcomes(here) and len(outcomes(here)) == 6
    about, wanted = (json.loads(path.read_text()) for path in (there, here))
    assert all(about[name] == wanted[name] for name in ("device", "driver", "precision"))
    known = record.read_bytes()
    assert main(by_ray) == 0 and record.read_bytes() == known
    assert outcomes(there) == outcomes(here), "all from the record, without Ray"
