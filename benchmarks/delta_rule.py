#!/usr/bin/env python3
"""Both forms of the delta rule over ever longer prompts: time per token and layer must not grow with the length.

    python -m benchmarks.delta_rule [--shape 4B] [--json FILE]

One delta-net layer, as the product runs it: a program of prefill_chunk tokens, run until all tokens are through, the
state carried on. On a CPU device rates are per second of CPU time, over all threads of the process; on a GPU per second
on the clock. The forms take turns, and must agree on the outputs of the last run and on the state.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.kernel_options import parse
from tools.make_model import SHAPES, make_config
from vkprefill.benchmark.kernels import clock_of, second_of
from vkprefill.benchmark.record import Figure, Record, about, describe, markdown_table, number
from vkprefill.engine import kernels
from vkprefill.engine.memory import STEP_WORDS, delta_chunks_shape
from vkprefill.gguf.config import ModelConfig
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program

LENGTHS = (512, 2048, 8192, 32768)
FORMS = {"by token": False, "in chunks": True}
TOLERANCE = 1e-4  # of the RMS: float32 sums in another order


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="0.8B", help="(default: 0.8B)")
    args, device = parse(parser, argv, repetitions=3)
    config, second = make_config(args.shape), second_of(device)
    layers = {form: Layer.record(device, config, in_chunks) for form, in_chunks in FORMS.items()}
    figures, rows = [], []
    for length in LENGTHS:
        times: dict[str, list[float]] = {form: [] for form in FORMS}
        for _ in range(args.repetitions):
            for form, layer in layers.items():
                times[form].append(layer.run(length, clock_of(device)) / length)
            check(*layers.values())
        measured = [Figure(f"{form}, {length} tokens", f"{second} per token", tuple(times[form])) for form in FORMS]
        figures += measured
        rows.append([f"{length:,}", *(number(figure.median * 1e6) for figure in measured)])
    command = shlex.join(["python", "-m", "benchmarks.delta_rule", *(sys.argv[1:] if argv is None else argv)])
    profile = device.profile
    record = Record(
        about(command, device.info, profile=profile.name, shape=args.shape, prefill_chunk=profile.prefill_chunk),
        figures,
    )
    unit = f"{second.replace('s', 'us')} per token"
    table = markdown_table(("tokens", *(f"{form}, {unit}" for form in FORMS)), rows)
    print(describe(record.about), table, sep="\n\n")
    if args.json:
        record.write(args.json)
    device.close()
    return 0


@dataclass(frozen=True)
class Layer:
    """The delta rule of one layer in one form."""

    program: Program
    state: Buffer  # f32 [Hv Dv Dk]
    o: Buffer  # f32 [prefill_chunk, Hv Dv]

    @classmethod
    def record(cls, device: Device, config: ModelConfig, in_chunks: bool) -> Layer:
        """The same random inputs for every form, as the layers give them: unit keys, queries times Dk^-1/2."""
        c, num_rows, rng = config, device.profile.prefill_chunk, np.random.default_rng(0)
        heads, key_dim = c.linear_num_value_heads, c.linear_key_head_dim
        qk = rng.standard_normal((num_rows, 2, c.linear_num_key_heads, key_dim))
        qk /= np.linalg.norm(qk, axis=-1, keepdims=True)
        qk[:, 0] *= key_dim**-0.5
        v = rng.standard_normal((num_rows, c.linear_value_dim))
        qkv = np.concatenate([qk.reshape(num_rows, -1), v], axis=1)
        log_decay = -np.exp(rng.uniform(np.log(1e-3), np.log(5), (num_rows, heads)))
        gates = np.stack([log_decay, rng.uniform(0, 1, log_decay.shape)], axis=-1)
        step = device.host_array("step", np.array([num_rows] + [0] * (STEP_WORDS - 1), np.uint32))
        state = device.host_array("state", np.zeros(heads * c.linear_value_head_dim * key_dim, np.float32))
        o = device.host_array("o", np.zeros(v.shape, np.float32))
        program = device.program("delta rule", step=step, num_rows=num_rows)
        kernels.delta_rule(
            program,
            device.host_array("qkv", qkv.astype(np.float32)),
            device.host_array("gates", gates.astype(np.float32)),
            state,
            o,
            device.buffer("chunks", delta_chunks_shape(num_rows, heads)) if in_chunks else None,
            state_offset=0,
            key_heads=c.linear_num_key_heads,
            value_heads=heads,
            key_dim=key_dim,
            value_dim=c.linear_value_head_dim,
        )
        program.run()  # compiles
        return cls(program, state, o)

    def run(self, length: int, clock: Callable[[], float]) -> float:
        """Seconds for `length` tokens, a multiple of the program's, from an empty state."""
        self.state.view()[:] = 0
        start = clock()
        for _ in range(length // self.program.num_rows):
            self.program.run()
        return clock() - start


def check(first: Layer, other: Layer) -> None:
    for name in ("state", "o"):
        expected, got = getattr(first, name).read(), getattr(other, name).read()
        error = float(np.abs(got - expected).max() / np.sqrt(np.mean(np.square(expected))))
        if not error < TOLERANCE:
            raise AssertionError(f"{name}: the forms differ by {error:.1e} of the RMS")


if __name__ == "__main__":
    sys.exit(main())
