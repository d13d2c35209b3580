"""The bounds of a model's phases on a Radeon 780M: its programs, recorded with every dispatch's grid, what the GPU's
compiler makes of their kernels, and what those did when they were executed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from benchmarks.kernel_bounds import CHUNK, Cost, cost, with_counts
from tools.amd.compiler import FAMILY
from tools.amd.counts import Counts
from tools.amd.executed import HALF
from tools.amd.recording import Dispatch, load_recording
from tools.amd.table import load_table
from tools.model.mixes import tensor_type
from tools.model.shapes import make_config
from vkprefill.engine.memory import MIXTURE_CHUNK
from vkprefill.engine.model import Model
from vkprefill.gguf.tensors import tensor_specs
from vkprefill.vulkan.companion import DOT2

SHAPES, MIX, KV_TYPE = ("0.8B", "4B", "35B-A3B"), "q4_k_m", "f16"
CHUNKS = {"35B-A3B": (CHUNK, MIXTURE_CHUNK)}  # of other shapes CHUNK alone


def rows_of_table() -> tuple[str, dict]:
    """Mesa's version and the rows of its table by shader and constants: those of the latest version."""
    tables = [t for t in load_table() if t["family"] == FAMILY]
    latest = max(tables, key=lambda t: [int(n) for n in t["mesa"].split(".")])
    rows = {(p["shader"], tuple(p["constants"].items())): p for p in latest["pipelines"] if not p.get("wave64")}
    return latest["mesa"], rows


@dataclass(frozen=True)
class Estimate:
    """Of one dispatch: from the loops of its assembly, and with what was executed (counts None: nothing was)."""

    static: Cost
    counts: dict[str, float] | None

    @property
    def cost(self) -> Cost:
        return with_counts(self.static, self.counts)


def phase(
    dispatches: list[Dispatch], compiled: dict, executed: Counts, num_tokens: int, depth: int
) -> dict[str, list[Estimate]]:
    """The estimates of each kernel's dispatches, the longest first."""
    kernels: dict[str, list[Estimate]] = {}
    for d in dispatches:
        key = d.shader, tuple(d.constants.items())
        if key not in compiled:
            sys.exit(f"{d.shader} {d.constants}: not in the table; run: python -m tools.amd_compile --newest --update")
        about = {"shader": d.shader, "constants": d.constants, "push": d.push, "grid": d.workgroups}
        counts = executed.of(about, num_tokens, depth)
        kernels.setdefault(d.shader, []).append(Estimate(cost(d, compiled[key], num_tokens, depth), counts))
    return dict(sorted(kernels.items(), key=lambda item: -sum(e.cost.bound for e in item[1])))


def load_shape(shape: str, precision: str) -> Model:
    """On the recording device, with room for the longest of its chunks."""
    config = make_config(shape)
    types = {spec.name: tensor_type(spec, MIX, config) for spec in tensor_specs(config)}
    chunk = max(CHUNKS.get(shape, (CHUNK,)))
    how = {"precision": precision, "features": DOT2, "prefill_chunk": chunk}
    return load_recording(shape, types.__getitem__, KV_TYPE, set(), **how)


def executed_counts(models: dict[str, list[dict]], shape: str) -> Counts:
    """What was executed with a shape's widths; of mixtures nothing was."""
    return Counts(models.get(shape, []) + models.get(f"{shape}, {HALF}", []))
