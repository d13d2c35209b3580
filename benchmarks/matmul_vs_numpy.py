#!/usr/bin/env python3
"""The matmul and matvec kernels of each weight format beside numpy on the dequantised weights.

python -m benchmarks.matmul_vs_numpy [--json FILE]

On a CPU device rates are per second of CPU time, summed over all threads of the process; on a GPU those of the kernels
are per second on the clock, not to be compared with numpy's. Kernel and numpy take turns. numpy runs on one thread,
since waiting threads of its BLAS use CPU time. OpenBLAS's speed depends on the core type it takes the CPU for:
OPENBLAS_CORETYPE, if set, is in the record, and so is the CPU that tools/as_avx2.sh has the driver compile for.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from tools.model.weights import random_blocks
from vkprefill.benchmark.kernels import clock_of, second_of
from vkprefill.benchmark.record import Figure, Record, about, describe, markdown_table, number
from vkprefill.engine import kernels
from vkprefill.engine.cpu_loads import choose_loads
from vkprefill.engine.step import STEP_WORDS
from vkprefill.engine.weights import Matrix, MatrixPart
from vkprefill.errors import VkPrefillError
from vkprefill.gguf.quants import layout_of, pack_part, packed_row_bytes
from vkprefill.vulkan.device import Device

TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS")
MATMUL = (96, 2048, 1024)  # M tokens, N rows, K columns
MATVEC = (1, 4096, 2048)
CALLS = {MATMUL: 2, MATVEC: 8}  # in one timed run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--types", nargs="+", choices=TYPES, default=TYPES, metavar="TYPE", help=f"(default: {' '.join(TYPES)})"
    )
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="(default: 5)")
    parser.add_argument("--device", default=None, help="index or part of the name of a Vulkan device")
    parser.add_argument("--json", metavar="FILE", help="write the record")
    args = parser.parse_args(argv)
    try:
        device = Device.open(args.device)
        choose_loads(device)
    except VkPrefillError as error:
        sys.exit(f"Error: {error}")
    second = second_of(device)
    figures, rows = [], []
    for name in args.types:
        row = [name]
        for kind, size in (("matmul", MATMUL), ("matvec", MATVEC)):
            kernel, blas = measure(device, GGMLQuantizationType[name], size, args.repetitions)
            flop = 2.0 * np.prod(size, dtype=np.float64)
            gbytes = size[1] * packed_row_bytes(GGMLQuantizationType[name], size[2]) / 1e9
            measured = [
                Figure(f"{kind} {name}", f"GFLOP/{second}", tuple(flop / 1e9 / t for t in kernel)),
                Figure(f"{kind} {name}, numpy", "GFLOP/CPU-s", tuple(flop / 1e9 / t for t in blas)),
            ]
            if kind == "matvec":
                measured.append(Figure(f"{kind} {name}", f"GB/{second}", tuple(gbytes / t for t in kernel)))
            figures += measured
            ratio = statistics.median(blas) / statistics.median(kernel)
            row += [number(measured[0].median), number(measured[1].median), f"{ratio:.2f}"]
            if kind == "matvec":
                row.append(number(measured[2].median))
        rows.append(row)
    command = shlex.join(["python", "-m", "benchmarks.matmul_vs_numpy", *(sys.argv[1:] if argv is None else argv)])
    record = Record(
        about(
            command,
            device.info,
            profile=device.profile.name,
            numpy=np.__version__,
            matmul=list(MATMUL),
            matvec=list(MATVEC),
            openblas_coretype=os.environ.get("OPENBLAS_CORETYPE"),
            openblas_threads=os.environ["OPENBLAS_NUM_THREADS"],
            compiled_for=os.environ.get("CPU_NAME"),
        ),
        figures,
    )
    columns = (
        "type",
        f"matmul GFLOP/{second}",
        "numpy",
        "ratio",
        f"matvec GFLOP/{second}",
        "numpy",
        "ratio",
        f"GB/{second}",
    )
    print(describe(record.about), markdown_table(columns, rows), sep="\n\n")
    if args.json:
        record.write(args.json)
    device.close()
    return 0


def measure(
    device: Device, weight_type: GGMLQuantizationType, size: tuple[int, int, int], repetitions: int
) -> tuple[list[float], list[float]]:
    """Seconds of one product x[M, K] W[N, K]^T, by the kernel and by numpy, of each repetition. Checks the results."""
    num_tokens, num_rows, columns = size
    rng = np.random.default_rng(0)
    block_weights, block_bytes = GGML_QUANT_SIZES[weight_type]
    blocks = random_blocks(rng, num_rows * columns // block_weights, weight_type, 0.01).reshape(num_rows, -1)
    weights = np.ascontiguousarray(dequantize(blocks, weight_type), np.float32)
    x = rng.standard_normal((num_tokens, columns), np.float32)
    calls = CALLS[size]
    buffers = [
        step := device.host_array("step", np.array([num_tokens] + [0] * (STEP_WORDS - 1), np.uint32)),
        xs := device.host_array("x", x),
        ws := device.host_array("w", pack_part(blocks, weight_type)),
        ys := device.host_array("y", np.zeros((num_tokens, num_rows), np.float32)),
    ]
    matrix = Matrix("w", layout_of(weight_type).name, num_rows, columns, (MatrixPart(0, num_rows, ws),))
    program = device.program("product", step=step, num_rows=num_tokens)
    for _ in range(calls):
        kernels.linear(program, xs, matrix, ys)
    program.run()  # compiles
    expected = x @ weights.T
    error = float(np.abs(ys.read() - expected).max() / np.sqrt(np.mean(np.square(expected))))
    if not error < 1e-4:
        raise AssertionError(f"{weight_type.name} {size}: differs from numpy by {error:.1e} of the RMS")
    kernel, blas = [], []
    if num_tokens == 1:
        x = x[0]
    for _ in range(repetitions):
        kernel.append(seconds(program.run, clock_of(device)) / calls)
        blas.append(seconds(lambda: [weights @ x.T for _ in range(calls)], time.process_time) / calls)
    for buffer in buffers:
        buffer.free()
    return kernel, blas


def seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


if __name__ == "__main__":
    sys.exit(main())
