"""Products with wide loads (words.glsl): the bits of those with narrow ones, whichever the profile takes."""

import numpy as np
import pytest

from tests.reference import blocks
from tests.shaders.run_kernel import KernelRun, using_profile
from tests.shaders.test_matmul import LAYOUT_TYPES, lengths, multiply
from vkprefill.engine import cpu_loads, kernels
from vkprefill.vulkan.profiles import CPU_WIDE, can_run
from vkprefill.vulkan.program import Program
from vkprefill.vulkan.shaders import load_shader


@pytest.mark.parametrize(("tokens", "weight_type"), [*((1, kind) for kind in LAYOUT_TYPES), (19, "F16"), (19, "Q6_K")])
def test_the_same_bits(device, tokens, weight_type):
    rng = np.random.default_rng(tokens)
    k = lengths(weight_type)[-1]
    data = blocks.random_blocks(rng, 150, k, weight_type)
    x, before = (rng.standard_normal((tokens, n)).astype(np.float32) for n in (k, 150))
    results = []
    for profile in ("cpu", "cpu-wide"):
        with using_profile(device, profile):
            results.append(multiply(device, x, data, weight_type, add=before))
    np.testing.assert_array_equal(*(result.view(np.uint32) for result in results))


@pytest.mark.parametrize("tokens", [1, 9])
def test_what_runs(device, tokens, monkeypatch):
    """The form that the profile asks for, which needs integers of 64 bits, and no other kernel takes it."""
    with using_profile(device, "cpu-wide") as profile:
        run = KernelRun(device, tokens)
        matrix = run.matrix("w", blocks.random_blocks(np.random.default_rng(0), 32, 64, "Q8_0"), "Q8_0")
        taken = []
        monkeypatch.setattr(run.program, "dispatch", lambda shader, *_, **__: taken.append(shader))
        kernels.linear(
            run.program, run.input("x", np.zeros((tokens, 64), np.float32), pad=True), matrix, run.output("y", 32)
        )
    name = "matvec" if tokens == 1 else "matmul"
    assert taken == [f"{name}{'_shuffle' * profile.shuffle}{'_wide' * profile.wide}_q8_0"]
    assert load_shader(f"{name}_shuffle_wide_q8_0").features == {"shaderInt64"}
    assert not load_shader(f"{name}_shuffle_q8_0").features


def test_measuring(device, monkeypatch):
    """Times of both forms; memory and the profile are as before, also after an interrupt."""
    if not can_run(CPU_WIDE, device.info, device.abilities.features):
        return
    with using_profile(device, "cpu"):
        before, profile = device.allocated, device.profile
        times = cpu_loads._measure(device)
        assert times.narrow > 0 and times.wide > 0

        def interrupted(self):
            raise KeyboardInterrupt

        monkeypatch.setattr(Program, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cpu_loads._measure(device)
        assert device.allocated == before and device.profile is profile
