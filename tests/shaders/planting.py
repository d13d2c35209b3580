"""Mistakes planted in shader sources, to test the tests: a kernel with a mistake runs in place of the right one."""

import contextlib
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tools import compile_shaders
from vkprefill.vulkan import program
from vkprefill.vulkan.shaders import Shader, load_shader

# The sum of a pair's products, as it should be and the other way round.
LOW_FIRST, HIGH_FIRST = "fma(pa.y, pb.y, fma(pa.x, pb.x, sum))", "fma(pa.x, pb.x, fma(pa.y, pb.y, sum))"


@dataclasses.dataclass(frozen=True)
class Mistake:
    """In source `file` (.comp or .glsl) the `place`-th `right` becomes `wrong`, for the compiled shader `shader`."""

    title: str
    file: str
    shader: str
    right: str
    wrong: str
    place: int = 0


def no_barrier(shader: str, file: str, place: int) -> Mistake:
    return Mistake(f"barrier {place + 1} of {file} removed", file, shader, "barrier();", ";", place)


def source_path(name: str) -> Path:
    (path,) = compile_shaders.SHADERS.rglob(name)
    return path


@functools.cache
def compile_with(mistake: Mistake) -> Shader:
    """The shader with the mistake. What it binds is what the right one binds; its pipelines go by a name of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "shaders"
        shutil.copytree(compile_shaders.SHADERS, folder)
        path = folder / source_path(mistake.file).relative_to(compile_shaders.SHADERS)
        parts = path.read_text().split(mistake.right)
        assert len(parts) > mistake.place + 1, f"{mistake.title}: {mistake.file} no longer has this text"
        before, after = parts[: mistake.place + 1], parts[mistake.place + 1 :]
        path.write_text(mistake.right.join(before) + mistake.wrong + mistake.right.join(after))
        source, defines = _source_of(mistake.shader)
        with mock.patch.object(compile_shaders, "SHADERS", folder):
            command = compile_shaders.compiler() + [f"-D{define}" for define in defines]
        if "DOT2" in defines and "-O" in command:  # see compile_shaders.WRITTEN_OUT
            command.remove("-O")
        spirv = Path(name) / "mistake.spv"
        compile_shaders.run([*command, "-o", str(spirv), str(folder / source.relative_to(compile_shaders.SHADERS))])
        name = f"{mistake.shader} with {mistake.title}"
        return dataclasses.replace(load_shader(mistake.shader), name=name, code=spirv.read_bytes())


def _source_of(shader: str) -> tuple[Path, tuple[str, ...]]:
    """(source, what is defined for it) of a compiled shader."""
    for source in compile_shaders.SHADERS.rglob("*.comp"):
        for suffix, defines in compile_shaders.VARIANTS.get(source.stem, compile_shaders.ONE).items():
            if source.stem + suffix == shader:
                return source, defines
    raise KeyError(shader)


@contextlib.contextmanager
def planted(mistake: Mistake) -> Iterator[None]:
    """Programs recorded inside have the shader with the mistake."""
    wrong = compile_with(mistake)
    with mock.patch.object(program, "load_shader", lambda name: wrong if name == mistake.shader else load_shader(name)):
        yield
