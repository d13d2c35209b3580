"""The shaders that measure what a device does at best: they do the work that their figures count."""

import numpy as np

from tests.shaders.run_kernel import KernelRun
from vkprefill.benchmark import kernels as benchmark_kernels
from vkprefill.vulkan.device import Device


def test_multiply_add_runs_all_chains(device: Device):
    """Each of the 16 chains of an invocation against the recurrence, in float64."""
    count, local, factor, addend = 3, 32, 0.999, 0.5
    run = KernelRun(device, 2)
    y = run.output("y", local)
    push = {"count": count, "factor": factor, "addend": addend}
    run.program.dispatch("multiply_add", [y], (2, 1, 1), constants={"LOCAL_SIZE": local}, push=push)
    chains = np.arange(local)[:, None] + np.arange(16.0)
    for _ in range(count * benchmark_kernels.FMA_PER_COUNT // 16):
        chains = chains * np.float32(factor) + addend
    np.testing.assert_allclose(run.finish()["y"], np.tile(chains.sum(1), (2, 1)), rtol=1e-4)


def test_copy_wide(device: Device):
    values = np.random.default_rng(0).standard_normal((37, 4)).astype(np.float32)
    run = KernelRun(device, 37)
    source, target = run.input("source", values), run.output("target", 4)
    run.program.dispatch("copy_wide", [source, target], (2, 1, 1), constants={"LOCAL_SIZE": 8}, push={"count": 37})
    np.testing.assert_array_equal(run.finish()["target"], values)


def test_ceilings_are_measured_and_leave_no_memory(device: Device):
    before = device.allocated.total()
    ceilings = benchmark_kernels.measure_ceilings(device)
    assert ceilings.gflop > 0.1 and ceilings.gbytes > 0.01
    assert device.allocated.total() == before


def test_one_by_one_submits_each_dispatch_alone(device: Device):
    buffer = device.buffer("x", (8,), np.uint32, memory="host", kind="test")
    plain = device.program("plain")
    device.one_by_one = True
    alone = device.program("alone")
    device.one_by_one = False
    for program in (plain, alone):
        for value in range(3):
            program.fill(buffer, value)
    if device.has_barrier:
        assert plain.num_submissions == 1
    assert alone.num_submissions == 3
    calls = []
    alone.run(lambda: calls.append(buffer.read()[0]))
    assert calls == [0, 1, 2]
    assert alone.dispatches == [("fill", 0.0)] * 3
    buffer.free()
