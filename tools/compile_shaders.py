#!/usr/bin/env python3
"""Compile shaders/FAMILY/*.comp to SPIR-V, with a manifest of what each shader binds.

    python tools/compile_shaders.py            writes vkprefill/spirv/NAME.spv and manifest.json; only what changed is
    compiled

Needs glslc or glslangValidator. A shader listed in VARIANTS is compiled once for each variant: format of the weights or
of the cache, with shuffles or without. The manifest holds, read from the preprocessed source, each shader's bindings
(name, whether it reads and writes them), specialisation constants and push words, so that Python can name them and
barriers can be derived from them; and, read from the SPIR-V, the features of Vulkan that a device must be opened with.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHADERS, SPIRV = ROOT / "shaders", ROOT / "vkprefill" / "spirv"

# Suffix of the compiled shader's name -> what is defined for it.
Variants = dict[str, tuple[str, ...]]

# Products of halves: by multiply-adds of what is converted, by the instruction for two of them.
HALF_FORMS: Variants = {"half": ("HALF",), "dot2": ("HALF", "DOT2")}


def with_halves(variants: Variants) -> Variants:
    """Each of them, and those of weights that halves can hold as products of halves: by multiply-adds, and by the
    instruction for two of them.
    """
    halved = {suffix: defines for suffix, defines in variants.items() if not suffix.endswith(FLOAT_ONLY)}
    return variants | {
        f"_{form}{suffix}": (*defines, *more) for form, more in HALF_FORMS.items() for suffix, defines in halved.items()
    }


def with_experts(variants: Variants) -> Variants:
    """Each of them, and once more for weights of which each row has those of an expert."""
    return variants | {f"_experts{suffix}": (*defines, "EXPERTS") for suffix, defines in variants.items()}


def with_shuffles(variants: Variants) -> Variants:
    """Each of them, and once more as the form for devices that pay for every lane of a load."""
    return variants | {f"_shuffle{suffix}": (*defines, "SHUFFLE") for suffix, defines in variants.items()}


def with_wide_loads(variants: Variants) -> Variants:
    """Each of them and with shuffles, and these once more for devices that pay for every word of a load."""
    wide = {f"_shuffle_wide{suffix}": (*defines, "SHUFFLE", "WIDE") for suffix, defines in variants.items()}
    return with_shuffles(variants) | wide


ONE: Variants = {"": ()}
HALF: Variants = {"": (), "_half": ("HALF",)}
WEIGHTS: Variants = {
    f"_{t}": (f"WEIGHT_{t.upper()}",)
    for t in (
        "f32 f16 bf16 q8_0 q4_1 q5_1 mxfp4 iq4_nl iq4_xs iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s q2_k q3_k q4_k q5_k q6_k"
    ).split()
}
FLOAT_ONLY = ("_f32", "_bf16")  # weights with more digits, or of another range, than halves have
KV: Variants = {"_f16": ("KV_F16",), "_f32": ("KV_F32",)}
VARIANTS = {
    "matmul": with_wide_loads(with_experts(WEIGHTS)),
    "matmul_hybrid": with_halves(with_experts(WEIGHTS)),
    "matvec": with_wide_loads(with_experts(WEIGHTS)),
    "matvec_rows": WEIGHTS,
    "embedding": WEIGHTS,
    "kv_store": KV,
    "attention": with_shuffles(KV) | {f"_{form}": ("KV_F16", *defines) for form, defines in HALF_FORMS.items()},
    "attention_scores": KV | {f"_nope{suffix}": (*defines, "NOPE") for suffix, defines in KV.items()},
    "delta_rule": with_shuffles(ONE),
    "delta_rows": with_shuffles(ONE),
    "mtp_input": HALF,
    "head_norm_rope": HALF,
    "rms_norm": HALF,
    "gather_rows": HALF,
    "swiglu": HALF,
    "gated_norm": HALF,
    "attention_gate": HALF,
}


# Capabilities of SPIR-V -> the feature of Vulkan that allows them; "" where every device that we take has them.
CAPABILITIES = {
    1: "",  # Shader
    61: "",  # GroupNonUniform
    63: "",  # GroupNonUniformArithmetic
    64: "",  # GroupNonUniformBallot
    65: "",  # GroupNonUniformShuffle
    9: "shaderFloat16",  # Float16
    11: "shaderInt64",  # Int64
    4433: "storageBuffer16BitAccess",  # StorageBuffer16BitAccess
    6912: "mixedFloatDotProduct",  # DotProductFloat16AccFloat32VALVE
}
# glslc's optimiser refuses a capability that is newer than itself; instructions written out by number have such.
WRITTEN_OUT = "GL_EXT_spirv_intrinsics"


def sources_hash(folder: Path = SHADERS) -> str:
    """One hash over every shader source, by name and content; the package compares it at start-up."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".comp", ".glsl"):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


TARGET = ("-V", "--target-env", "vulkan1.1")  # glslangValidator preprocesses for none


def compiler() -> list[str]:
    """The command line of the GLSL compiler that is installed, up to the source file."""
    if glslc := shutil.which("glslc"):
        return [glslc, "--target-env=vulkan1.1", "-O", "-I", str(SHADERS / "include")]
    if validator := shutil.which("glslangValidator"):
        return [validator, *TARGET, "--quiet", f"-I{SHADERS / 'include'}"]
    sys.exit("compile_shaders: neither glslc nor glslangValidator found; install glslc (shaderc) or glslang-tools")


@cache
def version() -> str:
    """Of the compiler, with how it is called: with another one everything is compiled anew."""
    name, *options, _ = compiler()
    return f"{' '.join(options)}\n{run([name, '--version'])}"


def run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"compile_shaders: {' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout


def reflect(text: str) -> dict:
    """Bindings, constants and push words from preprocessed GLSL in this project's style."""
    bindings: dict[int, dict] = {}
    for number, access, name in re.findall(r"layout\(binding = (\d+)\)\s*(readonly |writeonly |)buffer (\w+)", text):
        access = access.strip()
        entry = {"name": name, "read": access != "writeonly", "write": access != "readonly"}
        known = bindings.setdefault(int(number), entry)
        if (known["read"], known["write"]) != (entry["read"], entry["write"]):
            sys.exit(
                f"compile_shaders: binding {number}: {known['name']} and {name} are declared with different access"
            )
    constants = [
        {"name": name, "type": kind}
        for _, kind, name in sorted(
            re.findall(r"layout\(constant_id = (\d+)\)\s*const (uint|float) (\w+)", text), key=lambda m: int(m[0])
        )
    ]
    push = []
    if block := re.search(r"layout\(push_constant\)\s*uniform \w+ \{(.*?)\}", text, re.S):
        for kind, names in re.findall(r"(uint|float) ([\w, ]+);", block[1]):
            push += [{"name": name.strip(), "type": kind} for name in names.split(",")]
    if sorted(bindings) != list(range(len(bindings))):
        sys.exit(f"compile_shaders: bindings {sorted(bindings)} are not 0..{len(bindings) - 1}")
    return {"bindings": [bindings[i] for i in range(len(bindings))], "constants": constants, "push": push}


def features(code: bytes, name: str) -> list[str]:
    """What a shader's capabilities ask for, sorted. Ends the program where one is not in CAPABILITIES."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    found, place = set(), 5
    while words[place] & 0xFFFF == 17:  # OpCapability; they come first
        if words[place + 1] not in CAPABILITIES:
            sys.exit(f"compile_shaders: {name}: SPIR-V capability {words[place + 1]} is not among CAPABILITIES")
        found.add(CAPABILITIES[words[place + 1]])
        place += words[place] >> 16
    return sorted(found - {""})


@cache
def included(source: Path) -> frozenset[Path]:
    """The source and every file that it includes, for whatever is defined."""
    found = {source}
    for name in re.findall(r'^\s*#include "([^"]+)"', source.read_text(), re.M):
        beside = source.parent / name
        found |= included(beside if beside.exists() else SHADERS / "include" / name)
    return frozenset(found)


def build(source: Path, suffix: str, defines: tuple[str, ...], known: dict) -> tuple[str, dict]:
    """Compile one shader unless its preprocessed text is the one already compiled; returns its manifest entry.

    Not even preprocessed where none of its files has changed: that alone takes a twentieth of a second for each.
    """
    name, target = source.stem + suffix, SPIRV / f"{source.stem}{suffix}.spv"
    entry = known.get(name, {}) if target.exists() else {}
    files = b"\0".join(path.read_bytes() for path in sorted(included(source)))
    key = hashlib.sha256(f"{version()}\0{defines}\0".encode() + files).hexdigest()
    if entry.get("files") == key:
        return name, entry
    command = compiler() + [f"-D{define}" for define in defines]
    preprocess = [word for word in command if word not in TARGET]
    text = re.sub(r"^#line .*\n", "", run([*preprocess, "-E", str(source)]), flags=re.M)  # they have the folder's name
    if WRITTEN_OUT in text and "-O" in command:
        command.remove("-O")
    digest = hashlib.sha256(f"{version()}\0{text}".encode()).hexdigest()
    if entry.get("digest") != digest:
        partial = target.with_suffix(".tmp")
        run([*command, "-o", str(partial), str(source)])
        os.replace(partial, target)
    return name, {"files": key, "digest": digest, **reflect(text), "features": features(target.read_bytes(), name)}


def main() -> None:
    SPIRV.mkdir(exist_ok=True)
    manifest_path = SPIRV / "manifest.json"
    try:
        known = json.loads(manifest_path.read_text())["shaders"]
    except (OSError, ValueError, KeyError):
        known = {}
    jobs = [
        (source, suffix, defines)
        for source in sorted(SHADERS.rglob("*.comp"))
        for suffix, defines in VARIANTS.get(source.stem, ONE).items()
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        shaders = dict(pool.map(lambda job: build(*job, known), jobs))
    for stale in set(SPIRV.glob("*.spv")) - {SPIRV / f"{name}.spv" for name in shaders}:
        stale.unlink()
    manifest = json.dumps({"sources": sources_hash(), "shaders": shaders}, indent=1, sort_keys=True)
    manifest_path.write_text(manifest)
    changed = sum(known.get(name, {}).get("digest") != entry["digest"] for name, entry in shaders.items())
    print(f"compile_shaders: {len(shaders)} shaders, {changed} compiled anew")


if __name__ == "__main__":
    main()
