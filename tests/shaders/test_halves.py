"""Two ways to pack 16-bit floats, with the feature on: one rounds to the nearest, the other as the driver likes."""

import subprocess

import numpy as np
import pytest

from tests.emulated import is_emulated
from tools.compile_shaders import compiler
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.shaders import Binding, Shader

SOURCE = """#version 450
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer X { vec2 x[]; };
layout(binding = 1) writeonly buffer Y { uvec4 y[]; };
void main() {
    const vec2 v = x[gl_GlobalInvocationID.x];
    const f16vec2 three = f16vec2(v) * float16_t(3.0);
    y[gl_GlobalInvocationID.x] = uvec4(PACK, floatBitsToUint(vec2(three)), 0u);
}
"""
NO_WORDS = np.zeros(0, np.uint32)


def packed(device: Device, folder, pack: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x float32 [128], its halves as packed, three times each half) of the shader, products as float32."""
    source, target = folder / "halves.comp", folder / "halves.spv"
    source.write_text(SOURCE.replace("PACK", pack))
    subprocess.run([*compiler(), "-o", target, source], check=True)
    shader = Shader(pack, target.read_bytes(), (Binding("x", True, False), Binding("y", False, True)), (), ())
    x = np.random.default_rng(1).uniform(16, 32, 128).astype(np.float32)
    buffers = [device.host_array("x", x), device.host_array("y", np.zeros(256, np.uint32))]
    sequence = device._manager.sequence()
    sequence.record(device.operation(shader, buffers, (1, 1, 1), NO_WORDS, NO_WORDS))
    sequence.record(device._barrier())
    sequence.eval()
    words = buffers[1].read().reshape(64, 4)
    halves, products = np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1:3])
    return x, halves.view(np.float16), products.reshape(-1).view(np.float32)


@pytest.mark.parametrize("pack", ["packFloat2x16(f16vec2(v))", "packHalf2x16(v)"])
def test_how_packing_rounds(device, tmp_path, pack):
    """RADV cuts off what packHalf2x16 takes; what 16-bit arithmetic gives beside it is rounded to the nearest."""
    if "shaderFloat16" not in device.abilities.features:
        pytest.skip("this driver has no halves")
    x, halves, products = packed(device, tmp_path, pack)
    np.testing.assert_array_equal(products, (x.astype(np.float16) * np.float16(3)).astype(np.float32))
    nearest = not is_emulated(device) or "packFloat2x16" in pack
    assert np.array_equal(halves, x.astype(np.float16)) == nearest
