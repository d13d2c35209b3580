"""--profile and --trace as typed: the table, the file, what is refused, and an answer that stays the same."""

import json
import re

import pytest

import vkprefill
from tests.e2e.command import GREEDY, assert_error, tiny
from tests.e2e.conftest import DEMO, Outcome
from tests.reference.fixtures import model_path
from vkprefill.benchmark.record import Record
from vkprefill.benchmark.timeline import recorded
from vkprefill.vulkan.companion import abilities
from vkprefill.vulkan.probe import choose

PROMPT = ("-p", "a b c d e f g", "-n", "3", "-c", "256", *GREEDY)
KERNELS = ("bench", "-m", model_path("tiny-c-q4km"), "-p", "0", "-n", "0", "-d", "8", "-r", "2", "--kernels")
PROFILE = ("bench", "-m", model_path("tiny-c-q4km"), "-p", "20", "-n", "2", "-r", "1", "--profile")


@pytest.fixture(scope="module", autouse=True)
def timestamps(gpu) -> None:
    if why := abilities(choose(None).index).untimed:
        pytest.skip(f"kernels cannot be timed on the device: {why}")


def events_of(path) -> list[dict]:
    """The complete events of a trace, checked for what both viewers want."""
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M") and {"name", "pid", "tid", "args"} <= event.keys()
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in events)
    return events


def kernels_in(events: list[dict]) -> list[dict]:
    return [event for event in events if "grid" in event["args"]]


def test_generate(cli, tmp_path):
    path = tmp_path / "trace.json"
    plain, timed = cli(*tiny(*PROMPT)), cli(*tiny(*PROMPT, "--profile", "--trace", str(path)))
    assert (timed.code, timed.out) == (0, plain.out), timed.err
    for program in ("(short )?prefill", "head", "decode"):
        assert re.search(f"^{program}: 1 run in |^{program}: [0-9]+ runs in ", timed.err, re.MULTILINE)
    assert "on the device:" in timed.err and "| rms_norm " in timed.err and "| all " in timed.err
    events = events_of(path)
    kernels = kernels_in(events)
    assert {event["name"].removeprefix("short ") for event in events} > {"prefill", "head", "decode", "rms_norm"}
    assert all(len(event["args"]["grid"]) == 3 for event in kernels)
    assert any(event["args"]["label"].startswith("decode.L") for event in kernels)
    for one, later in zip(kernels, kernels[1:], strict=False):
        assert one["ts"] + one["dur"] <= later["ts"] + 1e-3  # us; sums of floats


def test_the_models_of_a_pair_are_told_apart(cli, tmp_path):
    done = cli(
        "generate", "-p", DEMO[0]["user"], "--profile", "--no-specprefill-break-even", "--spec-type", "none", *GREEDY
    )
    assert (done.code, done.out) == (0, DEMO[0]["answer"] + "\n"), done.err
    named = {line.split(":")[0] for line in done.err.splitlines() if line.endswith("on the device:")}
    assert named >= {"prefill", "decode", "draft prefill", "draft score", "draft lookahead"}


def test_the_trace_alone_prints_no_table(cli, tmp_path):
    done = cli(*tiny(*PROMPT, "--trace", str(tmp_path / "trace.json")))
    assert done.code == 0 and "on the device" not in done.err
    assert events_of(tmp_path / "trace.json")


def test_bench_kernels(cli, tmp_path):
    path = tmp_path / "trace.json"
    done = cli(*KERNELS, "--trace", str(path), "--json", "-")
    assert done.code == 0, done.err
    record = Record.from_json(done.out, "stdout")
    figures = {figure.name: figure for figure in record.figures}
    for phase, kernels in record.details["kernels"].items():
        for kernel in kernels:
            assert len(kernel["on_device"]) == 2 and min(kernel["on_device"]) > 0
            assert figures[f"{phase}: {kernel['kernel']}, on the device"].values == tuple(kernel["on_device"])
    events = events_of(path)
    programs = [event["name"].removeprefix("short ") for event in events if event not in kernels_in(events)]
    assert programs == ["prefill"] * 2 + ["decode"] * 2
    dispatches = sum(kernel["dispatches"] for kernels in record.details["kernels"].values() for kernel in kernels)
    assert len(kernels_in(events)) == 2 * dispatches


def test_bench_profile(cli, tmp_path):
    path = tmp_path / "trace.json"
    command = (*PROFILE, "--trace", str(path))
    shown, done = cli(*command), cli(*command, "--json", "-")
    assert (shown.code, done.code) == (0, 0), shown.err + done.err
    assert re.search(r"^(short )?prefill: \d+ runs in ", shown.out, re.MULTILINE)
    assert "\ndecode: 3 runs in " in shown.out
    programs = {program["program"].removeprefix("short "): program for program in json.loads(done.out)["profile"]}
    assert programs["prefill"]["runs"] >= 2  # a slow device takes 20 tokens in several
    assert programs["decode"]["runs"] == 3
    for program in programs.values():
        assert 0 < sum(kernel["seconds"] for kernel in program["kernels"]) <= program["seconds"]
    events = [event for event in events_of(path) if event["name"] == "decode"]
    assert len(events) == 3


def test_bench_kernels_without_timestamps(cli):
    done = cli(*KERNELS, env={"VKPREFILL_COMPANION": "0"})
    assert done.code == 0, done.err
    assert "kernels cannot be timed on the device, native companion switched off by VKPREFILL_COMPANION=0" in done.out
    assert "on the device |" not in done.out


def refused(outcome: Outcome, message: str) -> None:
    assert outcome.out == ""
    assert_error(outcome, message)


@pytest.mark.parametrize(
    ("args", "option"),
    [
        (tiny(*PROMPT, "--profile"), "--profile"),
        (tiny(*PROMPT, "--trace", "/nowhere/trace.json"), "--trace"),
        ((*KERNELS, "--trace", "/nowhere/trace.json"), "--trace"),
        (PROFILE, "--profile"),
    ],
)
def test_refused_without_the_companion(cli_here, monkeypatch, args, option):
    monkeypatch.setenv("VKPREFILL_COMPANION", "0")
    why = "native companion switched off by VKPREFILL_COMPANION=0"
    refused(cli_here(*map(str, args)), f"^Error: {option}: kernels cannot be timed on .*: {why}$")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("bench", "--trace", "/nowhere/trace.json"), "^Error: --trace: needs --kernels or --profile"),
        (("bench", "--profile", "-p", "0", "-n", "0", "--kernels"), "^Error: --profile: -p 0 -n 0 leaves nothing"),
        ((*KERNELS, "--trace", "/nowhere/trace.json"), "^Error: /nowhere/trace.json: cannot be written: "),
        (tiny(*PROMPT, "--trace", "/nowhere/trace.json"), "^Error: /nowhere/trace.json: cannot be written: "),
    ],
)
def test_mistakes(cli_here, args, message):
    refused(cli_here(*map(str, args)), message)


def test_an_error_leaves_no_program_that_is_timed():
    with vkprefill.load(model_path("tiny-c-q4km"), max_context=256) as model:
        with pytest.raises(KeyboardInterrupt), recorded(model) as recording:
            model.prefill([1, 2, 3])
            raise KeyboardInterrupt
        assert (count := len(recording.runs))
        model.prefill([1, 2, 3])
        assert len(recording.runs) == count
