"""Compile every shader for an AMD GPU that need not be there, and print what RADV's compiler made of it.

    python -m tools.amd_compile                        Radeon 780M, the driver of this system
    python -m tools.amd_compile --family navi21 --json
    python -m tools.amd_compile --icd FILE --update    store the table in benchmarks/amd_compile.json

RADV (Mesa's driver for AMD GPUs) makes a device without hardware when RADV_FORCE_FAMILY names a GPU; its compiler is
the real one. What is compiled is what the product dispatches: the programs of whole models are recorded on a device
that only takes notes, with the profile for AMD GPUs, for each shape of model, weight format and type of cache, and in
the environment that Device.open makes. Beside it the other form of the matmul is compiled, and both in waves of 64.

waves: of one SIMD (hardware has 16 at most). RADV counts a wave of 64 twice; here it is counted once. loops: of the
loops that matter, vector instructions (valu), dual-issue pairs among them (vopd, a pair counted once) and instructions
that read or write shared memory (lds), buffers (vmem), scalars (smem), for each multiply-add and lane; 1 / valu is the
fraction of the single-issue peak that instruction issue allows.
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
from gguf import GGMLQuantizationType as TensorType

from tools.make_model import make_config
from vkprefill.benchmark.kernels import ceiling_programs
from vkprefill.engine import model as model_module
from vkprefill.engine import weights
from vkprefill.engine.capture import AttentionCapture
from vkprefill.engine.model import Model
from vkprefill.engine.runner import Best
from vkprefill.engine.sizes import KV_TYPES, MAX_CANDIDATES
from vkprefill.gguf.quants import LAYOUT_OF, LAYOUTS, Layout
from vkprefill.specprefill.scorer import Scorer
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.vulkan.allocation import Allocation
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device, ask_for_waves_of_32
from vkprefill.vulkan.probe import DeviceInfo, Heap
from vkprefill.vulkan.profiles import AMD
from vkprefill.vulkan.program import Program
from vkprefill.vulkan.shaders import SPIRV, load_shader, manifest, pack_words

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "amd_compile.json"
FAMILY = "phoenix"  # the Radeon 780M
OLD_NAMES = {"phoenix": "GFX1103_R1"}  # before Mesa 24
SHAPES = ("0.8B", "4B")
CONTEXT = 20480
CHILD_TIMEOUT = 600
MAX_WAVES = 16  # of a SIMD
# Forms of the matmul beside that of the profile: kernel, tile, waves of 64.
MATMUL_FORMS = (
    ("matmul", {"LOCAL_SIZE": 32, "TM": 32, "TN": 2}, False),
    ("matmul", {"LOCAL_SIZE": 64, "TM": 32, "TN": 2}, True),
    ("matmul_hybrid", {"LOCAL_SIZE": 256, "TM": 64}, True),
)

Key = tuple[str, tuple[tuple[str, float], ...]]


# ---- what the product dispatches


HEAPS = Heap(16 << 30, True), Heap(8 << 30, False)


class _RecordingDevice(Device):
    """A device of the AMD profile that notes (shader, constants) of every dispatch in `seen` and runs nothing."""

    def __init__(self, seen: set[Key]) -> None:
        self.seen = seen
        super().__init__(
            DeviceInfo(0, "recorder", "integrated", AMD, "", "1.3.0", HEAPS, 0, 1, 64, 32, 2**32 - 4, 1024, 65536, ())
        )

    def _connect(self) -> None:
        pass

    def buffer(self, label, shape, dtype=np.float32, *, memory="device", kind="scratch") -> Buffer:
        # Zeros take no memory of the system where they are not looked at.
        owner = Allocation(self)
        owner.tensor = SimpleNamespace(data=lambda: np.zeros(int(np.prod(shape)), np.uint32))
        return Buffer(label, tuple(int(n) for n in shape), np.dtype(dtype), memory, kind, owner)

    def require(self, num_bytes: int, what: str, *, host_bytes: int = 0) -> None:
        pass

    def give_back(self, owner: Allocation) -> None:
        pass

    def upload(self, buffer: Buffer, slices: Iterable[np.ndarray]) -> None:
        pass

    def download(self, buffer: Buffer) -> np.ndarray:
        return np.zeros(buffer.shape, buffer.dtype)

    def program(self, name: str, *, step: Buffer | None = None, num_rows: int = 1) -> Program:
        return _RecordingProgram(self, name, step, num_rows)


@dataclass(frozen=True)
class Dispatch:
    """A recorded dispatch; buffers in the order of the bindings."""

    shader: str
    constants: dict[str, float]
    push: dict[str, int]
    workgroups: tuple[int, int, int]
    buffers: tuple[Buffer, ...]


class _RecordingProgram(Program):
    num_submissions = 1

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.recorded: list[Dispatch] = []

    def dispatch(self, shader_name, buffers, workgroups, *, constants=None, push=None, work=0.0, label="") -> None:
        shader = load_shader(shader_name)
        pack_words(shader_name, "constants", shader.constants, constants or {})  # checks the names
        self.device.seen.add((shader_name, tuple((constants or {}).items())))
        self.recorded.append(Dispatch(shader_name, constants or {}, push or {}, workgroups, tuple(buffers)))

    def run(self, between=None) -> None:
        pass


def load_recording(shape: str, type_of: Callable[[str], TensorType], kv_type: str, seen: set[Key]) -> Model:
    """A model of this shape on the recording device, its matrices of the types that type_of gives their names."""
    file = SimpleNamespace(
        label=shape, path=Path(shape), metadata={}, info=lambda name: SimpleNamespace(name=name, type=type_of(name))
    )
    replaced = {
        "open_gguf": lambda path: file,
        "ModelConfig": SimpleNamespace(from_gguf=lambda file: make_config(shape)),
        "check_tensors": lambda file, config: None,
        "Tokenizer": SimpleNamespace(from_metadata=lambda *_: SimpleNamespace(eog_token_ids=())),
    }
    opened = mock.patch.object(Device, "open", lambda wanted: _RecordingDevice(seen))
    with mock.patch.multiple(model_module, **replaced), mock.patch.object(weights, "read_vector"), opened:
        return model_module.load(shape, max_context=CONTEXT, kv_type=kv_type)


def record(shape: str, layout: str, kv_type: str) -> set[Key]:
    """(shader, constants) of all that a model of this shape dispatches: prefill, decode, captures, logits, scores."""
    seen: set[Key] = set()
    weight_type = next(t for t, name in LAYOUT_OF.items() if name == layout)
    model = load_recording(shape, lambda name: weight_type, kv_type, seen)
    cache = model.new_cache()
    model.prefill_candidates([1, 2], cache, Best(MAX_CANDIDATES))
    cache.snapshot().free()
    model.decode_candidates(3, cache, Best(MAX_CANDIDATES))
    model.prefill([4, 5], cache=cache, capture=AttentionCapture())
    model.decode(6, cache, capture=AttentionCapture())
    model.logits([1, 2])
    for options in ({}, {"tail_queries": 8}):  # with and without look-ahead
        Scorer(model).score(range(100), SpecPrefillConfig(**options))
    ceiling_programs(model.device, model.runner.scratch.x, model.runner.scratch.h)
    return seen


def cases() -> list[dict]:
    """Every pipeline of the product, then other forms of the matmul: shader, constants by name, models that use it.

    wave64: to be compiled in waves of 64. A shader that no recorded program uses is there without models, and without
    constants: those it declares are taken. Shaders of other devices' profiles are not there.
    """
    users: dict[Key, set[str]] = {}
    for shape in SHAPES:
        for layout, kv_type in [(name, KV_TYPES[0]) for name in LAYOUTS] + [("q4_k", name) for name in KV_TYPES[1:]]:
            for key in record(shape, layout, kv_type):
                users.setdefault(key, set()).add(shape)
    forms = {
        (f"{kernel}_{layout}", tuple((tile | {"ADD": 0}).items())): wave64
        for kernel, tile, wave64 in MATMUL_FORMS
        for layout in LAYOUTS
    }
    others = {name for name in manifest() if "_shuffle" in name}
    for name in manifest().keys() - {name for name, _ in users} - {name for name, _ in forms} - others:
        users[name, ()] = set()
    return [
        {"shader": name, "constants": dict(constants), "models": sorted(users[name, constants]), "wave64": False}
        for name, constants in sorted(users, key=str)
    ] + [
        {"shader": name, "constants": dict(constants), "models": [], "wave64": wave64}
        for (name, constants), wave64 in forms.items()
    ]


# ---- the child process: a null device, one pipeline after another


def _child() -> None:
    """Reads cases from standard input, writes a line of JSON for the device, then one for each case."""
    import vulkan as vk

    instance = vk.vkCreateInstance(
        vk.VkInstanceCreateInfo(pApplicationInfo=vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 1, 0))), None
    )
    physical = vk.vkEnumeratePhysicalDevices(instance)[0]
    properties = vk.vkGetPhysicalDeviceProperties(physical)
    version = properties.driverVersion
    print(
        json.dumps(
            {"device": properties.deviceName, "mesa": f"{version >> 22}.{(version >> 12) & 1023}.{version & 4095}"}
        ),
        flush=True,
    )
    queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, pQueuePriorities=[1.0])
    feature = vk.VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR(pipelineExecutableInfo=vk.VK_TRUE)
    device = vk.vkCreateDevice(
        physical,
        vk.VkDeviceCreateInfo(
            pNext=feature, pQueueCreateInfos=[queue], ppEnabledExtensionNames=["VK_KHR_pipeline_executable_properties"]
        ),
        None,
    )
    for case in json.load(sys.stdin):
        print(json.dumps(_compile(vk, device, case)), flush=True)


def _compile(vk, device, case: dict) -> dict:
    code, spec = Path(case["spv"]).read_bytes(), case["spec"]
    stage_bit = vk.VK_SHADER_STAGE_COMPUTE_BIT
    bindings = [
        vk.VkDescriptorSetLayoutBinding(
            binding=i, descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, descriptorCount=1, stageFlags=stage_bit
        )
        for i in range(case["bindings"])
    ]
    sets = vk.vkCreateDescriptorSetLayout(device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings), None)
    ranges = [vk.VkPushConstantRange(stageFlags=stage_bit, offset=0, size=case["push"])] if case["push"] else []
    layout = vk.vkCreatePipelineLayout(
        device, vk.VkPipelineLayoutCreateInfo(pSetLayouts=[sets], pPushConstantRanges=ranges), None
    )
    module = vk.vkCreateShaderModule(device, vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code), None)
    entries = [vk.VkSpecializationMapEntry(constantID=i, offset=4 * i, size=4) for i in range(len(spec))]
    data = vk.ffi.from_buffer(struct.pack(f"{len(spec)}I", *spec))
    stage = vk.VkPipelineShaderStageCreateInfo(
        stage=stage_bit,
        module=module,
        pName="main",
        pSpecializationInfo=vk.VkSpecializationInfo(pMapEntries=entries, dataSize=4 * len(spec), pData=data),
    )
    flags = vk.VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR
    flags |= vk.VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR
    start = time.process_time()
    info = vk.VkComputePipelineCreateInfo(flags=flags, stage=stage, layout=layout)
    created = vk.vkCreateComputePipelines(device, None, 1, [info], None)
    result = {"seconds": round(time.process_time() - start, 3)}
    pipeline = created[0]

    def function(name: str):
        return vk.ffi.cast(f"PFN_{name}", vk.lib.vkGetDeviceProcAddr(device, name.encode()))

    ffi = vk.ffi
    count = ffi.new("uint32_t*")
    which = ffi.new(
        "VkPipelineExecutableInfoKHR*",
        {"sType": vk.VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, "pipeline": pipeline},
    )
    one, properties = ffi.new("uint32_t*", 1), ffi.new("VkPipelineExecutablePropertiesKHR*")
    properties.sType = vk.VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR
    of = ffi.new("VkPipelineInfoKHR*", {"sType": vk.VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, "pipeline": pipeline})
    function("vkGetPipelineExecutablePropertiesKHR")(device, of, one, properties)
    result["wave"] = properties.subgroupSize
    get = function("vkGetPipelineExecutableStatisticsKHR")
    get(device, which, count, ffi.NULL)
    statistics = ffi.new("VkPipelineExecutableStatisticKHR[]", count[0])
    for s in statistics:
        s.sType = vk.VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR
    get(device, which, count, statistics)
    result["statistics"] = {
        ffi.string(s.name).decode(): s.value.u64
        for s in statistics
        if s.format == vk.VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR
    }
    get = function("vkGetPipelineExecutableInternalRepresentationsKHR")
    get(device, which, count, ffi.NULL)
    texts = ffi.new("VkPipelineExecutableInternalRepresentationKHR[]", count[0])
    for t in texts:
        t.sType = vk.VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR
    get(device, which, count, texts)
    buffers = [ffi.new("char[]", t.dataSize) for t in texts]
    for t, buffer in zip(texts, buffers, strict=True):
        t.pData = buffer
    get(device, which, count, texts)
    result["assembly"] = next(
        ffi.string(b).decode() for t, b in zip(texts, buffers, strict=True) if ffi.string(t.name) == b"Assembly"
    )
    vk.vkDestroyPipeline(device, pipeline, None)
    return result


KINDS = {  # what the names of a kind of instruction start with
    "valu": r"v_",
    "vopd": r"v_dual_",
    "lds": r"ds_",
    "vmem": r"(buffer|global)_(load|store)",
    "smem": r"s_(buffer_)?load",
}


class Loops:
    """The loops of a shader's assembly: basic blocks, and (first, last) block of each loop in the order of the text."""

    def __init__(self, assembly: str) -> None:
        blocks: list[tuple[str, list[str]]] = []
        for line in assembly.splitlines():
            if m := re.match(r"(BB\d+):", line):
                blocks.append((m[1], []))
            elif blocks and (m := re.match(r"\s+([a-z_0-9]+[^;]*)", line)):
                blocks[-1][1].append(m[1].strip())
        index = {name: i for i, (name, _) in enumerate(blocks)}
        last: dict[int, int] = {}  # two branches back to one block are one loop
        for i, (_, code) in enumerate(blocks):
            for instruction in code:
                m = re.match(r"s_c?branch\S*\s+(BB\d+)", instruction)
                if m and index.get(m[1], len(blocks)) <= i:
                    last[index[m[1]]] = i
        self.code = [code for _, code in blocks]
        self.loops = sorted(last.items())

    def inner(self, loop: tuple[int, int]) -> list[tuple[int, int]]:
        return [(a, b) for a, b in self.loops if (a, b) != loop and loop[0] <= a and b <= loop[1]]

    def own(self, loop: tuple[int, int]) -> dict[str, int]:
        """Instructions of one pass by kind, without the loops in it; fma: multiply-adds, two in some pairs."""
        inner = self.inner(loop)
        code = [
            instruction
            for i in range(loop[0], loop[1] + 1)
            if not any(a <= i <= b for a, b in inner)
            for instruction in self.code[i]
        ]
        total = {kind: sum(bool(re.match(start, c)) for c in code) for kind, start in KINDS.items()}
        fma = r"\bv_(?:dual_)?(?:fma|fmac|fmaak|fmamk|fma_mix)_f32"
        return total | {"fma": sum(len(re.findall(fma, c)) for c in code)}


def count_loop(assembly: str, trips: list[int]) -> dict[str, int] | None:
    """Instructions of one pass of the outermost loop; those of the loops in it count `trips` times, from outside in."""
    found = Loops(assembly)
    if not found.loops:
        return None
    outer = max(found.loops, key=lambda loop: loop[1] - loop[0])
    total = dict.fromkeys((*KINDS, "fma"), 0)
    for loop in [outer, *found.inner(outer)]:
        depth = sum(a <= loop[0] and loop[1] <= b for a, b in found.inner(outer))
        if depth > len(trips):
            return None
        for kind, count in found.own(loop).items():
            total[kind] += count * int(np.prod(trips[:depth]))
    return total


def weight_layout(shader: str) -> Layout:
    """Of the weights that a matmul or matvec shader reads."""
    return LAYOUTS[re.fullmatch(r"mat(?:mul|vec)_(?:hybrid_)?(\w+)", shader)[1]]


def inner_loops(shader: str, constants: dict, assembly: str) -> dict[str, dict[str, float]]:
    """Instructions by kind for each multiply-add (matvec: weight; delta_rule: element of the state; softmax: score) and
    lane. Empty where the loops are not those of the source.
    """
    c = constants
    parts: dict[str, tuple[int, dict[str, int] | None]] = {}
    if shader in ("attention_f16", "attention_f32"):
        found = Loops(assembly)
        scores, sums = c["TQ"] * c["KP"], c["TQ"] * c["DV"]
        products = [loop for loop in found.loops if found.own(loop)["fma"] >= 4 * min(scores, sums)]
        around = [loop for loop in found.loops if set(products) < {loop, *found.inner(loop)}]
        if len(products) == 2 and len(around) == 1:
            qk, pv = map(found.own, products)
            parts = {"qk": (4 * scores, qk), "pv": (16 * sums, pv), "softmax": (scores, found.own(around[0]))}
    elif shader.startswith("matmul_"):
        layout = weight_layout(shader)
        # Of the four turns that the hybrid form counts through, a wave computes in one; in the others it jumps.
        trips = [layout.unit_weights // 32, *([1] if "hybrid" in shader else []), 4]
        parts["loop"] = layout.unit_weights * c["TM"] * c.get("TN", 1), count_loop(assembly, trips)
    elif shader.startswith("matvec_"):
        layout = weight_layout(shader)
        parts["loop"] = c["TN"] * layout.unit_weights, count_loop(assembly, [layout.unit_weights // 32, 4])
    elif shader == "delta_rule":
        parts["loop"] = c["ROWS"] * c["Dk"] // c["LANES"], count_loop(assembly, [])
    return {
        name: {kind: round(counts[kind] / per_pass, 4) for kind in KINDS}
        for name, (per_pass, counts) in parts.items()
        if counts and (name == "softmax" or per_pass <= counts["fma"] < 4 * per_pass)
    }


# ---- the parent


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


def _run_child(icd: Path, family: str, jobs: list[dict], *, wave64: bool = False) -> Iterator[dict]:
    """Lines of the child; the last has `error` when it did not end well."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RADV_", "VK_", "ACO_"))}
    environment |= {
        "VK_ICD_FILENAMES": str(icd),
        "VK_DRIVER_FILES": str(icd),
        "RADV_FORCE_FAMILY": family,
        "RADV_DEBUG": "nocache",
        "MESA_SHADER_CACHE_DISABLE": "true",
        "PYTHONPATH": str(ROOT),
    }
    if not wave64:
        ask_for_waves_of_32(environment)
    command = [sys.executable, "-m", "tools.amd_compile", "--child"]
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
        output, error = done.stdout, done.returncode and f"status {done.returncode}: {done.stderr.strip()[-300:]}"
    except subprocess.TimeoutExpired as expired:
        output, error = (expired.stdout or b"").decode(), f"not ready after {CHILD_TIMEOUT} s"
    yield from (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    if error:
        yield {"error": error}


def compile_all(icd: Path, family: str, wanted: list[dict]) -> dict:
    """The table of `wanted` cases on one GPU: {mesa, family, device, date, pipelines}.

    Raises RuntimeError where the driver has no device of this family.
    """
    names = [family, family.upper(), OLD_NAMES.get(family)]
    for name in dict.fromkeys(filter(None, names)):
        about = next(_run_child(icd, name, []))
        if "error" not in about:
            break
    else:
        raise RuntimeError(f"{icd}: no device for {family}: {about['error']}")
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
        "lds": statistics["LDS size"],
        "waves": min(waves // 2 if wave == 64 else waves, MAX_WAVES),
        "code": statistics["Code size"],
        "seconds": result["seconds"],
    }
    if case["constants"] and (loops := inner_loops(case["shader"], case["constants"], result["assembly"])):
        row["loops"] = loops
    return row


def load_table() -> list[dict]:
    """The stored tables, one for each Mesa version and family."""
    return json.loads(TABLE.read_text())["tables"] if TABLE.exists() else []


def store(table: dict) -> None:
    """Put a table in place of the one of the same Mesa version and family."""
    same = (table["mesa"], table["family"])
    tables = [t for t in load_table() if (t["mesa"], t["family"]) != same] + [table]
    rows = []
    for t in sorted(tables, key=lambda t: (t["family"], [int(n) for n in t["mesa"].split(".")])):
        head = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in t.items() if k != "pipelines")
        rows.append(f'{{{head}, "pipelines": [\n' + ",\n".join(json.dumps(p) for p in t["pipelines"]) + "\n]}")
    TABLE.write_text('{"tables": [\n' + ",\n".join(rows) + "\n]}\n")


def show(table: dict) -> None:
    print(f"{table['device']}, Mesa {table['mesa']}, {table['date']}; spills: SGPRs/VGPRs; LDS and code in bytes")
    print(f"{'shader':20} {'constants':42} wave VGPRs spills   LDS waves  code seconds  valu  vopd")
    for p in table["pipelines"]:
        constants = " ".join(f"{v}" if isinstance(v, int) else f"{v:.0e}" for v in p["constants"].values())
        if "error" in p:
            print(f"{p['shader']:20} {constants:42} {p['error']}")
            continue
        loop = "  ".join(f"{what} {c['valu']:.3f} {c['vopd']:.3f}" for what, c in p.get("loops", {}).items())
        spills = f"{p['sgpr_spills']}/{p['vgpr_spills']}"
        print(
            f"{p['shader']:20} {constants:42} {p['wave']:4} {p['vgprs']:5} {spills:>6} {p['lds']:5} "
            f"{p['waves']:5} {p['code']:5} {p['seconds']:7.3f}  {loop}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--icd", type=Path, help="RADV's ICD file (default: the installed one)")
    parser.add_argument("--family", default=FAMILY, help=f"GPU family in Mesa's words (default: {FAMILY})")
    parser.add_argument("--only", default="", help="only shaders whose name starts so")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--update", action="store_true", help=f"store the table in {TABLE.relative_to(ROOT)}")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return _child()
    icd = arguments.icd or find_icd()
    if icd is None:
        sys.exit("amd_compile: RADV is not installed (package mesa-vulkan-drivers); give its ICD file with --icd")
    if arguments.update and arguments.only:
        sys.exit("amd_compile: --update stores whole tables, not with --only")
    try:
        table = compile_all(icd, arguments.family, [c for c in cases() if c["shader"].startswith(arguments.only)])
    except RuntimeError as error:
        sys.exit(f"amd_compile: {error}")
    print(json.dumps(table, indent=1)) if arguments.json else show(table)
    if arguments.update:
        store(table)
    if any("error" in p for p in table["pipelines"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
