"""The companion's device under kp: a chain of dependent dispatches, every other one kp's and every other one with a
pipeline of the companion's, with timestamps, then all dropped in an odd order.

    python companion_check.py COMPANION.so CHECK.spv [--dispatches N] [--barrier BARRIER.so]

Run as a process of its own, because a wrong build may crash it. The lines on stdout say how far it came: "loaded" (the
module found the kp that it was built for), "device NAME" (a Vulkan device is there), "right" or "wrong" (each device's
result, and times that rise), "dropped" (all was given back). Each dispatch is a submission; --barrier: one for all.
"""

import argparse
import gc
import importlib.util
import sys

import kp
import numpy as np

ELEMENTS = 8192


def load_extension(name: str, path: str):
    """The extension module at `path`, wherever that lies."""
    spec = importlib.util.spec_from_file_location(f"vkprefill.{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chain(companion, index: int, spirv: bytes, dispatches: int, barrier) -> tuple[bool, list]:
    """(right, what must outlive the manager): `dispatches` steps between two host-visible buffers of device `index`."""
    context = companion.Context(index)
    manager = context.manager()
    assert isinstance(manager, kp.Manager)
    start = np.arange(ELEMENTS, dtype=np.uint32)
    buffers = [manager.tensor_t(start, kp.TensorTypes.host), manager.tensor_t(start, kp.TensorTypes.host)]
    none = np.zeros(0, np.uint32)
    grid = (ELEMENTS // 64, 1, 1)
    algorithm = manager.algorithm(buffers, spirv, grid, none, none)
    binding = companion.Binding(companion.Pipeline(context, len(buffers), 0, spirv, b""), buffers[::-1])
    timed = companion.describe(index)["timestamps"]
    times = companion.Timestamps(context, dispatches + 1) if timed else None
    sequences = [manager.sequence()]
    if timed:
        sequences[0].record(companion.Mark(times, 0))
    for i in range(dispatches):
        if barrier is None and i:
            sequences.append(manager.sequence())
        kps = kp.OpAlgoDispatch(algorithm, none)
        sequences[-1].record(companion.Dispatch(binding, grid, b"") if i % 2 else kps)
        if barrier is not None:
            sequences[-1].record(barrier())
        if timed:
            sequences[-1].record(companion.Mark(times, i + 1))
    for sequence in sequences:
        sequence.eval()
    expected = np.roll(start, -dispatches * (ELEMENTS // 2 + 1)) + np.uint32(dispatches)
    right = np.array_equal(buffers[dispatches % 2].data(), expected)
    if timed:
        right = right and (np.diff(np.array(times.read(dispatches + 1), np.int64)) >= 0).all()
    return right, [buffers, algorithm, binding, sequences, times]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("companion")
    parser.add_argument("spirv")
    parser.add_argument("--dispatches", type=int, default=16)
    parser.add_argument("--barrier")
    args = parser.parse_args()

    companion = load_extension("_companion", args.companion)
    barrier = load_extension("_barrier", args.barrier).Barrier if args.barrier else None
    print("loaded", flush=True)
    with open(args.spirv, "rb") as f:
        spirv = f.read()
    index, right = 0, True
    while right:
        try:
            print("device", companion.describe(index)["name"], flush=True)
        except IndexError:
            break
        right, kept = chain(companion, index, spirv, args.dispatches, barrier)  # its manager is gone by now
        print("right" if right else "wrong", flush=True)
        while kept:
            kept.pop(0)
            gc.collect()
        index += 1
    print("dropped", flush=True)
    return 0 if index and right else 1


if __name__ == "__main__":
    sys.exit(main())
