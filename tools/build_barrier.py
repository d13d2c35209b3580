"""Builds native/barrier.cpp into vkprefill/ and checks it; the engine works without it, only slower in decode.

    python tools/build_barrier.py [OUTPUT.so]

It must be built with the pybind11 that kp was built with, which kp does not tell: the candidates are tried in turn,
and each result runs native/barrier_check.py in a child process with this Python's kp. The first that passes is kept.
If none does, no file is left and the exit status is 1.
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
WITHOUT = "without it the engine uses one submission per dependency level: the same results, slower decode"


class BuildError(Exception):
    """The barrier operation cannot be built or did not pass its check; the message is for the user."""


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
    """native/barrier_check.comp -> SPIR-V, by glslc or glslangValidator."""
    source = NATIVE / "barrier_check.comp"
    if shutil.which("glslc"):
        command = ["glslc", "--target-env=vulkan1.1", "-o", output, source]
    elif shutil.which("glslangValidator"):
        command = ["glslangValidator", "-V", "--target-env", "vulkan1.1", "-o", output, source]
    else:
        raise BuildError("neither glslc nor glslangValidator is installed")
    run(command, "the check's shader does not compile")


def compile_barrier(output: Path, pybind11_include: str) -> None:
    """native/barrier.cpp -> extension module, by $CXX (c++) against one pybind11."""
    python_include = sysconfig.get_path("include")
    options = ["-O2", "-s", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden"]
    includes = [f"-I{pybind11_include}", f"-I{python_include}"]
    compiler = os.environ.get("CXX", "c++").split()
    command = [*compiler, *options, *includes, NATIVE / "barrier.cpp", "-o", output, "-lvulkan"]
    run(command, f"native/barrier.cpp does not compile against {pybind11_include}")


def run(command: list, failure: str) -> None:
    try:
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"{failure}: {error}") from error
    if result.returncode != 0:
        raise BuildError(f"{failure}:\n{(result.stderr or result.stdout).strip()[-2000:]}")


def check(barrier: Path, spirv: Path) -> str:
    """Runs the check in a child process; returns what was checked or raises BuildError."""
    command = [sys.executable, str(NATIVE / "barrier_check.py"), str(barrier), str(spirv)]
    result = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=120)
    lines = result.stdout.split("\n")
    device = next((line.removeprefix("device ") for line in lines if line.startswith("device ")), None)
    if result.returncode == 0 and "right" in lines:
        return f"checked on {device}"
    if "loaded" in lines and device is None:  # kp ends the process where there is no Vulkan driver
        return "not run: no usable Vulkan device here"
    reason = result.stderr.strip().split("\n")[-1] or result.stdout.strip() or f"exit status {result.returncode}"
    raise BuildError(f"the check failed: {reason}")


def build(output: Path) -> str:
    """Builds and checks the module, then puts it at `output`; returns what was checked or raises BuildError."""
    includes = pybind11_includes()
    if not includes:
        raise BuildError("pybind11 is not installed")
    failures = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".barrier-") as folder:
        spirv, candidate = Path(folder, "check.spv"), Path(folder, "_barrier" + SUFFIX)
        compile_check_shader(spirv)
        for include in includes:
            try:
                compile_barrier(candidate, include)
                checked = check(candidate, spirv)
            except (BuildError, subprocess.TimeoutExpired) as error:
                failures.append(f"{include}: {error}")
            else:
                candidate.replace(output)
                return checked
    raise BuildError("\n".join(failures))


def main() -> int:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "vkprefill" / f"_barrier{SUFFIX}"
    try:
        print(f"{output.name}: built, {build(output)}")
    except BuildError as error:
        output.unlink(missing_ok=True)
        print(f"barrier operation not built: {error}\n({WITHOUT})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
