"""Figures, records, tables and comparison of benchmarks; no device."""

import importlib.util
import io
import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from vkprefill.benchmark import record as benchmark_record
from vkprefill.benchmark import speed as benchmark
from vkprefill.benchmark import timeline
from vkprefill.benchmark.kernels import (
    Amount,
    Ceilings,
    Phase,
    ceilings_text,
    group,
    kernel_figures,
    phase_table,
    with_device_times,
)
from vkprefill.benchmark.record import ADDED, FASTER, REMOVED, SAME, SLOWER, Change, Figure, Record, compare
from vkprefill.benchmark.speed import Times, rates, seconds
from vkprefill.errors import RequestError
from vkprefill.vulkan.timing import Dispatch, Run

ROOT = Path(__file__).resolve().parents[2]


def figure(*values: float, name: str = "prefill 64", unit: str = "tokens/s") -> Figure:
    return Figure(name, unit, values)


def test_statistics_of_a_figure():
    many = figure(3.0, 1.0, 2.0)
    assert (many.median, many.lowest, many.highest, many.bounds()) == (2.0, 1.0, 3.0, (1.0, 3.0))
    assert figure(3.0, 1.0).median == 2.0
    assert figure(100.0).bounds() == (95.0, 105.0)
    assert many.more_is_better and not figure(1.0, unit="CPU-s").more_is_better


def test_rates_and_seconds():
    times = [Times(2.0, 4.0), Times(1.0, 5.0)]
    assert rates("p", 8, times, cpu=True) == [
        Figure("p", "tokens/s", (4.0, 8.0)),
        Figure("p", "tokens/CPU-s", (2.0, 1.6)),
    ]
    assert rates("p", 8, times, cpu=False) == [Figure("p", "tokens/s", (4.0, 8.0))]
    assert seconds("p", times, cpu=True) == [Figure("p", "s", (2.0, 1.0)), Figure("p", "CPU-s", (4.0, 5.0))]


def test_timed_takes_the_time_of_the_work():
    times = benchmark.timed(lambda: sum(range(200_000)))
    assert 0 < times.wall_s < 10 and 0 < times.cpu_s < 10


def test_random_tokens_are_the_same_for_a_seed():
    tokens = benchmark.random_tokens(50, 7)
    assert tokens == benchmark.random_tokens(50, 7) != benchmark.random_tokens(50, 7, seed=2)
    assert set(tokens) <= set(range(7))


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (figure(10, 11, 12), figure(12.5, 13, 14), FASTER),
        (figure(10, 11, 12), figure(8, 9, 9.9), SLOWER),
        (figure(10, 11, 12), figure(12, 13, 14), SAME),  # the ranges meet
        (figure(10), figure(10.9), SAME),  # measured once: within 5 % of each
        (figure(10), figure(11.1), FASTER),
        (figure(10), figure(9.0), SLOWER),
        (figure(10, unit="s"), figure(11.1, unit="s"), SLOWER),
        (figure(10, unit="MiB"), figure(8, unit="MiB"), FASTER),
    ],
)
def test_compare(old, new, verdict):
    (change,) = compare([old], [new])
    assert change.verdict == verdict
    assert change.ratio == pytest.approx(new.median / old.median)


def test_compare_with_figures_of_one_record_only():
    both, old, new = figure(1.0), figure(2.0, name="old"), figure(3.0, name="new")
    assert compare([both, old], [new, both]) == [
        Change("prefill 64", "tokens/s", 1.0, 1.0, 1.0, SAME),
        Change("old", "tokens/s", 2.0, None, None, REMOVED),
        Change("new", "tokens/s", None, 3.0, None, ADDED),
    ]


def test_compare_figures_of_zero():
    (change,) = compare([figure(0.0, unit="s")], [figure(0.0, unit="s")])
    assert (change.ratio, change.verdict) == (None, SAME)


def test_the_same_name_in_two_units_is_two_figures():
    old, new = [figure(1.0), figure(2.0, unit="tokens/CPU-s")], [figure(2.0, unit="tokens/CPU-s"), figure(1.0)]
    assert [change.verdict for change in compare(old, new)] == [SAME, SAME]


def test_a_record_survives_json(tmp_path):
    record = Record({"command": "vkprefill bench", "device": "d"}, [figure(1.5, 2.0)], {"kernels": {"prefill": []}})
    path = tmp_path / "record.json"
    path.write_text(record.to_json())
    assert Record.read(path) == record
    assert json.loads(path.read_text())["figures"][0]["median"] == 1.75


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"about": {}, "figures": [{"name": "a", "unit": "s", "values": []}]}',
        '{"about": 1, "figures": []}',
    ],
)
def test_what_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RequestError, match="bad.json: not a record of a benchmark"):
        Record.read(path)


def test_a_record_that_is_not_there(tmp_path):
    with pytest.raises(RequestError, match="none.json: cannot be read: No such file"):
        Record.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234567.0, "1,234,567"),
        (100.4, "100"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.1234, "0.123"),
        (0.00012, "0.00012"),
    ],
)
def test_number(value, text):
    assert benchmark_record.number(value) == text


def test_tables_are_markdown():
    assert benchmark_record.figures_table([figure(1.0, 2.0), figure(3.0, name="x", unit="s")]).splitlines() == [
        "| figure     |     unit | median |        range |",
        "| ---------- | -------: | -----: | -----------: |",
        "| prefill 64 | tokens/s |   1.50 | 1.00 .. 2.00 |",
        "| x          |        s |   3.00 |         once |",
    ]


def test_kernels_are_grouped_and_measured_against_the_nearer_ceiling():
    ceilings = Ceilings(gflop=10.0, gbytes=4.0)
    shaders = ["matmul", "norm", "matmul", "tiny"]
    samples = [[2.0, 0.5, 1.0, 0.01], [2.0, 0.7, 3.0, 0.01]]
    amounts = [Amount(12e9, 1e9), Amount(), Amount(8e9, 1e9), Amount(1e9, 0)]
    matmul, norm, tiny = group(shaders, samples, amounts, ceilings, empty_s=0.1)
    assert (matmul.kernel, matmul.dispatches, matmul.values, matmul.seconds) == ("matmul", 2, (3.0, 5.0), 4.0)
    assert (matmul.gflop, matmul.gbytes, matmul.of_ceiling, matmul.bound) == (5.0, 0.5, 0.5, "multiply-add")
    assert (norm.gflop, norm.of_ceiling, norm.bound) == (None, None, "")
    assert tiny.gflop is None  # lost in what an empty dispatch takes
    phase = Phase("prefill", [matmul, norm, tiny], (4.5, 5.5), (0.1, 0.1))
    table = phase_table(phase, "CPU-s")
    assert table.startswith("prefill: 5,000 CPU-ms as the product runs it; an empty dispatch takes 100,000 CPU-us.")
    assert "50% multiply-add" in table
    (none,) = group(["fast"], [[0.0], [0.0]], [Amount(1e9, 0)], ceilings, empty_s=0.1)
    row = phase_table(replace(phase, kernels=[matmul, none]), "CPU-s").splitlines()[-2]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["fast", "1", "not measurable", *"-----"]
    figures = kernel_figures([phase], ceilings, "CPU-s")
    assert figures[-3] == Figure("prefill: matmul", "CPU-s", (3.0, 5.0))


def timed_run(program: str, *kernels: tuple[str, float], start_ns: float = 0.0) -> Run:
    """Of kernels that took so many ms, one after the other, in one submission."""
    ends = list(itertools.accumulate((ms * 1e6 for _, ms in kernels), initial=start_ns))
    dispatches = tuple(
        Dispatch(f"{program}.{shader} {i}", shader, (i + 1, 1, 1), 0, i + 1) for i, (shader, _) in enumerate(kernels)
    )
    return Run(program, 1.0, dispatches, tuple(ends))


def test_times_on_the_device_stand_beside_the_others():
    ceilings = Ceilings(gflop=10.0, gbytes=4.0)
    kernels = group(["a", "b", "a"], [[1.0, 2.0, 3.0]], [Amount()] * 3, ceilings, empty_s=0.1)
    phase = Phase("prefill", kernels, (4.0,), (0.1,))
    runs = [timed_run("prefill", ("a", 1), ("b", 2), ("a", 4)), timed_run("prefill", ("a", 2), ("b", 4), ("a", 5))]
    timed = with_device_times(phase, runs)
    assert {k.kernel: k.on_device for k in timed.kernels} == {
        "a": pytest.approx((0.005, 0.007)),
        "b": pytest.approx((0.002, 0.004)),
    }
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in phase_table(timed, "s").splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("kernel", "ms on device"),
        (rows[1][0], rows[1][-1]),
        ("a", "6.00"),
        ("b", "3.00"),
        ("all", "9.00"),
    ]
    figures = kernel_figures([timed], ceilings, "s")
    assert figures[-1] == Figure("prefill: b, on the device", "s", timed.kernels[1].on_device)
    assert [line.split("|")[-2].strip() for line in phase_table(phase, "s").splitlines()[4:]] == ["-"] * 3
    assert not [f for f in kernel_figures([phase], ceilings, "s") if "on the device" in f.name]


def test_the_text_says_why_there_are_no_times_on_the_device():
    ceilings = Ceilings(gflop=10.0, gbytes=4.0)
    assert "device's own clock" in ceilings_text(ceilings, "s", "")
    assert "cannot be timed on the device, for a reason" in ceilings_text(ceilings, "s", "for a reason")


def test_profile_adds_up_runs_of_a_program():
    runs = [timed_run("prefill", ("a", 1), ("b", 6)), timed_run("head", ("c", 1)), timed_run("prefill", ("a", 3))]
    text = timeline.profile_text(runs)
    assert text.splitlines()[0] == "prefill: 2 runs in 2,000 ms; on the device:"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[2:5] == [
        ["b", "1", "6.00", "60.0%"],
        ["a", "2", "4.00", "40.0%"],
        ["all", "3", "10.0", "100.0%"],
    ]
    assert "\n\nhead: 1 run in 1,000 ms; on the device:\n" in text
    assert timeline.profile_text([]) == ""


def test_trace_is_a_list_of_complete_events():
    runs = [timed_run("prefill", ("a", 1), ("b", 2)), timed_run("head", ("c", 0.5), start_ns=5e6)]
    file = io.BytesIO()
    timeline.write_trace(file, runs, SimpleNamespace(name='a "GPU"', driver="its driver"))
    trace = json.loads(file.getvalue())
    names = {(e["name"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert names == {
        ("process_name", 0): 'a "GPU", its driver',
        ("thread_name", 1): "programs",
        ("thread_name", 2): "kernels",
    }
    events = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    assert events == [
        ("prefill", 1, 0.0, 3000.0),
        ("a", 2, 0.0, 1000.0),
        ("b", 2, 1000.0, 2000.0),
        ("head", 1, 5000.0, 500.0),
        ("c", 2, 5000.0, 500.0),
    ]
    assert trace["traceEvents"][-1]["args"] == {"label": "head.c 0", "grid": [1, 1, 1], "submission": 0}


def script(name: str):
    """A script of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_compare_on_the_command_line(tmp_path, capsys):
    compare_main = script("compare").main
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(Record({"device": "a"}, [figure(10, 11), figure(5, name="load", unit="s")]).to_json())
    new.write_text(Record({"device": "b"}, [figure(20, 21), figure(7, name="load", unit="s")]).to_json())
    assert compare_main([str(old), str(new)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[2].split("|")[-2].strip() == "faster"
    assert out.splitlines()[-1] == "1 better, 1 worse, 0 within the spread, 0 in one of the two only"
    assert "device differs" in err
    assert compare_main([str(old), str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err.startswith("Error: ")


def test_peers_ratios_and_correlations():
    peers = script("peers")
    figures = [
        figure(10.0, name="vkprefill: prefill 8"),
        figure(4.0, 5.0, 6.0, name="llama.cpp Vulkan: prefill 8"),
        figure(1.0, name="llama.cpp CPU: decode at 8"),  # without vkprefill's: no ratio
    ]
    assert peers.ratios(figures) == "- prefill 8, tokens/s: vkprefill is 2 times llama.cpp Vulkan"
    logits = {"vkprefill": [0.0, 1.0, 2.0], "llama.cpp CPU": [1.0, 2.0, 3.0], "llama.cpp Vulkan": [2.0, 1.0, 0.0]}
    assert peers.correlations(logits) == pytest.approx({"llama.cpp CPU": 1.0, "llama.cpp Vulkan": -1.0})
    assert peers.correlations({"llama.cpp CPU": [1.0]}) == {}
