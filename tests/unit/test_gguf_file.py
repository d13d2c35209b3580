"""The GGUF parser: agreement with package gguf on sound files, one clear error for each kind of damage."""

import os
import struct
import time

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as TensorType
from gguf import GGUFValueType as ValueType

from tests.unit.gguf_bytes import array_key, gguf_bytes, key, record, string, u32, u32_key, u64
from tools.make_model import make_config, make_model
from vkprefill.display import printable
from vkprefill.errors import GGUFError, RequestError, UnsupportedModelError
from vkprefill.gguf.file import open_gguf
from vkprefill.gguf.header import MAX_ARRAY_ITEMS

SCALARS = [
    (ValueType.UINT8, "B", 200),
    (ValueType.INT8, "b", -100),
    (ValueType.UINT16, "<H", 60000),
    (ValueType.INT16, "<h", -30000),
    (ValueType.UINT32, "<I", 4_000_000_000),
    (ValueType.INT32, "<i", -2_000_000_000),
    (ValueType.UINT64, "<Q", 1 << 63),
    (ValueType.INT64, "<q", -(1 << 62)),
    (ValueType.FLOAT32, "<f", 0.25),
    (ValueType.FLOAT64, "<d", 0.1),
    (ValueType.BOOL, "?", True),
]


@pytest.fixture
def write(tmp_path):
    def write_bytes(data: bytes):
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return write_bytes


@pytest.mark.parametrize("mix, tied", [("f32", 1), ("q4_k_m", 0), ("mixed", 0)])
def test_agrees_with_package_gguf(tmp_path, mix, tied):
    config = make_config(hidden_size=256, num_nextn_layers=1, tie_word_embeddings=tied)
    path = make_model(tmp_path / "model.gguf", config, mix=mix, seed=3)
    file, reader = open_gguf(path), gguf.GGUFReader(path)

    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for name, field in fields.items():
        value = file.metadata[name]
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents(), name

    assert file.size_bytes == os.path.getsize(path)
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        info = file.tensors[tensor.name]
        assert info.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert (info.type, info.offset, info.num_bytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
        data = file.data(tensor.name)
        assert data.shape == (info.num_rows, info.row_bytes) and data.tobytes() == tensor.data.tobytes()
        values = file.dequantize(tensor.name)
        assert values.shape == info.shape and values.dtype == np.float32
        np.testing.assert_array_equal(values.ravel(), gguf.quants.dequantize(tensor.data, tensor.tensor_type).ravel())


@pytest.mark.parametrize("value_type, code, value", SCALARS, ids=lambda x: getattr(x, "name", None))
def test_scalars_and_arrays_of_every_type(write, value_type, code, value):
    packed = struct.pack(code, value)
    keys = [key("one", value_type, packed), array_key("three", value_type, packed * 3, 3)]
    metadata = open_gguf(write(gguf_bytes(keys))).metadata
    assert metadata["one"] == pytest.approx(value) and type(metadata["one"]) is type(value)
    assert metadata["three"].tolist() == [metadata["one"]] * 3
    assert not metadata["three"].flags.writeable


def test_strings_and_empty_arrays(write):
    keys = [
        key("text", ValueType.STRING, string("Ġhé\n")),
        array_key("texts", ValueType.STRING, string("a") + string("") + string("ü"), 3),
        array_key("none", ValueType.UINT32, b"", 0),
    ]
    metadata = open_gguf(write(gguf_bytes(keys))).metadata
    assert metadata["text"] == "Ġhé\n" and metadata["texts"] == ["a", "", "ü"] and metadata["none"].size == 0


@pytest.mark.parametrize("version", [2, 3])
def test_alignment_and_versions(write, version):
    values = np.arange(8, dtype="<f4")
    data = gguf_bytes(
        [u32_key("general.alignment", 128)], [record("a")], values.tobytes(), version=version, alignment=128
    )
    file = open_gguf(write(data))
    assert file.tensors["a"].offset % 128 == 0
    np.testing.assert_array_equal(file.dequantize("a"), values)
    assert not file.data("a").flags.writeable


def test_no_keys_and_no_tensors(write):
    file = open_gguf(write(gguf_bytes()))
    assert file.metadata == {} and file.tensors == {}


def test_missing_tensor(write):
    with pytest.raises(GGUFError, match="model.gguf: blk.0.ffn_up.weight: missing tensor$"):
        open_gguf(write(gguf_bytes())).data("blk.0.ffn_up.weight")


def test_type_without_decoder(write):
    file = open_gguf(write(gguf_bytes([], [record("a", (256,), TensorType.Q8_K)], bytes(292))))
    with pytest.raises(UnsupportedModelError, match="a: type Q8_K cannot be decoded"):
        file.dequantize("a")


TEXT = ValueType.STRING
HUGE = (1 << 64) - 1
DAMAGED = {
    "empty": (b"", "is empty"),
    "magic": (gguf_bytes(magic=b"GGML"), "starts with b'GGML', wanted b'GGUF': not a GGUF file"),
    "short magic": (b"GG", "starts with b'GG', wanted b'GGUF'"),
    "version cut": (b"GGUF\x03", "version: the file ends too early"),
    "counts cut": (b"GGUF" + u32(3) + u64(0) + b"\x01", "key count: the file ends too early"),
    "key count": (gguf_bytes(num_keys=HUGE), f"key count {HUGE}, but the 8 bytes that follow hold at most 0"),
    "tensor count": (gguf_bytes(num_tensors=1 << 40), "tensor count 1099511627776, but the 8 bytes that follow"),
    "key name length": (gguf_bytes([u64(HUGE) + bytes(40)]), f"key 0: name of {HUGE} bytes, wanted 1 to 255"),
    "key name empty": (gguf_bytes([u32_key("", 1)]), "key 0: name of 0 bytes, wanted 1 to 255"),
    "key name bytes": (gguf_bytes([key(b"a\xff", 4, u32(1))]), r"key 0: name b'a\xff' is not printable UTF-8"),
    "key name control": (gguf_bytes([u32_key("a\nb", 1)]), r"key 0: name b'a\nb' is not printable UTF-8"),
    "key twice": (gguf_bytes([u32_key("a", 1), u32_key("a", 1)]), "a: key occurs twice"),
    "value type": (gguf_bytes([key("a", 13, bytes(8))]), "a: value type 13, wanted 0 to 12"),
    "value cut": (gguf_bytes([key("ab", ValueType.UINT64, b"")], alignment=1), "ab: the file ends too early"),
    "bool": (gguf_bytes([key("a", ValueType.BOOL, b"\x02")]), "a: bool of value 2, wanted 0 or 1"),
    "bool in array": (
        gguf_bytes([array_key("a", ValueType.BOOL, b"\x00\x07", 2)]),
        "a: bool of value 7, wanted 0 or 1",
    ),
    "string length": (
        gguf_bytes([key("a", TEXT, u64(HUGE))]),
        "a: string 0 of 1 goes beyond the end of the file",
    ),
    "string bytes": (gguf_bytes([key("a", TEXT, string(b"\xc3("))]), "a: string 0 is not UTF-8"),
    "item type": (gguf_bytes([array_key("a", 77, b"", 0)]), "a: value type 77, wanted 0 to 12"),
    "array count": (
        gguf_bytes([array_key("a", ValueType.FLOAT64, bytes(16), 1 << 61)]),
        "a: array of 2305843009213693952",
    ),
    "array too long": (
        gguf_bytes([array_key("a", ValueType.UINT8, bytes(MAX_ARRAY_ITEMS + 1), MAX_ARRAY_ITEMS + 1)]),
        f"a: array of {MAX_ARRAY_ITEMS + 1} items, wanted at most {MAX_ARRAY_ITEMS}",
    ),
    "array cut": (
        gguf_bytes([array_key("a", ValueType.UINT32, bytes(8), 3)], alignment=1),
        "array of 3 items, wanted at most 2",
    ),
    "item bytes": (gguf_bytes([array_key("a", TEXT, string("x") + string(b"\xff"), 2)]), "a: string 1 is not UTF-8"),
    "item length": (
        gguf_bytes([array_key("a", TEXT, string("x") + u64(999), 2)]),
        "a: string 1 of 2 goes beyond the end of the file",
    ),
    "item length cut": (
        gguf_bytes([array_key("a", TEXT, string("12345678") + b"\x01", 2)], alignment=1),
        "a: string 1 of 2 goes beyond the end of the file",
    ),
    "alignment type": (
        gguf_bytes([key("general.alignment", TEXT, string("32"))]),
        "general.alignment: found 32, wanted a power of two from 8",
    ),
    "alignment bool": (
        gguf_bytes([key("general.alignment", ValueType.BOOL, b"\x01")]),
        "found True, wanted a power of two",
    ),
    "alignment 0": (gguf_bytes([u32_key("general.alignment", 0)]), "found 0, wanted a power of two from 8"),
    "alignment 48": (gguf_bytes([u32_key("general.alignment", 48)]), "found 48, wanted a power of two from 8"),
    "tensor name": (gguf_bytes([], [record(b"\x1b[2J")]), r"tensor 0: name b'\x1b[2J' is not printable UTF-8"),
    "tensor twice": (gguf_bytes([], [record("a"), record("a", offset=32)], bytes(64)), "a: tensor name occurs twice"),
    "no dims": (gguf_bytes([], [record("a", ()) + bytes(8)]), "a: 0 dimensions, wanted 1 to 4"),
    "five dims": (gguf_bytes([], [record("a", (1,) * 5)]), "a: 5 dimensions, wanted 1 to 4"),
    "many dims": (
        gguf_bytes([], [string("a") + u32(0xFFFFFFFF) + bytes(32)]),
        "a: 4294967295 dimensions, wanted 1 to 4",
    ),
    "size 0": (gguf_bytes([], [record("a", (8, 0))]), "a: a dimension of size 0 in [8, 0], wanted at least 1"),
    "sizes overflow": (
        gguf_bytes([], [record("a", (1 << 32, 1 << 32))]),
        "a: data ends at byte 73786976294838206560, but the file ends at byte 96",
    ),
    "row length": (
        gguf_bytes([], [record("a", (250, 2), TensorType.Q6_K)], bytes(420)),
        "a: row of 250 values, wanted a multiple of 256, the block of Q6_K",
    ),
    "offset": (gguf_bytes([], [record("a", offset=16)], bytes(64)), "a: data offset 16, wanted a multiple of 32"),
    "offset overflow": (gguf_bytes([], [record("a", offset=(1 << 64) - 32)], bytes(64)), "but the file ends at byte"),
    "data cut": (
        gguf_bytes([], [record("a", (8,))], bytes(31)),
        "a: data ends at byte 96, but the file ends at byte 95; is the download complete?",
    ),
    "overlap": (
        gguf_bytes([], [record("b", (8,), offset=32), record("a", (9,))], bytes(64)),
        "b: data overlaps that of a",
    ),
    "same data": (gguf_bytes([], [record("a"), record("b")], bytes(32)), "b: data overlaps that of a"),
    "record cut": (
        gguf_bytes([], [record("a")[:-1]], alignment=1, num_tensors=1),
        "the 32 bytes that follow hold at most 0",
    ),
    "long name": (
        gguf_bytes([key("k" * 255, 99, bytes(8))]),
        "k" * 30 + "..." + "k" * 30 + ": value type 99",
    ),
}
UNSUPPORTED = {
    "version 1": (gguf_bytes(version=1), "GGUF version 1, wanted 2 or 3"),
    "version 4": (gguf_bytes(version=4), "GGUF version 4, wanted 2 or 3"),
    "big-endian": (gguf_bytes(version=3 << 24), "big-endian GGUF file, wanted little-endian"),
    "nested array": (
        gguf_bytes([array_key("a", ValueType.ARRAY, u32(4) + u64(1) + u32(1), 1)]),
        "a: arrays of arrays are not supported",
    ),
    "tensor type": (gguf_bytes([], [record("a", (8,), 4)], bytes(32)), "a: unknown tensor type 4"),
}


@pytest.mark.parametrize("data, message", DAMAGED.values(), ids=DAMAGED)
def test_damage(write, data, message):
    with pytest.raises(GGUFError) as caught:
        open_gguf(write(data))
    check_message(caught, message)


@pytest.mark.parametrize("data, message", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_sound_but_unsupported(write, data, message):
    with pytest.raises(UnsupportedModelError) as caught:
        open_gguf(write(data))
    check_message(caught, message)


def check_message(caught, message):
    text = str(caught.value)
    assert message in text and "model.gguf: " in text
    assert text.isprintable() and len(text) < 300


@pytest.mark.parametrize("path", [None, 3, b"model.gguf", "", ["model.gguf"]])
def test_what_is_no_path(path):
    with pytest.raises(RequestError, match="^GGUF file: found .*, wanted a path$"):
        open_gguf(path)


def test_paths_that_cannot_be_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name, message in [
        ("absent.gguf", "absent.gguf: cannot be read: no such file or directory"),
        ("", "is a directory, wanted a GGUF file"),
        ("fifo", "fifo: is not a regular file, wanted a GGUF file"),
        ("a\0b", "cannot be read: .*embedded null (byte|character)"),
        ("x" * 300, "cannot be read: file name too long"),
    ]:
        with pytest.raises(GGUFError, match=message) as caught:
            open_gguf(tmp_path / name)
        assert str(caught.value).isprintable()


def test_no_permission(write, request):
    path = write(gguf_bytes())
    path.chmod(0)
    request.getfixturevalue("unprivileged")
    with pytest.raises(GGUFError, match="cannot be read: permission denied"):
        open_gguf(path)


def test_printable():
    assert printable("a b") == "a b"
    assert printable("a\nb\x1b") == r"'a\nb\x1b'"
    assert len(printable("x" * 1000, 60)) <= 60
    assert printable([1, 2]) == "[1, 2]"


def test_header_of_a_real_vocabulary_is_read_in_seconds(write):
    start = time.process_time()
    tokens = [f"Ġtoken{i}" for i in range(248_320)]
    merges = [f"Ġto ken{i}" for i in range(247_587)]
    keys = [
        array_key("tokenizer.ggml.tokens", TEXT, b"".join(map(string, tokens)), len(tokens)),
        array_key("tokenizer.ggml.merges", TEXT, b"".join(map(string, merges)), len(merges)),
        array_key("tokenizer.ggml.token_type", ValueType.INT32, bytes(4 * len(tokens)), len(tokens)),
    ]
    path = write(gguf_bytes(keys))
    written = time.process_time()
    metadata = open_gguf(path).metadata
    read_s, write_s = time.process_time() - written, written - start
    assert metadata["tokenizer.ggml.tokens"] == tokens and metadata["tokenizer.ggml.merges"] == merges
    assert read_s < 10 * write_s  # half of it where this was written; one numpy object a string takes 70 times as long
