"""What tools/test_780m.py makes of its runs, and when the stored ones are out of date."""

import json
import sys
from pathlib import Path

import pytest

from tools import amd_compile, amd_execute
from tools import test_780m as runner
from tools.emulated import jobs, record

SOURCES = {
    "family/one.comp": '#include "shared.glsl"\nvoid main() {}',
    "family/two.comp": "void main() { barrier(); }",
    "include/shared.glsl": '#include "deeper.glsl"\n',
    "include/deeper.glsl": "float x;  // a comment\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in SOURCES.items():
        path = tmp_path / "shaders" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "shaders"


@pytest.fixture
def stored(tmp_path, folder):
    """A record of a run with these sources; returns its path and a function that changes the entry."""
    path = tmp_path / "record.json"
    entry = {
        "date": "2026-01-01",
        "files": {"tests/a.py": {"passed": 3, "failed": 0, "left_out": 0}},
        "shaders": record.shader_hashes(folder),
    }

    def change(**fields):
        record.store(record.CHIP, entry | fields, path)

    change()
    return path, change


def test_a_record_is_current_until_a_source_changes(stored, folder):
    path, _ = stored
    assert record.complaints(path, folder) == []
    (folder / "include" / "deeper.glsl").write_text("float x;  // another comment\n")
    assert record.complaints(path, folder) == []
    (folder / "include" / "deeper.glsl").write_text("float y;\n")
    (complaint,) = record.complaints(path, folder)
    assert complaint.endswith("not run there as they are now: one; run: make test-780m")
    (folder / "family" / "new.comp").write_text("void main() {}")
    (complaint,) = record.complaints(path, folder)
    assert "now: new, one;" in complaint


def test_a_record_of_failures_is_no_record(stored, folder):
    path, change = stored
    change(files={"tests/a.py": {"passed": 3, "failed": 2, "left_out": 0}})
    (complaint,) = record.complaints(path, folder)
    assert complaint.endswith("tests failed on 2026-01-01: tests/a.py (2)")


def test_without_a_record_the_command_is_named(tmp_path, folder):
    (complaint,) = record.complaints(tmp_path / "none.json", folder)
    assert complaint == "none.json: has no run on gfx1103; run: make test-780m"


def test_entries_of_other_chips_stay(stored, folder):
    path, change = stored
    record.store("gfx1100", {"date": "2026-01-02"}, path)
    change(date="2026-01-03")
    assert {chip: entry["date"] for chip, entry in record.read(path).items()} == {
        "gfx1100": "2026-01-02",
        "gfx1103": "2026-01-03",
    }


def test_every_file_of_kernels_and_models_is_run_or_left_out_by_name():
    files = {job.file for job in jobs.jobs()}
    for folder in ("shaders", "model"):
        for path in (record.ROOT / "tests" / folder).glob("test_*.py"):
            name = str(path.relative_to(record.ROOT))
            assert (name in files) != (name in jobs.LEFT_OUT)


def test_kernels_with_barriers_run_in_other_orders():
    seeds = {job.file: set() for job in jobs.jobs()}
    for job in jobs.jobs():
        seeds[job.file].add(job.seed)
    assert seeds["tests/shaders/test_top_k.py"] == {None, *jobs.SEEDS}
    assert seeds["tests/shaders/test_kv_store.py"] == {None}


# A program in place of Python on the emulated device: it writes the plugin's report and ends as told.
FAKE = """#!/usr/bin/env python3
import json, os, sys
done = json.loads(os.environ["TEST_780M_DONE"])
lines = []
for name, ends in (("a", 0), ("b", {status}), ("c", 0)):
    if name in done:
        continue
    lines.append({{"started": name}})
    if ends:
        print("emu780m: dispatch 7: not an instruction", flush=True)
        break
    lines.append({{"test": name, "outcome": "passed"}})
with open(os.environ["TEST_780M_REPORT"], "w") as file:
    file.write("".join(json.dumps(line) + "\\n" for line in lines))
sys.exit(ends)
"""


def run_with(status: int, tmp_path, monkeypatch) -> runner.Result:
    python = tmp_path / "python"
    python.write_text(FAKE.format(status=status))
    python.chmod(0o755)
    monkeypatch.setattr(runner, "PYTHON", python)
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    return runner.run(jobs.Job("tests/some.py"), "gfx1103")


def test_what_the_emulator_refuses_fails_one_test_and_the_rest_is_run(tmp_path, monkeypatch):
    result = run_with(70, tmp_path, monkeypatch)
    assert result.outcomes == {"a": "passed", "b": "failed", "c": "passed"}
    assert result.refused == ["dispatch 7: not an instruction"] and result.failed and not result.trouble
    (tmp_path / "packages.txt").write_text("mesa 26.2.6-1, as pinned\n")
    entry = json.loads(json.dumps(runner.entry_of([result], seconds=1.4)))
    assert (entry["passed"], entry["failed"], entry["mesa"]) == (2, 1, "26.2.6-1")
    assert entry["refused"] == entry["files"]["tests/some.py"]["refused"] == result.refused


def test_another_end_of_the_process_is_told(tmp_path, monkeypatch):
    """A crash, for one: the test that ran has failed, and the status is named."""
    result = run_with(139, tmp_path, monkeypatch)
    assert result.outcomes["b"] == "failed" and result.failed


def test_entries_of_tests_left_out_must_match(tmp_path, monkeypatch):
    result = runner.Result(jobs.Job("tests/some.py"), tmp_path / "log", left_out={"tests/some.py::test_1"})
    assert runner.stale_reasons([result]) == []
    reasons = {"tests/some.py::test_1": "why", "tests/some.py::test_2": "why", "tests/unit/gone.py": "why"}
    monkeypatch.setattr(runner, "LEFT_OUT", reasons)
    assert runner.stale_reasons([result]) == ["tests/some.py::test_2", "tests/unit/gone.py"]


def test_a_run_of_some_files_leaves_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    (tmp_path / "packages.txt").write_text("mesa 26.2.6-1, as pinned\n")
    first = [runner.Result(jobs.Job(file), tmp_path, {"t": "failed"}, refused=["some"]) for file in ("a.py", "b.py")]
    second = [runner.Result(jobs.Job("b.py", waves=waves), tmp_path, {"t": "passed"}) for waves in (32, 64)]
    entry = runner.entry_of(second, 5, runner.entry_of(first, 100))
    assert {file: counts["passed"] for file, counts in entry["files"].items()} == {"a.py": 0, "b.py": 2}
    assert (entry["passed"], entry["failed"], entry["seconds"], entry["refused"]) == (2, 1, 100, ["some"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--chip", "gfx9"], "argument --chip: invalid choice: 'gfx9' (choose from"),
        (["tests/shaders/test_rms_norm.py", "tests/unit/gone.py"], "no files of tests for it: tests/unit/gone.py"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_runs(options, message, monkeypatch, capsys):
    monkeypatch.setattr(runner, "run_all", None)
    monkeypatch.setattr(runner, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(sys, "argv", ["test_780m", *options])
    try:
        assert runner.main() == 1
    except SystemExit as end:
        assert end.code == 2
    assert message in capsys.readouterr().err


def test_chips_are_the_emulator_s():
    assert record.CHIP in record.chips() and "gfx1150" in record.chips()


@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        (amd_compile, ["--newest", "--only", "gone"], "--only: no shader's name starts with 'gone'"),
        (amd_execute, ["--stored", "--update"], "argument --update"),
    ],
)
def test_wishes_of_the_compiler_s_tools_are_not_passed_over(tool, options, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tool", *options])
    with pytest.raises(SystemExit) as end:
        tool.main()
    assert message in f"{end.value.code} {capsys.readouterr().err}"
