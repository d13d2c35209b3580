"""Runs models on the emulated Radeon 780M and counts: the child process of executed.py, on build/780m's Python.

Reads jobs from standard input (JSON): {"model": path, "context": slots, "chunk": tokens, "precision": of load,
"steps": [tokens of each call]}. A call of one token is a step of decode, a longer one a chunk of prefill. Writes a line
of JSON for the device, then one for each job: a row for each kernel with its constants, grid and place in the sequence,
its counts summed over the dispatches of the row.
"""

import json
import os
import re
import sys
from contextlib import closing
from pathlib import Path
from unittest import mock

from tools.amd.counts import OF_DEPTH
from vkprefill.engine.model import load
from vkprefill.engine.step_input import Best
from vkprefill.errors import VkPrefillError
from vkprefill.vulkan import device as device_module
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program

SAME = ("wave", "vgprs", "lds_bytes", "float_mode", "code")  # of a compiled kernel, whatever it is given
SUMMED = ("groups", "waves", "issue", "branches", "lds_passes", "lds_least", "lines", "vmem_bytes", "smem_bytes")
SUMMED += ("lines_read", "lines_written", "outside")
CANDIDATES = Best(8)


class Statistics:
    """The lines that the emulator appends to the file that EMU_STATS names."""

    def __init__(self) -> None:
        self._file = Path(os.environ["EMU_STATS"]).open()

    def new(self) -> list[dict]:
        """Those since the last call."""
        return [json.loads(line) for line in self._file]


class CountedProgram(Program):
    """Notes what each run's dispatches did, in `rows` while that is set."""

    statistics: Statistics
    rows: dict[tuple, dict] | None = None
    at: tuple[int, int] = 0, 0  # tokens of the call, tokens in the cache before it

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self._recorded: list[dict] = []

    def dispatch(self, shader_name, buffers, workgroups, *, constants=None, push=None, work=0.0, label="") -> None:
        super().dispatch(shader_name, buffers, workgroups, constants=constants, push=push, work=work, label=label)
        sizes = {name: push[name] for name in ("K", "rows") if name in (push or {})}
        self._recorded.append(
            {"shader": shader_name, "constants": constants or {}, "push": sizes, "grid": list(workgroups)}
        )

    def run(self, between=None) -> None:
        self.statistics.new()
        super().run(between)
        lines = self.statistics.new()
        if [line["grid"] for line in lines] != [d["grid"] for d in self._recorded]:
            raise SystemExit(f"{self.name}: {len(self._recorded)} dispatches recorded, {len(lines)} others executed")
        if self.rows is not None:
            for dispatch, line in zip(self._recorded, lines, strict=True):
                self._note(dispatch, line)

    def _note(self, dispatch: dict, line: dict) -> None:
        tokens, depth = self.at
        place = {"program": self.name, "tokens": tokens}
        if re.fullmatch(OF_DEPTH, dispatch["shader"]):
            place["depth"] = depth
        compiled = {name: line[name] for name in SAME}
        row = {**dispatch, **place, **compiled}
        sums = {"dispatches": 1, **line["instructions"], **{name: line[name] for name in SUMMED}}
        known = self.rows.setdefault(json.dumps(row), row)
        for name, value in sums.items():
            known[name] = known.get(name, 0) + value


def count(job: dict, device: Device) -> list[dict]:
    """Rows of a job's calls, in the order in which the kernels first ran."""
    # On an open device: nothing is timed, so that no program depends on how fast the emulator is. The trunk alone.
    options = {"max_context": job["context"], "prefill_chunk": job["chunk"], "precision": job["precision"], "mtp": None}
    with load(job["model"], device, **options) as model:
        cache, token = model.new_cache(), 0
        CountedProgram.rows = {}
        for tokens in job["steps"]:
            ids = [(token + i) % model.config.vocab_size for i in range(tokens)]
            token += tokens
            if tokens == 1:  # a step before it, so that a row waits for it, as for all but the first after a prompt
                with mock.patch.object(CountedProgram, "rows", None):
                    model.decode_candidates(ids[0], cache, CANDIDATES)
            CountedProgram.at = tokens, len(cache)
            if tokens == 1:
                model.decode_candidates(ids[0], cache, CANDIDATES)
            else:
                model.prefill_candidates(ids, cache, CANDIDATES)
        rows, CountedProgram.rows = list(CountedProgram.rows.values()), None
        return rows


def main() -> None:
    CountedProgram.statistics = Statistics()
    with mock.patch.object(device_module, "Program", CountedProgram), closing(Device.open()) as device:
        print(json.dumps({"device": device.info.name, "mesa": re.search(r"[\d.]+", device.info.driver)[0]}), flush=True)
        for job in json.load(sys.stdin):
            try:
                print(json.dumps(count(job, device)), flush=True)
            except VkPrefillError as error:
                raise SystemExit(f"{job['model']}: {error}") from None


if __name__ == "__main__":
    main()
