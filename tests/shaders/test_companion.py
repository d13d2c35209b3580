"""The native companion: a device with features on that kp works with, given back whole; and all as ever without it.

What may crash, or wants the validation layer, which environment variables choose, runs in a process of its own.
"""

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.shaders.test_barrier import load_build_native
from tests.validation_layer import layer_environment, messages
from tools import compile_shaders as compile_shaders_module
from vkprefill.cli import devices as devices_command
from vkprefill.errors import DeviceError
from vkprefill.vulkan import companion
from vkprefill.vulkan import program as program_module
from vkprefill.vulkan.companion import Abilities, abilities
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.pipelines import Pipelines
from vkprefill.vulkan.shaders import load_shader

ROOT = Path(__file__).resolve().parents[2]
RUN = Path(__file__).with_name("companion_run.py")
CHECK = ROOT / "native" / "companion_check.py"
SUFFIX = load_build_native().SUFFIX


@pytest.fixture(scope="module")
def native():
    """The extension module."""
    try:
        return companion.load()
    except companion.Absent as absent:
        pytest.skip(f"the native companion is not built (tools/build_native.py): {absent}")


@pytest.fixture(scope="module")
def spirv(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("companion") / "check.spv"
    load_build_native().compile_check_shader(path)
    return path


def run(command: list, folder: Path | None = None, **environment: str) -> str:
    """Output of a Python script that must end well; under the validation layer where `folder` takes its settings."""
    if folder is not None:
        environment |= layer_environment(folder)
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    return output


# -- with it -----------------------------------------------------------------------------------------------------------


def test_kp_works_with_its_manager_without_a_message(native, spirv, tmp_path):
    """Dependent dispatches, barriers and marks in one submission, under core and synchronisation validation."""
    barrier = ROOT / "vkprefill" / f"_barrier{SUFFIX}"
    module = ROOT / "vkprefill" / f"_companion{SUFFIX}"
    output = run([CHECK, module, spirv, "--dispatches", 40, "--barrier", barrier], tmp_path)
    assert "right" in output.split() and "dropped" in output.split()
    assert messages(output) == []


def test_halves_are_switched_on(native, tmp_path):
    """The layer knows the features: silent with them, and not where kp opens the device."""
    if not {"shaderFloat16", "storageBuffer16BitAccess"} <= companion.abilities(0).features:
        pytest.skip("this driver has no halves")
    assert messages(run([RUN, "halves"], tmp_path)) == []
    assert messages(run([RUN, "halves"], tmp_path, VKPREFILL_COMPANION="0"))


def test_all_is_given_back_in_any_order(native, spirv, tmp_path):
    """The layer names what is alive when the device goes."""
    output = run([RUN, "orders", spirv], tmp_path)
    assert "finished" in output
    assert messages(output) == []


def test_closing_gives_the_device_back(native):
    gc.collect()  # devices of earlier tests
    before = native.num_open()
    device = Device.open()
    assert native.num_open() == before + 1
    program = device.program("test")
    program.fill(device.buffer("x", (64,)))
    program.run()
    device.close()
    device.close()
    del program, device
    gc.collect()
    assert native.num_open() == before


@pytest.mark.parametrize("step", ["Context", "manager"])
def test_a_device_that_cannot_be_opened_is_an_error_and_leaves_nothing(native, monkeypatch, step):
    before = native.num_open()

    def fail():
        raise RuntimeError("vkCreateDevice gave -2")

    def open_context(index):
        if step == "Context":
            fail()
        context = native.Context(index)
        return SimpleNamespace(about=context.about, manager=fail)

    monkeypatch.setattr(companion, "load", lambda: SimpleNamespace(Context=open_context))
    with pytest.raises(DeviceError, match=r"device 0 \(.*\): cannot be opened: vkCreateDevice gave -2"):
        Device.open(0)
    gc.collect()
    assert native.num_open() == before


def test_wrong_uses_are_errors(native):
    context = native.Context(0)
    with pytest.raises(IndexError, match="no Vulkan device 99"):
        native.Context(99)
    if context.about()["timestamps"]:
        times = native.Timestamps(context, 4)
        with pytest.raises(IndexError, match="mark 4, there are 4"):
            native.Mark(times, 4)
        with pytest.raises(IndexError, match="5 marks wanted, there are 4"):
            times.read(5)
    fill = native.Pipeline(context, 1, 8, load_shader("fill").code, np.uint32([64]).tobytes())
    manager = context.manager()
    tensor = manager.tensor_t(np.zeros(4, np.uint32))
    with pytest.raises(ValueError, match="2 tensors, the pipeline binds 1"):
        native.Binding(fill, [tensor, tensor])
    with pytest.raises(ValueError, match="4 bytes pushed, the pipeline takes 8"):
        native.Dispatch(native.Binding(fill, [tensor]), (1, 1, 1), bytes(4))


def test_dispatches_share_pipelines(native):
    """One for a shader with its constants, whatever it is bound to, pushed, and however large the grid; the same words
    as through kp, which makes one for each.
    """
    own, kps = Device.open(), Device.open()
    kps.pipelines = Pipelines(kps._kp, kps._manager, None, None)
    for device, expected in ((own, 2), (kps, 4)):
        program = device.program("test")
        buffers = [device.host_array(name, np.zeros(256, np.uint32)) for name in "ab"]
        for i, buffer in enumerate(buffers):
            program.fill(buffer, 7 + i)
        for grid, local_size, value in (((1, 1, 1), 64, 21), ((2, 1, 1), 64, 22), ((1, 1, 1), 32, 23)):
            words = {"value": value, "count": value}
            program.dispatch("fill", buffers[:1], grid, constants={"LOCAL_SIZE": local_size}, push=words)
        program.run()
        np.testing.assert_array_equal(buffers[0].read(), [23] * 23 + [7] * 233)
        np.testing.assert_array_equal(buffers[1].read(), [8] * 256)
        assert len(device.pipelines) == expected + (device is kps)
        device.close()
        assert len(device.pipelines) == 0


def test_a_pipeline_that_the_driver_refuses_is_an_error(native, device, monkeypatch):
    def fail(*_):
        raise RuntimeError("vkCreateComputePipelines gave -2")

    monkeypatch.setattr(device.pipelines, "_native", SimpleNamespace(Pipeline=fail))
    program, buffer = device.program("test"), device.buffer("x", (4,))
    with pytest.raises(DeviceError, match=r"shader fill: .*: vkCreateComputePipelines gave -2"):
        program.dispatch("fill", [buffer], (1, 1, 1), constants={"LOCAL_SIZE": 4}, push={"value": 0, "count": 4})
    assert program.num_submissions == 0


# -- without it --------------------------------------------------------------------------------------------------------


def test_switched_off():
    output = run([RUN, "without"], VKPREFILL_COMPANION="0")
    assert "absent: switched off by VKPREFILL_COMPANION=0\n" in output and "finished" in output


@pytest.mark.parametrize("value", ["0", "off", "False", "NO"])
def test_words_that_switch_it_off(monkeypatch, value):
    monkeypatch.setenv("VKPREFILL_COMPANION", value)
    assert abilities(0) == Abilities(absent=f"switched off by VKPREFILL_COMPANION={value}")


def test_built_for_another_kp(native):
    output = run([RUN, "other_kp"])
    assert "absent: not available: vkprefill._companion was built for kp 0.9.0, found 9.9.9\n" in output
    assert "finished" in output


def test_built_from_older_sources(native, monkeypatch):
    monkeypatch.delattr(native, "Pipeline")
    assert companion.abilities(0).absent.startswith("not available: it was built from older sources; run: ")


def test_not_built(monkeypatch):
    monkeypatch.setitem(sys.modules, "vkprefill._companion", None)
    device = Device.open()
    assert device.abilities.absent.startswith("not available: ")
    assert device.abilities.features == frozenset()
    with pytest.raises(DeviceError, match="cannot be timed on the device: native companion not available"):
        with device.record_times():
            pass
    device.close()


def test_without_timestamps_times_are_refused(device, monkeypatch):
    monkeypatch.setattr(device, "abilities", Abilities(frozenset({"shaderFloat16"})))
    with pytest.raises(DeviceError, match="cannot be timed on the device: its driver has no timestamps"):
        with device.record_times():
            pass


def test_a_shader_that_needs_more_is_refused(device, monkeypatch):
    monkeypatch.setattr(device, "abilities", Abilities(frozenset({"shaderFloat16"})))
    shader = replace(load_shader("fill"), features=frozenset({"shaderFloat16", "mixedFloatDotProduct"}))
    monkeypatch.setattr(program_module, "load_shader", lambda name: shader)
    program = device.program("test")
    with pytest.raises(DeviceError, match="shader fill: needs mixedFloatDotProduct; .* has features on: shaderFloat16"):
        program.fill(device.buffer("x", (4,)))
    assert program.num_submissions == 0


# -- what a shader needs -----------------------------------------------------------------------------------------------

BODY = """
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer X { f16vec2 x[]; };
layout(binding = 1) writeonly buffer Y { float y[]; };
void main() { y[gl_GlobalInvocationID.x] = dot2(x[gl_GlobalInvocationID.x], f16vec2(2.0), 1.0); }
"""
HALVES = "#version 450\n#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require\n"
BY_HAND = "float dot2(f16vec2 a, f16vec2 b, float sum) { return float(a.x * b.x) + float(a.y * b.y) + sum; }"
BY_INSTRUCTION = """#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_VALVE_mixed_float_dot_product"], capabilities = [6912], id = 6916)
float dot2(f16vec2 a, f16vec2 b, float sum);"""
IN_DOUBLE = (
    "#version 450\nlayout(binding = 0) buffer X { float x[]; };\nvoid main() { x[0] = float(sqrt(double(x[1]))); }"
)


@pytest.fixture
def compile_shaders(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_shaders_module, "SPIRV", tmp_path)
    return compile_shaders_module


@pytest.mark.parametrize(
    ("dot2", "expected"),
    [
        (BY_HAND, ["shaderFloat16", "storageBuffer16BitAccess"]),
        (BY_INSTRUCTION, ["mixedFloatDotProduct", "shaderFloat16", "storageBuffer16BitAccess"]),
    ],
    ids=["by hand", "by instruction"],
)
def test_the_manifest_names_the_features(compile_shaders, tmp_path, dot2, expected):
    source = tmp_path / "halves.comp"
    source.write_text(HALVES + dot2 + BODY)
    name, entry = compile_shaders.build(source, "", (), {})
    assert (name, entry["features"]) == ("halves", expected)


def test_a_capability_that_nothing_allows_is_refused(compile_shaders, tmp_path):
    source = tmp_path / "doubles.comp"
    source.write_text(IN_DOUBLE)
    with pytest.raises(SystemExit, match="doubles: SPIR-V capability 10 is not among CAPABILITIES"):
        compile_shaders.build(source, "", (), {})


# -- building ----------------------------------------------------------------------------------------------------------

FAILING_CHECKS = {
    "crash": "print('loaded', 'device some', sep='\\n', flush=True); import os; os.abort()",
    "wrong": "print('loaded', 'device some', 'wrong', sep='\\n'); raise SystemExit(1)",
    "kp of another version": "raise ImportError('built for kp 0.9.0')",
}


@pytest.mark.parametrize("script", FAILING_CHECKS.values(), ids=FAILING_CHECKS)
def test_a_module_that_fails_its_check_is_not_kept(tmp_path, monkeypatch, capsys, script):
    build_native = load_build_native()
    (tmp_path / "companion.cpp").touch()
    (tmp_path / "companion_check.py").write_text(script)
    monkeypatch.setattr(build_native, "NATIVE", tmp_path)
    monkeypatch.setattr(build_native, "compile_check_shader", lambda output: None)
    monkeypatch.setattr(build_native, "compile_module", lambda source, output, include: output.touch())
    output = tmp_path / "built" / "_companion.so"
    output.parent.mkdir()
    output.write_bytes(b"left by an earlier build")
    assert build_native.main(["_companion", str(output)]) == 1
    assert list(output.parent.iterdir()) == []
    error = capsys.readouterr().err
    assert "_companion not built" in error and "the check failed" in error and "no feature on" in error


def test_a_check_that_finds_no_device_says_so(tmp_path):
    script = tmp_path / "check.py"
    script.write_text("print('loaded'); raise SystemExit(1)")
    assert load_build_native().check(script, tmp_path, tmp_path) == "not run: no usable Vulkan device here"


# -- what users see ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        (Abilities(frozenset({"b", "a"}), True), "features on: a, b, timestamps"),
        (Abilities(frozenset({"a"})), "features on: a"),
        (Abilities(), "features on: none, its driver has none of ours"),
        (Abilities(absent="switched off"), "no features on: native companion switched off"),
    ],
)
def test_abilities_in_words(opened, words):
    assert str(opened) == words


def test_devices_lists_features(monkeypatch, capsys):
    opened = Abilities(frozenset({"shaderFloat16"}), True, ((16, 16, 16), (16, 16, 32)))
    monkeypatch.setattr(devices_command, "abilities", lambda index: opened)
    devices_command.run(SimpleNamespace(json=False))
    shown = capsys.readouterr().out
    assert "   features on: shaderFloat16, timestamps\n" in shown
    assert "   cooperative matrices of 16x16x16, 16x16x32 (not used)\n" in shown
    described = devices_command.as_json(devices_command.probe()[0])
    assert described["companion"] is True and described["companion_absent"] is None
    assert described["features"] == ["shaderFloat16"] and described["timestamps"] is True
    monkeypatch.setattr(devices_command, "abilities", lambda index: Abilities(absent="not available: why"))
    described = devices_command.as_json(devices_command.probe()[0])
    assert described["companion"] is False and described["companion_absent"] == "not available: why"
