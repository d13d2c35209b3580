import numpy as np
import pytest

from tests.reference import blocks, fixtures
from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check
from tests.shaders.same_input_kernels import reference_model
from vkprefill.engine import kernels


def embed(device, ids, data, weight_type, *, num_rows=None, part_rows=None):
    run = KernelRun(device, len(ids), num_rows)
    matrix = run.matrix("w", data, weight_type, part_rows=part_rows)
    earlier = np.zeros(run.num_rows - len(ids))  # ids of a longer call, left in the buffer
    token_ids = run.input("token_ids", np.concatenate([ids, earlier]).astype(np.uint32), by_row=False)
    kernels.embedding(run.program, token_ids, matrix, run.output("x", matrix.columns))
    return run.finish()["x"]


def columns_of(weight_type: str) -> int:
    """No whole number of units: 3 blocks of 256, or 33 of 32 (more than one workgroup takes), or half of one more."""
    return {256: 768, 32: 1056, 1: 1072}[blocks.block_length(weight_type)]


@pytest.mark.parametrize("weight_type", blocks.TYPES)
def test_types(device, weight_type):
    data = blocks.random_blocks(np.random.default_rng(1), 70, columns_of(weight_type), weight_type, 0.05)
    ids = [0, 69, 31, 32, 64, 5, 5]
    got = embed(device, ids, data, weight_type, num_rows=9)
    check(f"embedding {weight_type}", got, blocks.dequantize(data, weight_type)[ids], ELEMENTWISE)


@pytest.mark.parametrize("weight_type", ["F16", "Q8_0"])
def test_every_half(device, weight_type):
    """As a weight and as a scale, exactly: a driver might take subnormal ones for zero."""
    halves = blocks.every_half().reshape(-1, 64)
    if weight_type == "Q8_0":  # each scales 32 weights of 8 bits: their products are float32 numbers
        quants = np.random.default_rng(4).integers(0, 256, (*halves.shape, 32), np.uint8)
        halves = np.concatenate([halves[..., None].view(np.uint8), quants], axis=-1)
    data = halves.reshape(len(halves), -1).view(np.uint8)
    got = embed(device, np.arange(len(data)), data, weight_type)
    np.testing.assert_array_equal(got, blocks.dequantize(data, weight_type))


@pytest.mark.parametrize("weight_type", ["F32", "Q6_K", "Q8_0"])
@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 127, 200])
def test_parts(device, weight_type, tokens):
    """Rows at both sides of every border between parts, in any order."""
    rng = np.random.default_rng(tokens)
    data = blocks.random_blocks(rng, 101, 256, weight_type)
    ids = rng.permutation(np.resize([0, 31, 32, 63, 64, 95, 96, 100, 17], tokens))
    got = embed(device, ids, data, weight_type, num_rows=tokens + 5, part_rows=32)
    check(
        f"embedding T {tokens} from 4 parts, {weight_type}", got, blocks.dequantize(data, weight_type)[ids], ELEMENTWISE
    )


@pytest.mark.parametrize("name", fixtures.FIXTURES)
def test_llama_cpp(device, name):
    import gguf

    tensor = next(t for t in gguf.GGUFReader(fixtures.model_path(name)).tensors if t.name == "token_embd.weight")
    case = fixtures.load_case(name, "p7")
    data = (
        np.ascontiguousarray(tensor.data)
        .view(np.uint8)
        .reshape(len(reference_model(name).weights["token_embd.weight"]), -1)
    )
    got = embed(device, case.token_ids, data, tensor.tensor_type.name)
    check(f"{name} model.input_embed", got, case.arrays["model.input_embed"], ELEMENTWISE)
