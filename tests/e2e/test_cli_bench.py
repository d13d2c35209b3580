"""vkprefill bench as typed, on small models: what it measures, what it writes, exit codes."""

import re

import pytest

from tests.e2e.conftest import TINY
from tests.reference.fixtures import model_path
from vkprefill.benchmark.record import Record
from vkprefill.vulkan.probe import choose

ABOUT = {"command", "date", "device", "driver", "version", "commit", "models", "profile", "kv_type", "precision"}
ABOUT |= {"prefill_chunk"}


@pytest.fixture(scope="module", autouse=True)
def on_cpu(gpu) -> bool:
    return choose(None).type == "cpu"


def test_built_in_pair(cli, tmp_path, on_cpu):
    path = tmp_path / "record.json"
    done = cli("bench", "-p", "100", "-n", "2", "-d", "0,40", "-r", "2", "--json", str(path))
    assert done.code == 0, done.err
    record = Record.read(path)
    assert record.about.keys() >= ABOUT and len(record.about["models"]) == 2
    figures = {(f.name, f.unit): f.values for f in record.figures}
    names = {"prefill 100", "decode 2 at 0", "decode 2 at 40"}
    units = {"tokens/s", "tokens/CPU-s"} if on_cpu else {"tokens/s"}
    wanted = {(name, unit) for name in names for unit in units}
    wanted |= {
        (f"first token of 100, {kind}", unit)
        for kind in ("dense", "speculative")
        for unit in ("s", "CPU-s")[: 1 + on_cpu]
    }
    assert figures.keys() == wanted
    assert all(len(values) == 2 and min(values) > 0 for values in figures.values())
    (prompt,) = record.details["speculative_prefill"]["prompts"]
    assert prompt["status"] == "active" and all(0 < kept < 100 for kept in prompt["kept"])
    assert "| prefill 100 " in done.out and "100 tokens kept (active)" in done.out


def test_kernels_and_json_on_stdout(cli):
    model = model_path("tiny-c-q4km")
    done = cli("bench", "-m", model, "-p", "0", "-n", "0", "-d", "8", "-r", "1", "--kernels", "--json", "-")
    assert done.code == 0, done.err
    record = Record.from_json(done.out, "stdout")
    prefill, decode = record.details["kernels"].values()
    for kernels, wanted in (  # the middle of a name is the device's form of the kernel
        (prefill, ("matmul.*_q4_k", "delta_rule.*", "attention.*_f16", "rms_norm")),
        (decode, ("matvec.*_q4_k", "delta_rows.*", "top_k")),
    ):
        assert all(any(re.fullmatch(pattern, k["kernel"]) for k in kernels) for pattern in wanted)
    assert all(value >= 0 for k in prefill + decode for value in k["values"])
    assert {f.name for f in record.figures} >= {"ceiling: multiply-add loop", "ceiling: copy, read and written"}


def test_start(cli, on_cpu):
    done = cli("bench", "-m", TINY, "-p", "300", "-n", "0", "-r", "1", "--start", "--json", "-")
    assert done.code == 0, done.err
    record = Record.from_json(done.out, "stdout")
    figures = {f.name: f.median for f in record.figures}
    stages = ("reading the file", "loading weights", "recording")
    assert figures.keys() >= {f"load: {stage}" for stage in stages}
    assert figures.keys() >= {f"load and first token of 300, {cache} shader cache" for cache in ("empty", "filled")}
    assert figures["pipelines of prefill and decode"] > 10
    parts = [value for name, value in figures.items() if name.startswith("memory: accounted, ")]
    assert max(parts) == figures["memory: accounted, all"] == pytest.approx(sum(parts) / 2)
    assert ("memory: process, grown and not accounted" in figures) == on_cpu


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("-p", "x"), 2, "invalid lengths value: 'x'"),
        (("-p", "0", "-n", "0"), 1, "Error: -p 0 -n 0: nothing is measured; add --kernels or --start"),
        (("-r", "0"), 1, "Error: -r: found 0, wanted at least 1"),
        (("-d", "5,-1"), 1, "Error: -d: found -1, wanted at least 0"),
        (("-m", "none.gguf"), 1, "Error: none.gguf: "),
        (("-m", "none.gguf", "--start"), 1, "Error: the process that measures the start failed: none.gguf: "),
        (
            ("-m", TINY, "-p", "64", "-c", "32"),
            1,
            "-p 64: needs a context of 64 tokens, wanted at most 32, as -c has",
        ),
        (("-p", "16", "-n", "8", "-d", "3,1020", "-c", "1024"), 1, "-d 1020 -n 8: needs a context of 1028 tokens"),
        (
            ("-d", "1000", "-b", "64", "-n", "0", "--kernels", "-c", "1024"),
            1,
            "-d 1000 -b 64 --kernels: needs a context",
        ),
        (("-p", "9" * 20), 1, f"-p {'9' * 20}: needs a context of {'9' * 20} tokens, wanted at most 1073741824,"),
        (("-m", "", "--start"), 1, "Error: -m: it is empty, wanted a GGUF file"),
        (("--json", "/nowhere/record.json"), 1, "Error: /nowhere/record.json: cannot be written: "),
        (("--device", "no such device"), 1, "Error: "),
    ],
)
def test_mistakes(cli_here, args, code, message):
    done = cli_here("bench", *args)
    assert (done.code, done.out) == (code, "")
    assert message in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
