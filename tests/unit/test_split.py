"""Models split into several files: read as one, from any of them; what is missing or does not fit is one clear line."""

import numpy as np
import pytest

from tests.unit.gguf_bytes import gguf_bytes, record, u32_key
from tools.make_model import make_config, make_model, parts_of
from vkprefill.errors import GGUFError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.gguf.tensors import check_tensors


@pytest.fixture
def parts(tmp_path):
    """A model and its three parts."""
    whole = make_model(tmp_path / "whole.gguf", make_config(hidden_size=256), mix="mixed", seed=2)
    return whole, parts_of(whole, tmp_path / "model", 3)


def write(path, number, count, *, records=(), data=b"", num_tensors=None):
    """A part that holds no model: split keys, and one tensor of 8 floats for each name."""
    said = {"split.no": number - 1, "split.count": count, "split.tensors.count": num_tensors}
    keys = [u32_key(name, value) for name, value in said.items() if value is not None]
    path.write_bytes(gguf_bytes(keys, [record(name, offset=32 * i) for i, name in enumerate(records)], data))


def refused(path, *messages):
    with pytest.raises(GGUFError) as caught:
        open_gguf(path)
    text = str(caught.value)
    assert all(message in text for message in messages) and text.isprintable() and len(text) < 400, text


@pytest.mark.parametrize("given", range(3))
def test_parts_are_read_as_one(parts, given):
    whole, paths = open_gguf(parts[0]), parts[1]
    file = open_gguf(paths[given])
    assert file.path == paths[0] and file.size_bytes == sum(path.stat().st_size for path in paths)
    assert [(i.name, i.shape, i.type) for i in file.tensors.values()] == [
        (i.name, i.shape, i.type) for i in whole.tensors.values()
    ]
    config = ModelConfig.from_gguf(file)
    check_tensors(file, config)
    assert config == ModelConfig.from_gguf(whole)
    for name in whole.tensors:
        np.testing.assert_array_equal(file.data(name), whole.data(name))
        file.release(name, slice(0, whole.info(name).num_rows))
        np.testing.assert_array_equal(file.dequantize(name), whole.dequantize(name))


def test_a_first_part_without_tensors(tmp_path):
    """As splitting programs make it where they are asked to keep the metadata in a file of its own."""
    for number, records, data in ((1, (), b""), (2, ("a",), bytes(32))):
        write(tmp_path / f"m-0000{number}-of-00002.gguf", number, 2, records=records, data=data, num_tensors=1)
    assert list(open_gguf(tmp_path / "m-00002-of-00002.gguf").tensors) == ["a"]


def test_one_part_alone_is_whole(tmp_path):
    (tmp_path / "model.gguf").write_bytes(gguf_bytes([u32_key("split.count", 1)]))
    assert open_gguf(tmp_path / "model.gguf").metadata["split.count"] == 1


def test_missing_part(parts):
    parts[1][1].unlink()
    for given in (parts[1][0], parts[1][2]):
        refused(given, f"{given.name}: part 2 of 3 is missing")


def test_names(parts):
    first, second, _ = parts[1]
    other = first.with_name("renamed.gguf")
    first.rename(other)
    refused(other, "renamed.gguf: part 1 of a model split into 3, wanted a name that ends in -00001-of-00003.gguf")
    refused(second, "part 1 of 3 is missing")
    second.rename(first)
    refused(first, "holds part 2 of 3, wanted 1 of 3 as in its name")


def test_parts_of_another_model(parts, tmp_path):
    first, second, third = parts[1]
    third.write_bytes(parts[0].read_bytes())
    refused(first, f"{third.name}: holds a whole model, wanted part 3 of 3")
    write(third, 3, 4)
    refused(first, f"{third.name}: holds part 3 of 4, wanted part 3 of 3")
    write(third, 3, 3, records=["blk.0.ffn_up.weight"], data=bytes(32))
    refused(first, f"{third.name}: blk.0.ffn_up.weight: tensor is in another part too")
    write(third, 3, 3, records=["blk.9.some"], data=bytes(32))
    refused(first, " tensors in 3 parts, wanted ", "are they of the same model?")
    third.write_bytes(b"GGUF")
    refused(first, f"{third.name}: version: the file ends too early")


@pytest.mark.parametrize(
    "number, count, message",
    [(4, 3, "split.no: found 3, wanted 0 to 2"), (70_000, 65_535, "split.no: found 69999"), (1, 65_535, "is missing")],
)
def test_keys_that_make_no_sense(tmp_path, number, count, message):
    path = tmp_path / f"m-00001-of-{count:05}.gguf"
    write(path, number, count)
    refused(path, message)


def test_keys_of_other_types(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([u32_key("split.no", 1).replace(b"split.no", b"split.xx"), u32_key("split.count", 2)]))
    refused(path, "split.no: found None, wanted 0 to 1")
    negative = u32_key("split.count", 0xFFFFFFFF).replace(b"count\4\0\0\0", b"count\5\0\0\0")
    path.write_bytes(gguf_bytes([negative]))
    refused(path, "split.count: wanted an integer from 0")
