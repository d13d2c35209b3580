"""A chain of dependent dispatches in one submission, checked against the exact result.

    python barrier_check.py BARRIER.so CHECK.spv [--dispatches N] [--no-barrier]

Run as a process of its own, because a wrong build may crash it. The lines on stdout say how far it came: "loaded" (the
operation is a kp operation), "device NAME" (a Vulkan device is there), "right" or "wrong" (the result, which must reach
the CPU as well). --no-barrier leaves the operation out, to show that the validation layer notices.
"""

import argparse
import importlib.util
import sys

import kp
import numpy as np

ELEMENTS = 8192


def load_barrier(path: str):
    """The class Barrier of the extension module at `path`, wherever that lies."""
    spec = importlib.util.spec_from_file_location("vkprefill._barrier", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Barrier


def run_chain(barrier, spirv: bytes, dispatches: int) -> tuple[np.ndarray, np.ndarray]:
    """(result, expected) after `dispatches` steps between two host-visible buffers; `barrier` may be None."""
    manager = kp.Manager(0)
    print("device", manager.get_device_properties()["device_name"], flush=True)
    start = np.arange(ELEMENTS, dtype=np.uint32)
    buffers = [manager.tensor_t(start, kp.TensorTypes.host), manager.tensor_t(start, kp.TensorTypes.host)]
    no_words = np.zeros(0, np.uint32)
    steps = [
        manager.algorithm(pair, spirv, (ELEMENTS // 64, 1, 1), no_words, no_words) for pair in (buffers, buffers[::-1])
    ]
    sequence = manager.sequence()
    for i in range(dispatches):
        sequence.record(kp.OpAlgoDispatch(steps[i % 2], no_words))
        if barrier is not None:
            sequence.record(barrier)
    sequence.eval()
    result = buffers[dispatches % 2].data().copy()
    expected = np.roll(start, -dispatches * (ELEMENTS // 2 + 1)) + np.uint32(dispatches)
    return result, expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("barrier")
    parser.add_argument("spirv")
    parser.add_argument("--dispatches", type=int, default=64)
    parser.add_argument("--no-barrier", action="store_true")
    args = parser.parse_args()

    barrier = load_barrier(args.barrier)()
    if not isinstance(barrier, kp.OpBase):
        print("not a kp.OpBase")
        return 1
    print("loaded", flush=True)
    with open(args.spirv, "rb") as f:
        result, expected = run_chain(None if args.no_barrier else barrier, f.read(), args.dispatches)
    right = np.array_equal(result, expected)
    print("right" if right else "wrong", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
