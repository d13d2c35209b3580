"""Tests on the emulated Radeon 780M, or another chip: python -m tools.test_780m [--chip gfx1150] [FILE ...]

Run by `make test-780m`, which has made build/780m before. Two processes at a time, a file of tests each; their output
is in build/780m/test/. Where the emulator refuses an instruction it ends the process: that test has failed, the rest of
the file is run in another. A whole run is stored in benchmarks/emu780m.json (tools/emulated/record.py), a run of
some files where the shaders are still those of the whole run. Exits with 1 where tests failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tools.emulated import record
from tools.emulated.jobs import DONE, LEFT_OUT, REPORT, WAVES, Job, jobs

ROOT = record.ROOT
FOLDER = ROOT / "build" / "780m"
PYTHON = FOLDER / "venv" / "bin" / "python"
PROCESSES = 2
REFUSED = 70  # the emulator's status where it ends the process
LONGEST = 1800  # seconds for a file
REFUSAL = re.compile(r"^emu780m: (.*)", re.M)


@dataclass
class Result:
    """Of a job: names of tests by outcome, what the emulator refused, where the output is."""

    job: Job
    log: Path
    outcomes: dict[str, str] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    seconds: float = 0.0
    trouble: str = ""  # of the process, not of a test

    def count(self, outcome: str) -> int:
        return sum(found == outcome for found in self.outcomes.values())

    @property
    def failed(self) -> bool:
        return bool(self.trouble) or self.count("failed") > 0

    def line(self) -> str:
        parts = [f"{self.count('passed')} passed"]
        parts += [f"{self.count('failed')} failed"] if self.count("failed") else []
        parts += [f"{len(self.left_out)} left out"] if self.left_out else []
        parts += [self.trouble] if self.trouble else []
        where = f" ({self.log.relative_to(ROOT)})" if self.failed else ""
        return f"{self.job.name}: {', '.join(parts)}, {self.seconds:.0f} s{where}"


def environment_of(job: Job, chip: str, report: Path, done: list[str]) -> dict[str, str]:
    environment = {**os.environ, "EMU_CHIP": chip, REPORT: str(report), WAVES: str(job.waves), DONE: json.dumps(done)}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as many processes as cores
    if job.seed is not None:
        environment["EMU_ORDER"] = str(job.seed)
    return environment


def read_report(path: Path, result: Result) -> str | None:
    """Takes over what the plugin wrote; the test that had started and not ended, if any."""
    running = None
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        if "left_out" in entry:
            result.left_out.add(entry["left_out"])
        elif "started" in entry:
            running = entry["started"]
        else:
            running = None
            if result.outcomes.get(entry["test"]) != "failed":
                result.outcomes[entry["test"]] = entry["outcome"]
    return running


def run(job: Job, chip: str) -> Result:
    folder = FOLDER / "test" / chip
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"\W+", "-", job.name)
    result, start = Result(job, folder / f"{stem}.log"), time.monotonic()
    with result.log.open("w") as log:
        while True:
            report = folder / f"{stem}.jsonl"
            report.unlink(missing_ok=True)
            environment = environment_of(job, chip, report, sorted(result.outcomes))
            command = [
                str(PYTHON),
                "-m",
                "pytest",
                "-q",
                "-p",
                "tools.emulated.plugin",
                "-p",
                "no:cacheprovider",
                job.file,
            ]
            try:
                status = subprocess.run(
                    command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=LONGEST
                ).returncode
            except subprocess.TimeoutExpired:
                result.trouble = f"took more than {LONGEST} s"
                break
            running = read_report(report, result)
            if running is None or status in (0, 1):
                break
            result.outcomes[running] = "failed"
        text = result.log.read_text()
    result.refused = REFUSAL.findall(text)
    # 5: no test was left to run, all are left out or done.
    if not result.trouble and status not in (0, 1, 5, REFUSED):
        result.trouble = f"pytest ended with status {status}"
    result.seconds = time.monotonic() - start
    return result


def run_all(chosen: list[Job], chip: str) -> list[Result]:
    """The longest first, by the last run of this chip."""
    before = record.read().get(chip, {}).get("seconds_of", {})
    order = sorted(chosen, key=lambda job: -before.get(job.name, float("inf")))

    def run_and_say(job: Job) -> Result:
        result = run(job, chip)
        print(result.line(), *(f"    {text}" for text in result.refused), sep="\n", flush=True)
        return result

    with ThreadPoolExecutor(PROCESSES) as pool:
        return list(pool.map(run_and_say, order))


def processor() -> str:
    names = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    return names[0] if names else platform.processor()


def counts_of(results: list[Result]) -> dict[str, dict]:
    """By file of tests, all ways in which it ran together."""
    files: dict[str, dict] = {}
    for result in sorted(results, key=lambda result: result.job.name):
        counts = files.setdefault(result.job.file, {"passed": 0, "failed": 0, "left_out": 0, "refused": []})
        counts["passed"] += result.count("passed")
        counts["failed"] += result.count("failed") + bool(result.trouble)
        counts["left_out"] = max(counts["left_out"], len(result.left_out))
        counts["refused"] = sorted({*counts["refused"], *result.refused})
    return files


def entry_of(results: list[Result], seconds: float, before: dict | None = None) -> dict:
    """before: the entry of the same shaders whose files of tests stay, but for those that ran now."""
    before = before or {"files": {}, "seconds_of": {}, "seconds": seconds}
    files = dict(sorted((before["files"] | counts_of(results)).items()))
    return {
        "date": datetime.date.today().isoformat(),
        "command": record.COMMAND,
        "mesa": (FOLDER / "packages.txt").read_text().split("\n")[0].split()[1].rstrip(","),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "seconds": round(before["seconds"]),
        "passed": sum(counts["passed"] for counts in files.values()),
        "failed": sum(counts["failed"] for counts in files.values()),
        "refused": sorted({text for counts in files.values() for text in counts["refused"]}),
        "files": files,
        "seconds_of": before["seconds_of"] | {result.job.name: round(result.seconds, 1) for result in results},
        "shaders": record.shader_hashes(),
    }


def stale_reasons(results: list[Result]) -> list[str]:
    """Entries of LEFT_OUT that are no file, and that no test begins with."""
    names = [name for result in results for name in result.left_out]
    return [start for start in LEFT_OUT if not (ROOT / start).exists() and not any(n.startswith(start) for n in names)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.test_780m", description=__doc__.partition("\n")[0])
    parser.add_argument("--chip", default=record.CHIP, choices=record.chips(), help="(default: %(default)s)")
    parser.add_argument("files", nargs="*", help="of tests, in place of all")
    options = parser.parse_args()
    if not PYTHON.exists():
        print("test-780m: error: build/780m is not there; run make setup-780m", file=sys.stderr)
        return 1
    known = list(jobs(options.chip))
    if unknown := sorted(set(options.files) - {job.file for job in known}):
        print(f"test-780m: error: no files of tests for it: {', '.join(unknown)}", file=sys.stderr)
        return 1
    chosen = [job for job in known if not options.files or job.file in options.files]
    shaders, start = record.shader_hashes(), time.monotonic()
    results = run_all(chosen, options.chip)
    before = record.read().get(options.chip) if options.files else None
    entry = entry_of(results, time.monotonic() - start, before)
    if not options.files and (stale := stale_reasons(results)):
        print(f"test-780m: error: LEFT_OUT has entries that match nothing: {', '.join(stale)}", file=sys.stderr)
        return 1
    if shaders != entry["shaders"]:
        print("test-780m: error: shaders changed while the tests ran; nothing is stored", file=sys.stderr)
        return 1
    if not options.files or (before and before["shaders"] == shaders):
        record.store(options.chip, entry)
    print(f"{options.chip}: {entry['passed']} passed, {entry['failed']} failed, {entry['seconds']} s")
    return 1 if entry["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
