"""RADV's compiler for a GPU that need not be there: finds the driver, runs child processes, reads what they print."""

import datetime
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.amd.loops import inner_loops
from vkprefill.vulkan.device import ask_for_waves_of_32
from vkprefill.vulkan.shaders import SPIRV, load_shader, pack_words

ROOT = Path(__file__).resolve().parents[2]
PYTHON_780M = (
    ROOT / "build" / "780m" / "venv" / "bin" / "python"
)  # on newest Mesa and the emulated 780M; make setup-780m
FAMILY = "phoenix"  # the Radeon 780M
CHIP = "gfx1103"  # as the emulator calls it; others have no other name here
OLD_NAMES = {"phoenix": "GFX1103_R1"}  # before Mesa 24
CHILD_TIMEOUT = 600
MAX_WAVES = 16  # of a SIMD


def find_icd() -> Path | None:
    """The file by which the Vulkan loader finds RADV, None where RADV is not installed."""
    folders = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")
    files = [p for folder in folders for p in sorted(Path(folder).glob("radeon_icd*.json"))]
    own = [p for p in files if platform.machine() in p.name or p.name == "radeon_icd.json"]
    return (own or [None])[0]


def _job(case: dict) -> dict:
    shader = load_shader(case["shader"])
    declared = shader.constants if case["constants"] else ()
    return {
        "spv": str(SPIRV / f"{case['shader']}.spv"),
        "spec": pack_words(case["shader"], "constants", declared, case["constants"]).tolist(),
        "bindings": len(shader.bindings),
        "push": 4 * len(shader.push),
    }


def _run_child(icd: Path | None, family: str, jobs: list[dict], *, wave64: bool = False) -> Iterator[dict]:
    """Lines of the child; the last has `error` when it did not end well. Without an ICD file it runs on PYTHON_780M."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RADV_", "VK_", "ACO_"))}
    environment |= {"RADV_DEBUG": "nocache", "MESA_SHADER_CACHE_DISABLE": "true", "PYTHONPATH": str(ROOT)}
    if icd:
        environment |= {"VK_ICD_FILENAMES": str(icd), "VK_DRIVER_FILES": str(icd), "RADV_FORCE_FAMILY": family}
    else:
        environment["EMU_CHIP"] = CHIP if family == FAMILY else family
    if not wave64:
        ask_for_waves_of_32(environment)
    command = [sys.executable if icd else PYTHON_780M, "-m", "tools.amd.null_device"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            input=json.dumps(jobs),
            capture_output=True,
            text=True,
            timeout=CHILD_TIMEOUT,
        )
        last = done.stderr.strip().rpartition("\n")[2][-300:]
        output, error = done.stdout, done.returncode and f"status {done.returncode}: {last}"
    except subprocess.TimeoutExpired as expired:
        output, error = (expired.stdout or b"").decode(), f"not ready after {CHILD_TIMEOUT} s"
    yield from (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    if error:
        yield {"error": error}


def compile_all(icd: Path | None, family: str, wanted: list[dict]) -> dict:
    """The table of `wanted` cases on one GPU: {mesa, family, device, date, pipelines}.

    icd: of a driver that makes devices without hardware, as Mesa did before 26; None: newest Mesa, the emulated device,
    for which the family is FAMILY or the name of another chip that the emulator has (gfx1150, gfx1151, gfx1100).
    Raises RuntimeError where the driver has no device of this family.
    """
    if icd is None and not PYTHON_780M.exists():
        raise RuntimeError(f"{PYTHON_780M.relative_to(ROOT)} is missing; run: make setup-780m")
    names = [family, family.upper(), OLD_NAMES.get(family)] if icd else [family]
    for name in dict.fromkeys(filter(None, names)):
        about = next(_run_child(icd, name, []))
        if "error" not in about:
            break
    else:
        raise RuntimeError(f"{icd or PYTHON_780M}: no device for {family}: {about['error']}")
    pipelines: list[dict] = []
    for wave64, same in itertools.groupby(wanted, lambda case: case["wave64"]):
        rest = list(same)
        while rest:
            lines = list(_run_child(icd, name, [_job(case) for case in rest], wave64=wave64))
            results = [line for line in lines[1:] if "error" not in line]
            pipelines += [_row(case, result) for case, result in zip(rest, results, strict=False)]
            if len(results) < len(rest):  # the child fell over this one; a new child goes on after it
                pipelines.append({**rest[len(results)], "error": lines[-1].get("error", "no answer")})
            rest = rest[len(results) + 1 :]
    return {
        "mesa": about["mesa"],
        "family": family,
        "device": about["device"],
        "date": datetime.date.today().isoformat(),
        "pipelines": pipelines,
    }


def _row(case: dict, result: dict) -> dict:
    statistics, wave = result["statistics"], result["wave"]
    waves = next(statistics[name] for name in ("Subgroups per SIMD", "Occupancy") if name in statistics)
    row = {
        **case,
        "wave": wave,
        "vgprs": statistics["VGPRs"],
        "sgpr_spills": statistics["Spilled SGPRs"],
        "vgpr_spills": statistics["Spilled VGPRs"],
        "scratch": statistics["Scratch size"],  # bytes: spills, and arrays that registers cannot be found for
        "lds": statistics["LDS size"],
        "waves": min(waves // 2 if wave == 64 else waves, MAX_WAVES),
        "code": statistics["Code size"],
        "seconds": result["seconds"],
    }
    if case["constants"] and (loops := inner_loops(case["shader"], case["constants"], result["assembly"])):
        row["loops"] = loops
    return row
