"""matmul: every weight layout, made from every GGUF type by quants.pack_rows. matvec has its own file."""

import contextlib
import dataclasses

import gguf
import numpy as np
import pytest

from tests.reference import blocks, fixtures
from tests.shaders.run_kernel import PROFILES, REDUCTION, KernelRun, check, using_profile
from tests.shaders.same_input_kernels import reference_model
from vkprefill.engine import kernels
from vkprefill.engine.halves import SHORT_RUN


def multiply(device, x, data, weight_type, *, add=None, num_rows=None, part_rows=None, one_row=False):
    """x [T, K] by the matrix [N, K]; add: what y holds before. Up to SHORT_RUN num_rows, or one_row, this is matvec."""
    run = KernelRun(device, len(x), num_rows)
    matrix = run.matrix("w", data, weight_type, part_rows=part_rows)
    if one_row:
        y = run.output("y", matrix.rows, by_row=False) if add is None else run.in_out("y", add, by_row=False)
    else:
        y = run.output("y", matrix.rows) if add is None else run.in_out("y", add)
    kernels.linear(run.program, run.input("x", x, pad=True), matrix, y, add=add is not None, one_row=one_row)
    return run.finish()["y"]


def lengths(weight_type: str) -> tuple[int, ...]:
    """K: one sub-block, an odd number of them (half a unit left over), more than a unit; K formats: 1, 3 units; floats:
    with half a sub-block at the end.
    """
    return {256: (256, 768), 32: (32, 96, 352), 1: (16, 48, 96, 336)}[blocks.block_length(weight_type)]


@pytest.fixture(params=["own", "unknown", "amd"])
def form(request, device):
    """The kernel of the device's own profile, then matmul and matmul_hybrid."""
    with contextlib.nullcontext() if request.param == "own" else using_profile(device, request.param):
        yield request.param


@pytest.mark.parametrize("weight_type", blocks.TYPES)
def test_types(device, form, weight_type):
    rng = np.random.default_rng(2)
    for k in lengths(weight_type):
        data = blocks.random_blocks(rng, 70, k, weight_type, 0.05)
        x = rng.standard_normal((19, k)).astype(np.float32)
        expected = x.astype(float) @ blocks.dequantize(data, weight_type).T
        check(f"matmul {weight_type}, K {k}", multiply(device, x, data, weight_type), expected, REDUCTION)


@pytest.mark.parametrize("tokens", [1, 32])
def test_every_half_as_a_weight(device, form, tokens):
    """Each row of x picks one column: a driver might take subnormal halves for zero where it multiplies by them."""
    data = blocks.every_half().reshape(-1, 32).view(np.uint8)
    x = np.eye(32, dtype=np.float32)[:tokens]
    got = multiply(device, x, data, "F16", one_row=tokens == 1)
    np.testing.assert_array_equal(got.reshape(tokens, -1), blocks.dequantize(data, "F16").T[:tokens])


LAYOUT_TYPES = [t for t in blocks.TYPES if t not in ("Q4_0", "Q5_0")]  # stored as Q4_1 and Q5_1


@pytest.mark.parametrize("weight_type", LAYOUT_TYPES)
@pytest.mark.parametrize("profile", PROFILES)
def test_tiles_of_every_profile(device, profile, weight_type):
    """More than one tile in rows and in columns, the last ones cut."""
    with using_profile(device, profile) as tiles:
        local, tm, tn = tiles.matmul
        rng = np.random.default_rng(3)
        k, rows, tokens = lengths(weight_type)[-1], local * tn + 37, tm + 3
        data = blocks.random_blocks(rng, rows, k, weight_type)
        x = rng.standard_normal((tokens, k)).astype(np.float32)
        got = multiply(device, x, data, weight_type)
    check(f"matmul {weight_type}, {profile}", got, x.astype(float) @ blocks.dequantize(data, weight_type).T, REDUCTION)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(
    ("tokens", "rows", "k"),
    [(1, 1, 32), (2, 31, 160), (63, 33, 224), (64, 64, 64), (65, 129, 96), (127, 100, 32), (200, 65, 352)],
)
def test_sizes(device, form, tokens, rows, k, add):
    rng = np.random.default_rng(rows)
    data = blocks.random_blocks(rng, rows, k, "Q8_0", 0.1)
    x, before = (rng.standard_normal((tokens, n)).astype(np.float32) for n in (k, rows))
    got = multiply(device, x, data, "Q8_0", add=before if add else None, num_rows=tokens + 9)
    expected = x.astype(float) @ blocks.dequantize(data, "Q8_0").T + add * before.astype(float)
    check(f"matmul T {tokens}, N {rows}, K {k}, add {add}", got, expected, REDUCTION)


@pytest.mark.parametrize("local", [16, 32, 48, 256])
@pytest.mark.parametrize("tm", [4, 64])
def test_hybrid_whatever_the_subgroups(device, local, tm):
    """Quarters of the workgroup that are less than a subgroup, one, several, and no whole number of them."""
    rng = np.random.default_rng(local)
    data = blocks.random_blocks(rng, 300, 96, "Q8_0", 0.1)
    x = rng.standard_normal((75, 96)).astype(np.float32)
    with using_profile(device, dataclasses.replace(PROFILES["amd"], matmul=(local, tm, 1))):
        got = multiply(device, x, data, "Q8_0")
    check(f"hybrid {local}, {tm}", got, x.astype(float) @ blocks.dequantize(data, "Q8_0").T, REDUCTION)


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("weight_type", ["F16", "Q4_K", "IQ3_S"])
def test_parts(device, form, weight_type, pieces):
    """pieces: of one part that is more work than a submission may be, and takes several dispatches."""
    rng = np.random.default_rng(4)
    data = blocks.random_blocks(rng, 150, 256, weight_type)
    x, before = rng.standard_normal((40, 256)).astype(np.float32), rng.standard_normal((40, 150)).astype(np.float32)
    most = 1.0 if pieces else device.profile.submission_flop
    with using_profile(device, dataclasses.replace(device.profile, submission_flop=most)):
        got = multiply(device, x, data, weight_type, add=before, part_rows=None if pieces else 64)
    expected = x.astype(float) @ blocks.dequantize(data, weight_type).T + before.astype(float)
    check(f"matmul {weight_type} in parts", got, expected, REDUCTION)


MATRICES = {  # output: (input, tensor)
    "linear_attn_qkv_mixed": ("attn_norm", "attn_qkv"),
    "z": ("attn_norm", "attn_gate"),
    "alpha": ("attn_norm", "ssm_alpha"),
    "beta": ("attn_norm", "ssm_beta"),
    "linear_attn_out": ("final_output", "ssm_out"),
    "Qcur_full": ("attn_norm", "attn_q"),
    "Vcur": ("attn_norm", "attn_v"),
    "ffn_out": ("ffn_swiglu", "ffn_down"),
}


def file_tensors(name: str) -> dict[str, tuple[np.ndarray, str]]:
    """Name -> (blocks uint8 [rows, row bytes], type)."""
    tensors = gguf.GGUFReader(fixtures.model_path(name)).tensors
    return {
        t.name: (np.ascontiguousarray(t.data).view(np.uint8).reshape(int(t.shape[-1]), -1), t.tensor_type.name)
        for t in tensors
        if len(t.shape) == 2
    }


@pytest.mark.smoke
@pytest.mark.parametrize("name", fixtures.FIXTURES)
@pytest.mark.parametrize("num_rows", [7, SHORT_RUN + 1], ids=["matvec", "matmul"])
def test_llama_cpp(device, name, num_rows):
    """Every projection whose input and output llama.cpp stored, from the file's own blocks."""

    def product(x: np.ndarray, tensor: tuple[np.ndarray, str]) -> np.ndarray:
        return multiply(device, x, *tensor, num_rows=num_rows)

    arrays, tensors, seen = fixtures.load_case(name, "p7").arrays, file_tensors(name), set()
    for layer, recurrent in enumerate(reference_model(name).recurrent):
        for output, (given, tensor) in MATRICES.items():
            if f"{output}-{layer}" in arrays and f"blk.{layer}.{tensor}.weight" in tensors:
                expected = arrays[f"{output}-{layer}"]
                got = product(arrays[f"{given}-{layer}"], tensors[f"blk.{layer}.{tensor}.weight"])
                check(f"{name} {output}-{layer}", got.reshape(expected.shape), expected, REDUCTION)
                seen.add(output)
        if not recurrent:
            got = product(arrays[f"attn_gated-{layer}"], tensors[f"blk.{layer}.attn_output.weight"])
            check(f"{name} attn_output-{layer}", got, arrays[f"attn_output-{layer}"], REDUCTION)
    assert seen == set(MATRICES)
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    check(f"{name} result_output", product(arrays["result_norm"], head), arrays["result_output"], REDUCTION)


@pytest.mark.parametrize("name", fixtures.FIXTURES)
def test_llama_cpp_swiglu(device, name):
    """Two projections, then swiglu: what lies between is not stored. The limit is that of the projections."""
    arrays, tensors = fixtures.load_case(name, "p7").arrays, file_tensors(name)
    for layer in range(reference_model(name).layer_count):
        x, expected = arrays[f"attn_post_norm-{layer}"], arrays[f"ffn_swiglu-{layer}"]
        run = KernelRun(device, len(x), SHORT_RUN + 1)
        given, (gate, up) = (
            run.input("x", x, pad=True),
            (run.matrix(n, *tensors[f"blk.{layer}.ffn_{n}.weight"]) for n in ("gate", "up")),
        )
        gate_out, up_out = run.output("gate_out", gate.rows), run.output("up_out", gate.rows)
        kernels.linear(run.program, given, gate, gate_out)
        kernels.linear(run.program, given, up, up_out)
        kernels.swiglu(run.program, up_out, gate_out)
        check(f"{name} ffn_swiglu-{layer}", run.finish()["gate_out"], expected, REDUCTION)
