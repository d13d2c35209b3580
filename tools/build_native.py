"""Builds the extension modules of native/ into vkprefill/ and checks each; the engine works without them.

    python tools/build_native.py [NAME [OUTPUT.so]]      NAME: _barrier or _companion; without it, both

They must be built with the pybind11 that kp was built with, which kp does not tell: the candidates are tried in turn,
and each result runs its check (native/NAME_check.py) in a child process with this Python's kp. The first that passes is
kept. If none does, no file is left and the exit status is 1.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "native"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
WITHOUT = {  # name of each module -> what its lack means
    "_barrier": "without it the engine uses one submission per dependency level: the same results, slower decode",
    "_companion": "without it the device has no feature on, kernels cannot be timed on it, and the start is slower",
}


class BuildError(Exception):
    """A module cannot be built or did not pass its check; the message is for the user."""


def child_environment() -> dict[str, str]:
    """This process's environment less PYTHONPATH, behind which pip hides the installed packages during a build."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def pybind11_includes() -> list[str]:
    """Include folders of the pybind11 packages there are: pip's (installed, or brought by a build), the system's."""
    code = "import pybind11; print(pybind11.get_include())"
    found = []
    for env in (child_environment(), dict(os.environ)):
        result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        if result.returncode == 0:
            found.append(result.stdout.strip())
    found += [d for d in ("/usr/local/include", "/usr/include") if Path(d, "pybind11/pybind11.h").exists()]
    return list(dict.fromkeys(found))


def compile_check_shader(output: Path) -> None:
    """native/check.comp -> SPIR-V, by glslc or glslangValidator."""
    source = NATIVE / "check.comp"
    if shutil.which("glslc"):
        command = ["glslc", "--target-env=vulkan1.1", "-o", output, source]
    elif shutil.which("glslangValidator"):
        command = ["glslangValidator", "-V", "--target-env", "vulkan1.1", "-o", output, source]
    else:
        raise BuildError("neither glslc nor glslangValidator is installed")
    run(command, "the check's shader does not compile")


def compile_module(source: Path, output: Path, pybind11_include: str) -> None:
    """native/NAME.cpp -> extension module, by $CXX (c++) against one pybind11."""
    python_include = sysconfig.get_path("include")
    options = ["-O2", "-s", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden"]
    includes = [f"-I{pybind11_include}", f"-I{python_include}"]
    compiler = os.environ.get("CXX", "c++").split()
    command = [*compiler, *options, *includes, source, "-o", output, "-lvulkan", "-ldl"]
    run(command, f"native/{source.name} does not compile against {pybind11_include}")


def run(command: list, failure: str) -> None:
    try:
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"{failure}: {error}") from error
    if result.returncode != 0:
        raise BuildError(f"{failure}:\n{(result.stderr or result.stdout).strip()[-2000:]}")


def check(script: Path, module: Path, spirv: Path) -> str:
    """Runs a module's check in a child process; returns what was checked or raises BuildError."""
    command = [sys.executable, str(script), str(module), str(spirv)]
    result = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=120)
    lines = result.stdout.split("\n")
    devices = [line.removeprefix("device ") for line in lines if line.startswith("device ")]
    if result.returncode == 0 and "right" in lines:
        return f"checked on {', '.join(devices)}"
    if "loaded" in lines and not devices:  # kp ends the process where there is no Vulkan driver
        return "not run: no usable Vulkan device here"
    reason = result.stderr.strip().split("\n")[-1] or result.stdout.strip() or f"exit status {result.returncode}"
    raise BuildError(f"the check failed: {reason}")


def build(name: str, output: Path) -> str:
    """Builds and checks the module, then puts it at `output`; returns what was checked or raises BuildError."""
    includes = pybind11_includes()
    if not includes:
        raise BuildError("pybind11 is not installed")
    stem = name.removeprefix("_")
    source, script = NATIVE / f"{stem}.cpp", NATIVE / f"{stem}_check.py"
    failures = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{stem}-") as folder:
        spirv, candidate = Path(folder, "check.spv"), Path(folder, name + SUFFIX)
        compile_check_shader(spirv)
        for include in includes:
            try:
                compile_module(source, candidate, include)
                checked = check(script, candidate, spirv)
            except (BuildError, subprocess.TimeoutExpired) as error:
                failures.append(f"{include}: {error}")
            else:
                candidate.replace(output)
                return checked
    raise BuildError("\n".join(failures))


def main(arguments: list[str]) -> int:
    """Exit status: 0 when all wanted modules were built."""
    if arguments and arguments[0] not in WITHOUT:
        print(f"build_native: module {arguments[0]}: wanted {' or '.join(WITHOUT)}", file=sys.stderr)
        return 2
    status = 0
    for name in arguments[:1] or WITHOUT:
        output = Path(arguments[1]) if len(arguments) > 1 else ROOT / "vkprefill" / (name + SUFFIX)
        try:
            print(f"{output.name}: built, {build(name, output)}")
        except BuildError as error:
            output.unlink(missing_ok=True)
            print(f"{name} not built: {error}\n({WITHOUT[name]})", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
