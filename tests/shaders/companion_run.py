"""What test_companion.py runs in a process of its own, by the name of a case below; "finished" is the last line."""

import gc
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tools.compile_shaders import compiler
from vkprefill.vulkan import companion
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.shaders import Binding, Shader

# Halves in memory and in arithmetic: needs shaderFloat16 and storageBuffer16BitAccess.
HALVES = """#version 450
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer X { f16vec2 x[]; };
layout(binding = 1) writeonly buffer Y { f16vec2 y[]; };
void main() { y[gl_GlobalInvocationID.x] = x[gl_GlobalInvocationID.x] * float16_t(3.0) + float16_t(0.25); }
"""
NO_WORDS = np.zeros(0, np.uint32)


def halves() -> None:
    """A shader with halves."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "halves.comp"), Path(folder, "halves.spv")
        source.write_text(HALVES)
        subprocess.run([*compiler(), "-o", target, source], check=True)
        code = target.read_bytes()
    device = Device.open()
    x = np.linspace(-8, 8, 128, dtype=np.float16)
    buffers = [device.host_array("x", x.view(np.uint32)), device.host_array("y", np.zeros(64, np.uint32))]
    shader = Shader("halves", code, (Binding("x", True, False), Binding("y", False, True)), (), ())
    sequence = device._manager.sequence()
    sequence.record(device.operation(shader, buffers, (1, 1, 1), NO_WORDS, NO_WORDS))
    sequence.record(device._barrier())
    sequence.eval()
    np.testing.assert_allclose(buffers[1].read().view(np.float16), x * np.float16(3) + np.float16(0.25), rtol=2e-3)
    device.close()


def orders() -> None:
    """All that hangs on a device, dropped in every order, with the manager destroyed or only dropped."""
    native = companion.load()
    import kp
    from vkprefill._barrier import Barrier as barrier

    code = Path(sys.argv[2]).read_bytes()
    names = ("context", "manager", "tensors", "algorithm", "binding", "dispatch", "sequence", "times")
    for count, order in enumerate(itertools.permutations(range(len(names)))):
        if count % 709:  # 57 of the 40,320, with each of them in each place
            continue
        context = native.Context(0)
        manager = context.manager()
        tensors = [manager.tensor_t(np.arange(64, dtype=np.uint32), kp.TensorTypes.host) for _ in range(2)]
        algorithm = manager.algorithm(tensors, code, (1, 1, 1), NO_WORDS, NO_WORDS)
        binding = native.Binding(native.Pipeline(context, 2, 0, code, b""), tensors)
        dispatch = native.Dispatch(binding, (1, 1, 1), b"")
        sequence, times = manager.sequence(), native.Timestamps(context, 2)
        kps = kp.OpAlgoDispatch(algorithm, NO_WORDS)
        for operation in (native.Mark(times, 0), kps, barrier(), dispatch, native.Mark(times, 1)):
            sequence.record(operation)
        del operation, kps
        sequence.eval()
        if count % 2:
            manager.destroy()
        held = [context, manager, tensors, algorithm, binding, dispatch, sequence, times]
        del context, manager, tensors, algorithm, binding, dispatch, sequence, times
        for place in order:
            held[place] = None
            gc.collect()
        assert native.num_open() == 0, [names[place] for place in order]


def without_companion() -> None:
    """A device of kp's own: what is asked of it is refused or as ever."""
    device = Device.open()
    print("absent:", device.abilities.absent)
    assert not device.abilities.features and not device.abilities.timestamps
    buffer = device.buffer("x", (64,), np.uint32)
    program = device.program("test")
    program.fill(buffer, 7)
    program.run()
    assert (buffer.read() == 7).all()
    device.close()


def other_kp() -> None:
    """The modules were built for another kp than is installed."""
    import importlib.metadata

    importlib.metadata.version = lambda name: "9.9.9"
    without_companion()


if __name__ == "__main__":
    {"halves": halves, "orders": orders, "without": without_companion, "other_kp": other_kp}[sys.argv[1]]()
    print("finished")
