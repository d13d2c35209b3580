"""Build steps that pyproject.toml cannot express: shaders to SPIR-V, and the optional modules of native/."""

import importlib.util
import json
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent


def tool(name: str):
    """The module tools/NAME.py."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shaders_are_current(sources_hash: str) -> bool:
    """Whether vkprefill/spirv/ holds everything its manifest names, made from the sources that are here."""
    spirv = ROOT / "vkprefill" / "spirv"
    try:
        manifest = json.loads((spirv / "manifest.json").read_text())
    except FileNotFoundError:
        return False
    return manifest["sources"] == sources_hash and all((spirv / f"{n}.spv").exists() for n in manifest["shaders"])


def compile_stale_shaders() -> None:
    compile_shaders = tool("compile_shaders")
    if not shaders_are_current(compile_shaders.sources_hash()):
        compile_shaders.main()


class BuildShaders(build_py):
    """Compiles the shaders before the package's files are gathered; the installed package needs no shader compiler."""

    def run(self):
        compile_stale_shaders()
        super().run()


class SourceWithShaders(sdist):
    """Source packages hold the compiled shaders too."""

    def run(self):
        compile_stale_shaders()
        super().run()


class BuildNative(build_ext):
    """Builds the modules of native/ where kp is installed to check them against; the package works without them."""

    def build_extension(self, ext):
        build_native = tool("build_native")
        name = ext.name.rpartition(".")[2]
        try:
            print(build_native.build(name, Path(self.get_ext_fullpath(ext.name))))
        except build_native.BuildError as error:
            raise CompileError(f"{error}\n({build_native.WITHOUT[name]})") from error


setup(
    cmdclass={"build_py": BuildShaders, "build_ext": BuildNative, "sdist": SourceWithShaders},
    ext_modules=[
        Extension("vkprefill._barrier", ["native/barrier.cpp"], optional=True),
        Extension("vkprefill._companion", ["native/companion.cpp"], optional=True),
    ],
)
