"""Tensor list: counts and shapes of the released models, checks of files, search for NaN and infinity."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as TensorType

from tools.make_model import MIXES, copy_as_f32, make_config, make_model
from vkprefill.errors import GGUFError, UnsupportedModelError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import GGUFFile, TensorInfo, open_gguf
from vkprefill.gguf.tensors import (
    HALF_OFFSETS,
    INSTEAD,
    MATRIX_TYPES,
    check_finite,
    check_tensors,
    first_non_finite,
    is_mtp_tensor,
    read_vector,
    tensor_specs,
)


@pytest.mark.parametrize(
    "shape, count, millions", [("0.8B", 320, 752.39), ("2B", 320, 1882), ("4B", 426, 4206), ("9B", 427, 8954)]
)
def test_counts_of_the_released_models(shape, count, millions):
    specs = tensor_specs(make_config(shape))
    assert len(specs) == len({spec.name for spec in specs}) == count
    assert sum(np.prod(spec.shape) for spec in specs) / 1e6 == pytest.approx(millions, rel=5e-4)


def test_shapes_and_roles():
    specs = {spec.name: spec for spec in tensor_specs(make_config("4B"))}
    for name, shape, role in [
        ("token_embd.weight", (248320, 2560), "matrix"),
        ("output_norm.weight", (2560,), "vector"),
        ("blk.0.attn_qkv.weight", (8192, 2560), "matrix"),
        ("blk.0.attn_gate.weight", (4096, 2560), "matrix"),
        ("blk.0.ssm_conv1d.weight", (8192, 4), "vector"),
        ("blk.0.ssm_dt.bias", (32,), "vector"),
        ("blk.0.ssm_a", (32,), "vector"),
        ("blk.0.ssm_alpha.weight", (32, 2560), "matrix"),
        ("blk.0.ssm_norm.weight", (128,), "vector"),
        ("blk.0.ssm_out.weight", (2560, 4096), "matrix"),
        ("blk.3.attn_q.weight", (8192, 2560), "matrix"),
        ("blk.3.attn_v.weight", (1024, 2560), "matrix"),
        ("blk.3.attn_q_norm.weight", (256,), "vector"),
        ("blk.3.attn_output.weight", (2560, 4096), "matrix"),
        ("blk.31.ffn_down.weight", (2560, 9216), "matrix"),
    ]:
        assert (specs[name].shape, specs[name].role) == (shape, role)
    assert "output.weight" not in specs and "blk.3.ssm_a" not in specs and "blk.0.attn_q.weight" not in specs


def test_mtp_tensors_follow_the_trunk():
    config = make_config(num_nextn_layers=2)
    names = {"blk.3.attn_q.weight": False, "blk.4.attn_q.weight": True, "blk.5.nextn.eh_proj.weight": True}
    names |= {"blk.6.ffn_up.weight": False, "blk.44.a": False, "blk.4": False, "output.weight": False}
    names |= {"blk.٤.a": False, "blk." + "4" * 5000 + ".a": False}
    assert {name: is_mtp_tensor(config, name) for name in names} == names
    assert not is_mtp_tensor(make_config(), "blk.4.attn_q.weight")


@pytest.mark.parametrize("mix", MIXES)
def test_files_of_every_mix_pass(tmp_path, mix):
    config = make_config(hidden_size=256, num_nextn_layers=1)
    file = open_gguf(make_model(tmp_path / "model.gguf", config, mix=mix))
    check_tensors(file, config)
    for spec in tensor_specs(config):
        check_finite(file, spec.name)
        if spec.role == "matrix":
            values = file.dequantize(spec.name)
            assert 0.01 < values.std() < 2 and abs(values.mean()) < 0.4 * values.std(), spec.name


def test_types_of_the_released_q4_k_m_file(tmp_path):
    shape = dict(hidden_size=256, intermediate_size=256, linear_num_value_heads=16, num_attention_heads=8)
    config = make_config(num_hidden_layers=24, tie_word_embeddings=1, **shape)
    file = open_gguf(make_model(tmp_path / "model.gguf", config, mix="q4_k_m"))
    q6 = {name for name, info in file.tensors.items() if info.type == TensorType.Q6_K}
    assert {name for name in q6 if "attn_v" in name} == {f"blk.{i}.attn_v.weight" for i in (3, 7, 11, 23)}
    down = {0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23}
    assert {name for name in q6 if "ffn_down" in name} == {f"blk.{i}.ffn_down.weight" for i in down}
    counts = Counter(info.type.name for info in file.tensors.values())
    assert counts == {"F32": 133, "Q4_K": 152, "Q5_K": 18, "Q6_K": 17}


def test_copy_as_f32_keeps_metadata_and_values(tmp_path):
    source = open_gguf(make_model(tmp_path / "model.gguf", make_config(hidden_size=256), mix="mixed"))
    copy = open_gguf(copy_as_f32(source.path, tmp_path / "copy.gguf"))
    assert ModelConfig.from_gguf(copy) == ModelConfig.from_gguf(source)
    assert list(copy.metadata) == list(source.metadata)
    for name in source.tensors:
        assert copy.tensors[name].type == TensorType.F32
        np.testing.assert_array_equal(copy.dequantize(name), source.dequantize(name))


def test_the_same_seed_gives_the_same_file(tmp_path):
    first, again, other = (
        make_model(tmp_path / f"{i}.gguf", make_config(), mix="q8mix", seed=seed).read_bytes()
        for i, seed in enumerate((1, 1, 2))
    )
    assert first == again != other


@pytest.fixture
def sound():
    """An open file with the records of the tiny model, without data."""
    config = make_config()
    tensors = {s.name: TensorInfo(s.name, s.shape, TensorType.F32, 0, 0) for s in tensor_specs(config)}
    return GGUFFile(Path("model.gguf"), 0, {}, tensors, np.zeros(0, np.uint8)), config


def refused(error, message, file, config):
    with pytest.raises(error) as caught:
        check_tensors(file, config)
    assert (
        message in str(caught.value) and str(caught.value).startswith("model.gguf: ") and len(str(caught.value)) < 300
    )


def test_every_missing_tensor_is_named(sound):
    file, config = sound
    check_tensors(file, config)
    for name, info in list(file.tensors.items()):
        del file.tensors[name]
        refused(GGUFError, f"{name}: missing tensor, wanted shape {list(info.shape)}", file, config)
        file.tensors[name] = info


@pytest.mark.parametrize("shape", [(95, 64), (64, 96), (96, 64, 1), (6144,)])
def test_wrong_shape(sound, shape):
    file, config = sound
    name = "blk.2.ffn_up.weight"
    file.tensors[name] = dataclasses.replace(file.tensors[name], shape=shape)
    refused(GGUFError, f"{name}: shape {list(shape)}, wanted [96, 64]", file, config)


@pytest.mark.parametrize("tensor_type", [t for t in TensorType if t not in MATRIX_TYPES], ids=lambda t: t.name)
def test_unsupported_matrix_types(sound, tensor_type):
    file, config = sound
    name = "blk.3.attn_q.weight"
    file.tensors[name] = dataclasses.replace(file.tensors[name], type=tensor_type)
    message = (
        f"{name}: type {tensor_type.name} is not supported (supported: F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K"
        " Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 IQ2_XXS IQ2_XS"
        " IQ2_S IQ3_XXS IQ3_S)"
    )
    if tensor_type.name in ("IQ1_S", "IQ1_M", "Q1_0", "TQ1_0", "TQ2_0", "NVFP4"):
        message += f"; take a file with {INSTEAD[tensor_type]}"
    refused(UnsupportedModelError, message, file, config)


def test_vectors_are_not_quantised(sound):
    file, config = sound
    name = "blk.0.ssm_conv1d.weight"
    file.tensors[name] = dataclasses.replace(file.tensors[name], type=TensorType.Q8_0)
    refused(UnsupportedModelError, f"{name}: type Q8_0 is not supported (supported: F32 F16 BF16)", file, config)


@pytest.mark.parametrize("name", ["blk.0.attn_qkv.bias", "rope_freqs.weight", "blk.4.attn_q.weight"])
def test_unknown_tensors(sound, name):
    file, config = sound
    file.tensors[name] = TensorInfo(name, (64,), TensorType.F32, 0, 0)
    refused(UnsupportedModelError, f"{name}: unknown tensor, not part of a qwen35 model", file, config)


def test_half_offsets_are_where_the_scales_are():
    """A NaN in one of the fields makes weights NaN, and so does no other byte."""
    from gguf.quants import dequantize

    for tensor_type, offsets in HALF_OFFSETS.items():
        for offset in range(GGML_QUANT_SIZES[tensor_type][1] - 1):
            block = np.full((1, GGML_QUANT_SIZES[tensor_type][1]), 1, np.uint8)
            block[0, offset : offset + 2] = 0xFF
            with np.errstate(invalid="ignore"):
                is_field = not np.isfinite(dequantize(block, tensor_type)).all()
            assert is_field == any(abs(offset - field) <= 1 and block[0, field + 1] == 0xFF for field in offsets)


@pytest.mark.parametrize("tensor_type", MATRIX_TYPES, ids=lambda t: t.name)
def test_first_non_finite(tensor_type):
    block_bytes = GGML_QUANT_SIZES[tensor_type][1]
    clean = np.full((5, 3 * block_bytes), 0x11, np.uint8)
    assert first_non_finite(clean, tensor_type) is None
    width, fields = 2, HALF_OFFSETS.get(tensor_type, (0,))
    patterns = [np.float16(x).tobytes() for x in (np.nan, np.inf, -np.inf)]
    if tensor_type == TensorType.F32:
        width, patterns = 4, [np.float32(x).tobytes() for x in (np.nan, np.inf, -np.inf)]
    if tensor_type == TensorType.MXFP4:
        width, patterns = 1, [b"\xff", b"\xfc"]
    if tensor_type == TensorType.BF16:
        patterns = [b"\xc0\x7f", b"\x80\x7f", b"\x80\xff"]
    for pattern in patterns:
        for field in fields:
            for row, block in [(0, 0), (3, 1), (4, 2)]:
                rows = clean.copy()
                start = block * block_bytes + field
                rows[row, start : start + width] = np.frombuffer(pattern, np.uint8)
                assert first_non_finite(rows, tensor_type) == row
                rows[4, field : field + width] = np.frombuffer(pattern, np.uint8)
                assert first_non_finite(rows, tensor_type) == row


@pytest.mark.parametrize(
    "tensor_type, largest",
    [
        (TensorType.F32, b"\xff\xff\x7f\x7f"),
        (TensorType.F16, b"\xff\x7b"),
        (TensorType.BF16, b"\x7f\x7f"),
        (TensorType.MXFP4, b"\xfb" + bytes(16)),
    ],
    ids=str,
)
def test_the_largest_finite_values_pass(tensor_type, largest):
    rows = np.frombuffer(largest * 8, np.uint8).reshape(1, -1)
    assert first_non_finite(rows, tensor_type) is None


def test_check_finite_names_tensor_and_row(tmp_path):
    config = make_config()
    path = make_model(tmp_path / "model.gguf", config, mix="q8_0")
    file = open_gguf(path)
    matrix, vector = file.tensors["blk.0.ffn_up.weight"], file.tensors["blk.0.ssm_a"]
    data = bytearray(path.read_bytes())
    data[matrix.offset + 70 * matrix.row_bytes : matrix.offset + 70 * matrix.row_bytes + 2] = b"\x00\x7e"
    data[vector.offset + 4 : vector.offset + 8] = b"\x00\x00\x80\x7f"
    path.write_bytes(data)
    file = open_gguf(path)
    check_finite(file, matrix.name, 0, 70)
    check_finite(file, matrix.name, 71)
    for first_row, num_rows in [(0, None), (64, 32), (70, 1)]:
        with pytest.raises(GGUFError, match="model.gguf: blk.0.ffn_up.weight: row 70 holds NaN or infinity"):
            check_finite(file, matrix.name, first_row, num_rows)
    specs = {spec.name: spec for spec in tensor_specs(config)}
    with pytest.raises(GGUFError, match="model.gguf: blk.0.ssm_a: holds NaN or infinity, wanted finite values"):
        read_vector(file, specs[vector.name])
    assert read_vector(file, specs["blk.0.ssm_dt.bias"]).shape == (4,)
