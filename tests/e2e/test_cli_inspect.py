"""vkprefill inspect: the bill of a model's memory, and what it refuses as a load does."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import vkprefill
from tests.e2e.command import assert_error
from tests.e2e.conftest import TINY
from tests.reference.fixtures import FIXTURES, model_path
from tests.unit.gguf_bytes import gguf_bytes, key, string
from tools.make_model import parts_of
from vkprefill.vulkan.probe import choose


@pytest.mark.parametrize("name", FIXTURES)
def test_inspect(cli, name):
    outcome = cli("inspect", "-m", str(model_path(name)), "--json")
    assert (outcome.code, outcome.err) == (0, "")
    result = json.loads(outcome.out)
    bill = result["memory"]
    assert bill["total"] == sum(count for kind, count in bill.items() if kind != "total") > 0
    assert result["file_bytes"] == model_path(name).stat().st_size and result["parameters"] > 100_000
    assert result["max_context"] == result["config"]["max_position_embeddings"]
    smaller = json.loads(
        cli("inspect", "-m", str(model_path(name)), "--json", "-c", "256", "-b", "32", "-ctk", "f32").out
    )
    assert smaller["memory"]["total"] < bill["total"] and smaller["max_context"] == 256


def test_inspect_of_a_split_model(cli_here, tmp_path):
    """The bill, types and size of the whole one, from any part."""
    parts = parts_of(TINY, tmp_path / "split", 2)
    whole, split = (json.loads(cli_here("inspect", "-m", path, "--json").out) for path in (TINY, parts[1]))
    assert split.pop("path") == str(parts[0]) and split.pop("file_bytes") == sum(p.stat().st_size for p in parts)
    assert split == {name: value for name, value in whole.items() if name not in ("path", "file_bytes")}
    parts[0].unlink()
    assert_error(cli_here("inspect", "-m", parts[1]), "part 1 of 2 is missing, wanted it beside the others$")


def test_types_by_share_of_bytes(cli_here):
    path = model_path("tiny-c-q4km")
    shown = json.loads(cli_here("inspect", "-m", path, "--json").out)
    assert set(shown["types"]) == set(shown["type_bytes"]) > {"F32", "Q4_K", "Q6_K"}
    total = sum(shown["type_bytes"].values())
    assert 0.5 * shown["file_bytes"] < total < shown["file_bytes"]
    name, most = max(shown["type_bytes"].items(), key=lambda item: item[1])
    line = next(line for line in cli_here("inspect", "-m", path).out.splitlines() if line.startswith("tensors"))
    assert f"share of bytes (their number): {name} {most / total:.1%} ({shown['types'][name]}), " in line


def test_files_beside_models(cli_here, tmp_path):
    path = tmp_path / "mmproj-F16.gguf"
    path.write_bytes(gguf_bytes([key("general.architecture", 8, string("clip"))]))
    for args in (["inspect", "-m", path], ["generate", "-m", path, "-p", "x"], ["inspect", "-m", TINY, "-md", path]):
        assert_error(cli_here(*args), "mmproj-F16.gguf: a vision projector .*; wanted the model's own file$")


def test_inspect_for_people(cli):
    outcome = cli("inspect", "-m", TINY)
    assert outcome.code == 0 and "total" in outcome.out and "kv_cache" in outcome.out
    assert "tokens, precision half (" in cli("inspect", "-m", TINY, "--precision", "half").out


@pytest.mark.parametrize(
    "options",
    [(), ("-c", "512"), ("-c", "300", "-b", "64", "-ctk", "f32"), ("--precision", "half"), ("--precision", "full")],
    ids=" ".join,
)
def test_inspect_has_the_bill_of_the_device(cli, gpu, options):
    """That of the loaded model; a GPU's timing at load may make a step shorter, never longer."""
    shown = json.loads(cli("inspect", "-m", TINY, "--json", *options).out)
    sizes = {"-c": "max_context", "-b": "prefill_chunk", "-ctk": "kv_type", "--precision": "precision"}
    given = {sizes[name]: value for name, value in zip(options[::2], options[1::2], strict=True)}
    given |= {name: int(value) for name, value in given.items() if value.isdecimal()}
    with vkprefill.load(TINY, **given) as model:
        assert shown["device"] == model.device.info.name and shown["precision"] == model.precision
        assert shown["prefill_chunk"] >= model.prefill_chunk
        if shown["prefill_chunk"] == model.prefill_chunk and shown["max_context"] == model.max_context:
            assert shown["memory"] == {**asdict(model.memory), "total": model.memory.total}


def test_inspect_of_a_device(cli_here, gpu):
    info = choose(None)
    by_name = json.loads(cli_here("inspect", "-m", TINY, "--json", "--device", info.name).out)
    assert by_name["device"] == info.name
    assert_error(cli_here("inspect", "-m", TINY, "--device", "no such device"), "no devices have this in their name")


def test_inspect_refuses_a_context_that_generate_refuses(cli_here, gpu):
    for command in (["inspect"], ["generate", "-p", "hi"]):
        outcome = cli_here(*command, "-m", TINY, "-c", str(1 << 28))
        assert_error(outcome, "in one buffer, which is ")


BROKEN = {  # bytes of the tiny model -> others
    "tokenizer": (b"gpt2", b"gpt9"),
    "template's syntax": (b"{% endfor %}", b"{% endfob %}"),
    "template that fails": (b"m['role'] }}", b"m.get(9)() "),
    "template's type": (b"chat_template\x08", b"chat_template\x0b"),
    "tensor's type": (
        b"output_norm.weight\1\0\0\0@" + b"\0" * 11,
        b"output_norm.weight\1\0\0\0@" + b"\0" * 7 + b"\x0a\0\0\0",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_inspect_refuses_what_generate_refuses(cli_here, gpu, tmp_path, what):
    path = tmp_path / "broken.gguf"
    whole = Path(TINY).read_bytes()
    assert whole.count(BROKEN[what][0]) == 1
    path.write_bytes(whole.replace(*BROKEN[what]))
    refused = cli_here("generate", "-m", path, "-p", "Hello", "-n", "1", "-c", "256")
    assert_error(refused, "broken.gguf|chat template|tokenizer")
    outcome = cli_here("inspect", "-m", path)
    assert (outcome.code, outcome.out, outcome.error_lines) == (1, "", refused.error_lines)


@pytest.mark.parametrize("args", (("-c", "0"), ("-b", "0"), ("-b", "4097"), ("-ctk", "f16", "-ctv", "f32")))
def test_bad_settings_of_inspect(cli_here, args):
    assert_error(cli_here("inspect", "-m", TINY, *args), "^Error: -[cb]: .*, wanted 1 to|same type")
