"""The compiled shaders that ship with the package, with what each binds.

`tools/compile_shaders.py` writes vkprefill/spirv/NAME.spv and manifest.json. Where the sources lie beside the package,
a manifest made from other sources is refused: a kernel that is not the one in the source is the worst kind of stale.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from vkprefill.errors import DeviceError

SPIRV = Path(__file__).parents[1] / "spirv"
SOURCES = Path(__file__).parents[2] / "shaders"
_REMEDY = "run: python tools/compile_shaders.py"


@dataclass(frozen=True)
class Binding:
    name: str
    read: bool
    write: bool


@dataclass(frozen=True)
class Shader:
    """One compiled shader. constants and push are (name, "uint" or "float") in the order of their ids and offsets;
    features: those of Vulkan that a device must be opened with.
    """

    name: str
    code: bytes
    bindings: tuple[Binding, ...]
    constants: tuple[tuple[str, str], ...]
    push: tuple[tuple[str, str], ...]
    features: frozenset[str] = frozenset()


def _sources_are_ours() -> bool:
    """Whether this is a checkout. Beside an installed package, `shaders` is another package's folder."""
    try:
        return SOURCES.is_dir() and 'name = "vkprefill"' in (SOURCES.parent / "pyproject.toml").read_text()
    except (OSError, ValueError):
        return False


def _sources_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".comp", ".glsl"):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def manifest() -> dict[str, dict]:
    """Name -> manifest entry of every shader. Raises DeviceError when it is missing, damaged or made from other
    sources.
    """
    try:
        content = json.loads((SPIRV / "manifest.json").read_text())
        shaders, sources = content["shaders"], content["sources"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeviceError(f"shaders: {SPIRV / 'manifest.json'} is missing or damaged ({error}); {_REMEDY}") from None
    if _sources_are_ours() and _sources_hash(SOURCES) != sources:
        raise DeviceError(f"shaders: the compiled shaders in {SPIRV} are not those of {SOURCES}; {_REMEDY}")
    return shaders


@cache
def fingerprint() -> str:
    """Of the compiled shaders: another one, another speed."""
    return hashlib.sha256((SPIRV / "manifest.json").read_bytes()).hexdigest()[:12]


@cache
def load_shader(name: str) -> Shader:
    """The shader `name`. Raises DeviceError when it is missing."""
    entry = manifest().get(name)
    path = SPIRV / f"{name}.spv"
    try:
        code = path.read_bytes()
    except OSError:
        code = b""
    if entry is None or code[:4] != b"\x03\x02\x23\x07":
        raise DeviceError(f"shader {name}: {path} is missing or damaged; {_REMEDY}")
    return Shader(
        name=name,
        code=code,
        bindings=tuple(Binding(b["name"], b["read"], b["write"]) for b in entry["bindings"]),
        constants=tuple((c["name"], c["type"]) for c in entry["constants"]),
        push=tuple((p["name"], p["type"]) for p in entry["push"]),
        features=frozenset(entry.get("features", ())),
    )


def pack_words(
    shader: str, kind: str, declared: tuple[tuple[str, str], ...], values: dict[str, int | float]
) -> np.ndarray:
    """Values by name -> u32 words in declared order, floats by their bits. Missing or unknown names are our own bugs:
    TypeError.
    """
    if set(values) != {name for name, _ in declared}:
        raise TypeError(f"{shader}: {kind} {sorted(values)} given, {[name for name, _ in declared]} declared")
    words = [np.float32(values[n]).view(np.uint32) if t == "float" else np.uint32(values[n]) for n, t in declared]
    return np.array(words, np.uint32)
