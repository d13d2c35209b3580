"""The multi-token-prediction block in files: found, refused, and told apart from a model by content."""

import dataclasses

import numpy as np
import pytest
from gguf import GGMLQuantizationType as TensorType

from tests.reference.fixtures import MTP_FIXTURES, model_path
from tools.make_model import companion_of, copy_as_f32, make_config, make_model
from vkprefill.errors import GGUFError, UnsupportedModelError
from vkprefill.gguf.config import ModelConfig, is_companion
from vkprefill.gguf.file import GGUFFile, TensorInfo, open_gguf
from vkprefill.gguf.mtp import find_block, has_block
from vkprefill.gguf.tensors import check_tensors, mtp_specs, tensor_specs


def opened(path, trunk=None) -> tuple[GGUFFile, ModelConfig]:
    file = open_gguf(path)
    return file, ModelConfig.from_gguf(file, trunk)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A tiny model with a block, the same without one, the block alone."""
    folder = tmp_path_factory.mktemp("mtp")
    whole = make_model(folder / "whole.gguf", make_config(num_nextn_layers=1))
    plain = make_model(folder / "plain.gguf", make_config())
    return whole, plain, companion_of(whole, folder / "block.gguf")


@pytest.mark.parametrize("shape, tensors, millions", [("0.8B", 335, 20.46), ("4B", 441, None)])
def test_counts_of_released_files(shape, tensors, millions):
    config = make_config(shape, num_nextn_layers=1)
    needed, optional = mtp_specs(config, config.num_hidden_layers)
    assert (len(needed), len(optional)) == (14, 3)
    assert len(tensor_specs(config)) + len(needed) + 1 == tensors, "released files have the norm of the head"
    if millions:
        assert sum(np.prod(spec.shape) for spec in needed) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name, tensors", [*zip(MTP_FIXTURES, (15, 15, 16), strict=True)])
def test_blocks_of_llama_cpp_files(name, tensors):
    file, config = opened(model_path(name))
    check_tensors(file, config)
    block = find_block(file, config, "auto")
    assert (len(block.specs), block.layer) == (tensors, config.num_hidden_layers)
    own = {spec.name.split("nextn.")[1] for spec in block.specs if "nextn" in spec.name}
    assert ("embed_tokens.weight" in own) == ("shared_head_head.weight" in own) == (name == "mtp-c-mixed")
    assert find_block(file, config, None) is None


def test_whole_files_and_companions(files, caplog):
    whole, plain, block = files
    file, config = opened(whole)
    assert has_block(file, config) and not is_companion(file)
    assert find_block(file, config, "auto").file is file
    for path in (whole, plain):
        file, config = opened(path)
        caplog.clear()
        assert find_block(file, config, block).file.path == block, "a companion wins over the file's own block"
        told = f"{block}: its multi-token-prediction block is used in place of that of {whole}"
        assert caplog.messages == ([told] if path == whole else [])
    assert find_block(*opened(plain), "auto") is None
    assert find_block(*opened(plain), whole).file.path == whole, "the block of another whole file does as well"


def refused(call, error, *parts):
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert all(part in text for part in parts) and text.isprintable() and len(text) < 300, text


def test_a_companion_is_no_model(files, tmp_path):
    alone = companion_of(files[0], tmp_path / "alone.gguf", copies=False)
    for path in (files[2], alone):
        assert is_companion(open_gguf(path))
        parts = (f"{path.name}: ", "block alone", "wanted a model")
        refused(lambda path=path: opened(path), UnsupportedModelError, *parts)


def test_a_companion_without_copies(files, tmp_path):
    """The block's tensors alone: its vocabulary is the model's, and a matrix of its own must have that too."""
    path = companion_of(files[0], tmp_path / "alone.gguf", copies=False)
    assert len(open_gguf(path).tensors) == 15
    for model in files[:2]:
        block = find_block(*opened(model), path)
        assert (block.file.path, block.layer, len(block.specs)) == (path, 4, 15)
    other = make_model(tmp_path / "other.gguf", make_config(hidden_size=96))
    refused(lambda: find_block(*opened(other), path), UnsupportedModelError, "embedding_length 64, wanted 96")
    mixed = companion_of(model_path("mtp-c-mixed"), tmp_path / "mixed.gguf", copies=False)
    assert len(find_block(*opened(model_path("mtp-c-mixed")), mixed).specs) == 16
    file, config = opened(model_path("mtp-c-mixed"))
    larger = dataclasses.replace(config, vocab_size=config.vocab_size + 32)
    refused(lambda: find_block(file, larger, mixed), GGUFError, "mixed.gguf: blk.3.nextn.embed_tokens.weight: shape")


def test_no_block_where_one_is_wanted(files):
    plain = opened(files[1])
    refused(lambda: find_block(*plain, files[1]), UnsupportedModelError, "plain.gguf: no multi-token-prediction block")
    refused(lambda: find_block(*plain, files[1].with_name("none")), GGUFError, "none")


@pytest.mark.parametrize(
    "size, value, name",
    [
        ("hidden_size", 96, "embedding_length"),
        ("vocab_size", 352, "vocabulary size"),
        ("num_hidden_layers", 8, "trunk layers"),
        ("intermediate_size", 128, "feed_forward_length"),
        ("num_attention_heads", 8, "attention.head_count"),
        ("num_key_value_heads", 4, "attention.head_count_kv"),
        ("head_dim", 64, "attention.key_length"),
        ("rotary_dim", 16, "rope.dimension_count"),
    ],
)
def test_companions_of_other_models(files, tmp_path, size, value, name):
    model = make_config(num_nextn_layers=1)
    other = make_model(tmp_path / "other.gguf", make_config(num_nextn_layers=1, **{size: value}))
    companion = companion_of(other, tmp_path / "companion.gguf")
    wanted = getattr(model, size)
    message = f"block with {name} {value}, wanted {wanted} as in "
    refused(lambda: find_block(*opened(files[0]), companion), UnsupportedModelError, "companion.gguf: ", message)


def changed(path, change) -> tuple[GGUFFile, ModelConfig]:
    file = open_gguf(path)
    config = make_config(num_nextn_layers=1)
    tensors = dict(file.tensors)
    change(tensors)
    return dataclasses.replace(file, tensors=tensors), config


def test_damaged_blocks(files, caplog):
    """The model runs without: a file with a block that cannot be used is as good as one without."""
    eh_proj = "blk.4.nextn.eh_proj.weight"
    strange = TensorInfo("blk.4.attn_q.bias", (64,), TensorType.F32, 0, 0)
    damages = {
        "missing tensor, wanted shape [64, 128]": lambda tensors: tensors.pop(eh_proj),
        "shape [64, 64], wanted [64, 128]": lambda tensors: tensors.update(
            {eh_proj: dataclasses.replace(tensors[eh_proj], shape=(64, 64))}
        ),
        "type IQ1_S is not supported": lambda tensors: tensors.update(
            {eh_proj: dataclasses.replace(tensors[eh_proj], type=TensorType.IQ1_S)}
        ),
        "attn_q.bias: unknown tensor": lambda tensors: tensors.update({strange.name: strange}),
    }
    for message, damage in damages.items():
        file, config = changed(files[0], damage)
        check_tensors(file, config)
        caplog.clear()
        assert find_block(file, config, "auto") is None
        assert message in caplog.text and "runs without its multi-token-prediction block" in caplog.text


def test_strange_tensors_in_a_companion(files, monkeypatch):
    strange = TensorInfo("blk.3.attn_q.weight", (64,), TensorType.F32, 0, 0)
    block, _ = changed(files[2], lambda tensors: tensors.update({strange.name: strange}))
    monkeypatch.setattr("vkprefill.gguf.mtp.open_gguf", lambda path: block)
    refused(lambda: find_block(*opened(files[0]), files[2]), UnsupportedModelError, "blk.3.attn_q.weight: unknown")


@pytest.mark.parametrize(
    ("name", "tied", "wanted"),
    [
        ("output_norm.weight", False, "[64] as in"),
        ("output.weight", False, "[320, 64] as in"),
        ("output.weight", True, "none, since its head is its embedding, as in"),
    ],
)
def test_copies_in_a_companion(files, tmp_path, monkeypatch, name, tied, wanted):
    """Of the trunk's tensors: left out, or as the model has them."""
    model = make_model(tmp_path / "m.gguf", make_config(tie_word_embeddings=True)) if tied else files[1]

    def with_copy(info: TensorInfo | None) -> None:
        def change(tensors: dict[str, TensorInfo]) -> None:
            tensors.pop(name, None)
            tensors.update({name: info} if info else {})

        monkeypatch.setattr("vkprefill.gguf.mtp.open_gguf", lambda path: changed(files[2], change)[0])

    with_copy(None)
    assert find_block(*opened(model), files[2]).layer == 4
    with_copy(TensorInfo(name, (320, 65), TensorType.F32, 0, 0))
    message = f"block.gguf: {name}: shape [320, 65], wanted {wanted} "
    refused(lambda: find_block(*opened(model), files[2]), UnsupportedModelError, message, model.name)


def test_a_companion_of_other_types_fits(files, tmp_path):
    half = make_model(tmp_path / "q8.gguf", make_config(num_nextn_layers=1), mix="q8_0")
    companion = companion_of(half, tmp_path / "companion.gguf")
    block = find_block(*opened(files[0]), companion)
    assert block.file.info("blk.4.nextn.eh_proj.weight").type == TensorType.Q8_0
    assert find_block(*opened(files[0]), copy_as_f32(companion, tmp_path / "f32.gguf")).layer == 4


def test_a_key_without_tensors(files, caplog):
    """Some files keep the key and leave the block out: that is said, once, where the block would be used."""
    file, config = changed(
        files[0], lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("blk.4.")]
    )
    check_tensors(file, config)
    assert config.num_nextn_layers == 1 and find_block(file, config, "auto") is None
    told = "block is counted (nextn_predict_layers 1), but no tensor of it is there (blk.4.*); the model runs without"
    assert len(caplog.messages) == 1 and told in caplog.text
    caplog.clear()
    assert find_block(file, config, None) is None and find_block(file, config, files[2]).layer == 4
    assert not caplog.messages
