"""vkprefill doctor in processes of its own."""

import contextlib
import getpass
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import vkprefill
from tests.e2e.command import interrupt, start
from tests.e2e.conftest import PATIENCE_S
from vkprefill.vulkan.companion import abilities
from vkprefill.vulkan.probe import choose
from vkprefill.vulkan.shaders import SPIRV, manifest


def test_all_well(cli, gpu):
    outcome = cli("doctor")
    info = choose(None)
    assert outcome.code == 0 and outcome.err == "" and outcome.out.endswith("\n\nresult: all well\n"), outcome
    assert f"device {info.index}: {info.name}, type {info.type}" in outcome.out and info.driver in outcome.out
    for name in (
        "vkprefill 0",
        "numpy 1" if np.__version__ < "2" else "numpy 2",
        "kp 0.9",
        "limits: buffer",
        "profile",
        "built-in pair: the known answer",
    ):
        assert name in outcome.out
    for feature in abilities(info.index).features:
        assert feature in outcome.out
    said = outcome.out.replace("root mean square", "")
    for private in (str(Path.home()), str(Path(vkprefill.__file__).parent), os.uname().nodename, getpass.getuser()):
        assert not re.search(rf"(?<!\w){re.escape(private)}(?!\w)", said)


def test_json(cli, gpu):
    outcome = cli("doctor", "--json", "--device", "0", env={"VKPREFILL_BARRIER": "0", "VKPREFILL_COMPANION": "0"})
    result = json.loads(outcome.out)
    assert outcome.code == 0 and result["well"] is True and outcome.out.count("\n") == 1
    assert set(result["selftest"]["kernels"]) | set(result["selftest"]["not_here"]) == set(manifest())
    assert result["facts"]["companion"] == "switched off by VKPREFILL_COMPANION=0"
    assert result["facts"]["barrier"] == "switched off by VKPREFILL_BARRIER=0"
    assert result["facts"]["features"]["on"] == [] and result["facts"]["device"]["max_allocation_bytes"] > 0


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of the package whose shaders may be changed."""
    copy = tmp_path / "vkprefill"
    (copy / "spirv").mkdir(parents=True)
    for folder, target in ((SPIRV.parent, copy), (SPIRV, copy / "spirv")):
        for path in folder.iterdir():
            if path.name not in ("spirv", "__pycache__"):
                (target / path.name).symlink_to(path)
    return copy


def doctor_of(package: Path) -> tuple[int, dict]:
    command = [sys.executable, "-m", "vkprefill", "doctor", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(command, cwd=package.parent, env=environment, capture_output=True, timeout=PATIENCE_S)
    return done.returncode, json.loads(done.stdout)


OP_FMUL, OP_FADD = 133, 129


def test_a_wrong_kernel_and_one_that_is_missing(gpu, package):
    """swiglu adds where it should multiply: not only is it named, the others are looked at too."""
    code = np.frombuffer((SPIRV / "swiglu.spv").read_bytes(), np.uint32).copy()
    at = 5
    while at < len(code):
        if code[at] & 0xFFFF == OP_FMUL:
            code[at] = code[at] & 0xFFFF0000 | OP_FADD
        at += int(code[at] >> 16)
    (package / "spirv" / "swiglu.spv").unlink()
    (package / "spirv" / "swiglu.spv").write_bytes(code.tobytes())
    (package / "spirv" / "delta_gates.spv").unlink()
    status, result = doctor_of(package)
    assert status == 1 and result["well"] is False
    assert [name for name, entry in result["selftest"]["kernels"].items() if not entry["ok"]] == ["swiglu"]
    why = "cannot run: shader delta_gates: delta_gates.spv is missing or damaged"
    answer, missing, failure = sorted(result["selftest"]["failures"])
    assert failure.startswith("swiglu: error ") and "at most 1e-05 wanted" in failure
    assert missing.startswith(f"delta_gates: {why}") and answer.startswith(f"built-in pair: {why}")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "is not JSON"),
        ('{"ICD": {}}', "names no library"),
        ('{"ICD": {"library_path": "./none.so"}}', "its library cannot be loaded: none.so: cannot open shared object"),
        ('{"ICD": {"library_path": "libc.so.6"}}', "its library libc.so.6 is no Vulkan driver"),
    ],
)
def test_no_driver(cli, tmp_path, content, why):
    """The machine's facts all the same, and what is wrong with the driver's file."""
    path = tmp_path / "broken_icd.json"
    if content is not None:
        path.write_text(content)
    outcome = cli("doctor", env=dict.fromkeys(("VK_ICD_FILENAMES", "VK_DRIVER_FILES"), str(path)))
    assert outcome.code == 1 and outcome.err == "" and outcome.out.endswith("\n\nresult: 1 failure\n"), outcome
    for text in (
        "\nvkprefill 0",
        f"{os.uname().machine}; ",
        "\ndrivers' files: broken_icd.json; ",
        "\ndevices: none\n",
        f"\ndriver's file broken_icd.json: {why}",
        "\nFAILED: Vulkan: ",
    ):
        assert text in outcome.out
    assert str(tmp_path) not in outcome.out


def test_no_loader(cli, tmp_path):
    """As where libvulkan is not installed."""
    (tmp_path / "libvulkan.so.1").touch()
    outcome = cli("doctor", "--json", env={"LD_LIBRARY_PATH": str(tmp_path)})
    result = json.loads(outcome.out)
    assert outcome.code == 1 and outcome.err == "" and result["well"] is False, outcome
    assert result["facts"]["device"] is None and result["facts"]["versions"]["numpy"] == np.__version__
    (failure,) = result["selftest"]["failures"]
    assert failure.startswith("Vulkan loader: libvulkan.so.1 cannot be loaded")


def test_no_such_device(cli, gpu):
    outcome = cli("doctor", "--device", "no such")
    assert outcome.code == 1 and outcome.err == ""
    assert f"\ndevices: {choose('0').index}: {choose('0').name}" in outcome.out
    assert "\nFAILED: device 'no such': no devices have this in their name" in outcome.out


def test_another_answer(gpu, package):
    """Of a built-in target whose file was exchanged for the draft's."""
    data = SPIRV.parent / "data"
    (package / "data").unlink()
    (package / "data").mkdir()
    for name in ("target.gguf", "draft.gguf"):
        (package / "data" / name).symlink_to(data / "draft.gguf")
    status, result = doctor_of(package)
    assert status == 1 and result["selftest"]["answers"] == {"built-in pair": False}
    (failure,) = result["selftest"]["failures"]
    assert re.match(r"built-in pair: densely, precision full: answered '.*' .*, wanted '194'", failure)


def lives(process: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_interrupt(gpu):
    """The process that works ends too: at once, or, if it was just being started, at its next word."""
    process = start("doctor", "-v")
    with process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (child := children.read_text().strip()):
            assert process.poll() is None
        assert interrupt(process).endswith(b"interrupted\n")
    while lives(child):
        time.sleep(0.1)
