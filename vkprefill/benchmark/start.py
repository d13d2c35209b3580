"""Time to load a model and to its first token, in a process of its own, with an empty and with a filled shader cache.

`measure_start` starts the child twice with the same, at first empty, folder for the driver's shader cache. The child,
`python -m vkprefill.benchmark.start`, reads what to load from its argument as JSON and prints what it measured as JSON.
Being alone, it can also tell what the process's memory grows by.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

from vkprefill.benchmark.record import Figure
from vkprefill.benchmark.speed import Report, Times, has_cpu_time, random_tokens, seconds, timed
from vkprefill.engine.model import load
from vkprefill.engine.step_input import Best
from vkprefill.errors import VkPrefillError
from vkprefill.vulkan.device import Device

CACHES = ("empty", "filled")  # the shader cache of the first and of the second child
CACHE_VARIABLES = ("MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")  # of Mesa, of NVIDIA
START_DECODES = 2  # that follow the prompt
MIB = 2**20


def measure_start(
    path: str,
    device: str | int,
    options: dict[str, object],
    num_tokens: int,
    report: Report,
) -> list[Figure]:
    """Load the model twice, each time in a new process, and run a prompt of num_tokens. Raises VkPrefillError.

    options: of load, by name. The stages of loading are those of the second process.
    """
    job = {
        "path": path,
        "device": device,
        "options": options,
        "num_tokens": num_tokens,
    }
    figures: list[Figure] = []
    result: dict = {}
    with tempfile.TemporaryDirectory(prefix="vkprefill-shaders-") as folder:
        for cache in CACHES:
            report(f"start with {'an empty' if cache == 'empty' else 'a filled'} shader cache")
            result = _child(job, {**os.environ, **dict.fromkeys(CACHE_VARIABLES, folder)})
            for name, values in result["times"].items():
                if cache == "filled" or not name.startswith("load: "):
                    label = name if name.startswith("load: ") else f"{name}, {cache} shader cache"
                    figures += seconds(label, [Times(*values)], result["cpu"])
    figures.append(Figure("pipelines of prefill and decode", "pipelines", (result["pipelines"],)))
    figures += [Figure(f"memory: {name}", "MiB", (value,)) for name, value in result["memory"].items()]
    return figures


def _child(job: dict, environment: dict[str, str]) -> dict:
    command = [sys.executable, "-m", "vkprefill.benchmark.start", json.dumps(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise VkPrefillError(f"the process that measures the start failed: {lines[-1].removeprefix('Error: ')}")
    return json.loads(done.stdout.splitlines()[-1])


def run_job(job: dict) -> dict:
    """In the child: times (wall, CPU) by name, pipelines, memory in MiB by name."""
    before = resident_bytes()
    device = Device.open(job["device"])
    probe = device.buffer("probe", (64,))
    empty = device.program("empty")
    empty.fill(probe)
    empty.run()
    probe.free()
    driver = resident_bytes() - before
    stages = _Stages()
    whole = timed(lambda: stages.load(job, device))
    model = stages.model
    tokens = random_tokens(job["num_tokens"], model.config.vocab_size)
    cache = model.new_cache()
    first = timed(lambda: model.prefill_candidates(tokens, cache, Best(1)))
    decode = timed(lambda: model.decode_candidates(tokens[0], cache, Best(1)))
    again = timed(lambda: model.decode_candidates(tokens[0], cache, Best(1)))
    grown = resident_bytes() - stages.before_allocation
    pipelines, cpu = len(device.pipelines), has_cpu_time(model)
    memory = {
        f"accounted, {kind}": num_bytes / MIB for kind, num_bytes in sorted(device.allocated.items()) if num_bytes
    }
    memory["accounted, all"] = device.allocated.total() / MIB
    if cpu:  # the device's memory is the process's
        memory |= {
            "process, grown since the first allocation": grown / MIB,
            "process, driver with an empty program": driver / MIB,
            "process, grown and not accounted": (grown - device.allocated.total()) / MIB,
            "process, most at any time": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB,
            "the file": os.path.getsize(job["path"]) / MIB,
        }
    times = {
        "load": whole,
        **{f"load: {name}": t for name, t in stages.times.items()},
        f"first prompt of {len(tokens)}": first,
        f"load and first token of {len(tokens)}": Times(whole.wall_s + first.wall_s, whole.cpu_s + first.cpu_s),
        "first decode": decode,
        "second decode": again,
    }
    model.close()
    device.close()
    return {
        "times": {name: (t.wall_s, t.cpu_s) for name, t in times.items()},
        "pipelines": pipelines,
        "memory": memory,
        "cpu": cpu,
    }


class _Stages:
    """The stages of loading, timed by what load reports: a stage lasts until another begins."""

    def __init__(self) -> None:
        self.times: dict[str, Times] = {}
        self.before_allocation = 0

    def load(self, job: dict, device: Device) -> None:
        self._lap = _Lap()
        self._stage = "reading the file"
        self.model = load(job["path"], device, **job["options"], progress=self._report)
        self._add(self._stage)

    def _report(self, stage: str, done: int, total: int) -> None:
        if stage == "opening the device":
            self.before_allocation = resident_bytes()
            self._add(self._stage)
            stage = "loading weights"  # here the device is open already
        elif done:
            self._add(stage)
        self._stage = stage

    def _add(self, stage: str) -> None:
        wall_s, cpu_s = self._lap()
        known = self.times.get(stage, Times(0.0, 0.0))
        self.times[stage] = Times(known.wall_s + wall_s, known.cpu_s + cpu_s)


class _Lap:
    """Seconds and CPU seconds since the call before."""

    def __init__(self) -> None:
        self._last = _now()

    def __call__(self) -> tuple[float, float]:
        now, last = _now(), self._last
        self._last = now
        return now[0] - last[0], now[1] - last[1]


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def resident_bytes() -> int:
    """Memory of this process that is in RAM and belongs to no file: RssAnon, and RssShmem, which newer drivers use."""
    with open("/proc/self/status") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))


if __name__ == "__main__":
    try:
        print(json.dumps(run_job(json.loads(sys.argv[1]))))
    except VkPrefillError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)
