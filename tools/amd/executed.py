"""What kernels do when they run on the emulated 780M: runs them and stores the counts.

The built-in target runs a prefill of 512 tokens and a step of decode. For each released shape a model of the same
widths, heads and types of weights, but six layers, half of each kind, and a small vocabulary, runs a chunk of 64 tokens
and a step, and the chunk in half precision too; one with narrow layers around the true attention runs many chunks, for
depth. The record has a row for each kernel, its constants, width and place in the sequence; tools/amd/counts.py works
out other grids from these.
"""

import datetime
import json
import math
import os
import subprocess
import tempfile
from pathlib import Path

from tools import shader_sources
from tools.amd.compiler import PYTHON_780M
from tools.amd.counts import kernel_of, work_of
from tools.compile_shaders import ONE, SHADERS, VARIANTS
from tools.make_model import make_model
from tools.model.shapes import make_config
from vkprefill.engine.sizes import PAGE

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benchmarks" / "executed_780m.json"
BUILT_IN, BUILT_IN_FILE = "built-in target", ROOT / "vkprefill" / "data" / "target.gguf"
SHAPES, MIX = ("0.8B", "4B"), "q4_k_m"
HALF = "half precision"  # of a shape: the kernels that run in it alone
TIMEOUT = 3600

PROGRAMS = ("prefill", "head", "decode")
CHUNK, OTHER_CHUNK, DEPTHS = 64, 96, 10  # tokens of a chunk; the attention runs this many chunks, a step after each
LAYERS = {"num_hidden_layers": 6, "full_attention_interval": 2, "vocab_size": 512}  # q4_k_m gives them all of its types
NARROW = {"num_hidden_layers": 2, "full_attention_interval": 2, "vocab_size": 512}
NARROW |= {"hidden_size": 256, "intermediate_size": 256}


# ---- running --------------------------------------------------------------------------------------------------------


def execute() -> dict:
    """The record: {mesa, device, date, sources, models: {name: rows}}. Raises RuntimeError where nothing can be run."""
    if not PYTHON_780M.exists():
        raise RuntimeError(f"{PYTHON_780M.relative_to(ROOT)} is missing; run: make setup-780m")
    models: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        about, rows = run([job(BUILT_IN_FILE, 512, [512, 1])], folder)
        models[BUILT_IN] = rows[0]
        for shape in SHAPES:
            layers = make_model(f"{folder}/layers.gguf", make_config(shape, **LAYERS), mix=MIX)
            narrow = make_model(f"{folder}/narrow.gguf", make_config(shape, **NARROW), mix=MIX)
            jobs = [job(layers, CHUNK, [CHUNK, 1]), job(narrow, CHUNK, [CHUNK, 1] * DEPTHS)]
            jobs.append(job(narrow, OTHER_CHUNK, [OTHER_CHUNK]))
            jobs.append(job(layers, CHUNK, [CHUNK], "half"))
            _, (first, *more, half) = run(jobs, folder)
            known = {kernel_of(row) for row in first}
            wanted = (row for rows in more for row in rows if kernel_of(row) in known and len(work_of(row)) > 1)
            models[shape] = [*first, *({**row, "narrow": True} for row in wanted)]
            seen = {kernel_of(row) for row in models[shape]}
            models[f"{shape}, {HALF}"] = [row for row in half if kernel_of(row) not in seen]
    shaders = {row["shader"] for rows in models.values() for row in rows}
    return {
        "mesa": about["mesa"],
        "device": about["device"],
        "date": datetime.date.today().isoformat(),
        "sources": {shader: source_digest(shader) for shader in sorted(shaders)},
        "models": models,
    }


def job(model: Path, chunk: int, steps: list[int], precision: str = "full") -> dict:
    context = math.ceil(sum(steps) / PAGE) * PAGE
    return {"model": str(model), "chunk": chunk, "context": context, "steps": steps, "precision": precision}


def run(jobs: list[dict], folder: str) -> tuple[dict, list[list[dict]]]:
    """What the child says of the device, and the rows of each job."""
    statistics = Path(folder) / "statistics"
    statistics.write_text("")
    try:
        done = subprocess.run(
            [PYTHON_780M, "-m", "tools.amd.counted_run"],
            cwd=ROOT,
            env=os.environ | {"EMU_STATS": str(statistics), "PYTHONPATH": str(ROOT)},
            input=json.dumps(jobs),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the emulated device was not ready after {TIMEOUT} s") from None
    about, *rows = map(json.loads, done.stdout.splitlines() or ["{}"])
    if done.returncode or len(rows) != len(jobs):
        last = done.stderr.strip().rpartition("\n")[2][-300:]
        raise RuntimeError(f"the emulated device failed, status {done.returncode}: {last}")
    return about, [[row for row in some if row["program"] in PROGRAMS] for some in rows]


def store(record: dict) -> None:
    models = ",\n".join(
        f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, rows)) + "\n]"
        for name, rows in record["models"].items()
    )
    head = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record.items() if k != "models")
    RECORD.write_text(f'{{{head}, "models": {{\n{models}\n}}}}\n')


def load_record() -> dict:
    return json.loads(RECORD.read_text())


# ---- staleness ------------------------------------------------------------------------------------------------------


def source_digest(shader: str) -> str:
    """Of a compiled shader's source and definitions; empty where there is no such shader."""
    for path in SHADERS.rglob("*.comp"):
        for suffix, defines in VARIANTS.get(path.stem, ONE).items():
            if path.stem + suffix == shader:
                return shader_sources.source_digest(path, SHADERS, defines)
    return ""


def stale(record: dict) -> list[str]:
    """Shaders whose sources are not those that were executed."""
    return [shader for shader, digest in record["sources"].items() if source_digest(shader) != digest]
