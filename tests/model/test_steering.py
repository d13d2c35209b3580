"""Control vectors: a steered model equals one whose runs are edited at the same points."""

import argparse

import gguf
import numpy as np
import pytest

import vkprefill
from tests.reference.fixtures import model_path
from vkprefill import Edit, GGUFError, RequestError, Steer
from vkprefill.cli.steer_options import add_steer_option, steers

MODEL = "tiny-c-q4km"
BAD_LAYERS = (-1, 2), 3, (1,), (), (1, 2, 3), (0, 1.5), "12", (True, 2)
OPTIONS = {"kv_type": "f32", "max_context": 512, "prefill_chunk": 32}


def write(path, vectors: dict[str, np.ndarray]) -> str:
    writer = gguf.GGUFWriter(path, "controlvector")
    for name, vector in vectors.items():
        writer.add_tensor(name, vector)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.fixture(scope="module")
def vectors() -> dict[int, np.ndarray]:
    rng = np.random.default_rng(4)
    return {layer: rng.standard_normal(256).astype(np.float32) for layer in (1, 2, 3)}


@pytest.fixture(scope="module")
def file(vectors, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("vectors") / "some.gguf"
    return write(path, {f"direction.{layer}": vector for layer, vector in vectors.items()})


def test_a_steered_model_is_an_edited_one(load_model, prompt, vectors, file):
    """Two files' worth: all layers, and one of them once more; in chunks, in decode, and with points recorded."""
    plain = load_model(MODEL, **OPTIONS)
    steer = [Steer(file, 0.5), Steer(file, -2, (2, 2))]
    strengths = {1: 0.5, 2: -1.5, 3: 0.5}
    edits = [Edit(("resid_post", i), add=np.float32(strengths[i]) * vectors[i]) for i in strengths]
    want = plain.record(prompt[:40], "resid_post", steps="both", max_tokens=3, edits=edits)
    with vkprefill.load(model_path(MODEL), plain.device, steer=steer, **OPTIONS) as steered:
        cache = steered.new_cache()
        logits = steered.prefill(prompt[:40], cache=cache)
        generated = []
        for _ in want.generated_ids:
            generated.append(int(logits.argmax()))
            logits = steered.decode(generated[-1], cache)
        cache.close()
        seen = steered.record(prompt[:40], "resid_post", steps="both", max_tokens=3)
        bill = steered.memory
        assert plain.device.allocated["points"] == bill.points > plain.memory.points == 0
        assert seen.memory.points > bill.points and bill.total - bill.points == plain.memory.total
    assert generated == want.generated_ids == seen.generated_ids
    close = 1e-5 * np.abs(want.logits).max()  # -2 + 0.5 at once, or one after the other
    assert np.abs(logits - want.logits).max() <= close
    for name in want:
        assert np.abs(seen[name] - want[name]).max() <= 1e-5 * np.abs(want[name]).max()
    assert np.abs(plain.prefill(prompt[:40]) - want.logits).max() > 0.1
    assert not plain.device.allocated["points"], "given back"


def test_files_and_layers_that_do_not_fit(load_model, tmp_path, file):
    device = load_model(MODEL, **OPTIONS).device
    ones = np.ones(256, np.float32)
    bad = {
        "none": ({"other": ones}, GGUFError, "no tensor is named direction.N"),
        "width": ({"direction.1": ones[:128]}, RequestError, r"F32 of shape \[128\], wanted F32 of \[256\]"),
        "half": ({"direction.1": ones.astype(np.float16)}, RequestError, "F16 of shape"),
        "layer": ({"direction.9": ones}, RequestError, "direction.9: wanted layers 1 to 3"),
        "nan": ({"direction.1": np.nan * ones}, GGUFError, "not all of it is finite"),
    }
    for name, (tensors, error, message) in bad.items():
        steer = [Steer(write(tmp_path / f"{name}.gguf", tensors))]
        with pytest.raises(error, match=message):
            vkprefill.load(model_path(MODEL), device, steer=steer, **OPTIONS)
    for steer, message in (([Steer(file, 1, (2, 9))], "layer 9, wanted 0 to 3"), (["text"], "found str, wanted Steer")):
        with pytest.raises(RequestError, match=message):
            vkprefill.load(model_path(MODEL), device, steer=steer, **OPTIONS)
    with pytest.raises(GGUFError, match="cannot be read"):
        vkprefill.load(model_path(MODEL), device, steer=[Steer(str(tmp_path / "gone.gguf"))], **OPTIONS)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"layers": layers}, "layers: found .*, wanted .first, last., from 0 on") for layers in BAD_LAYERS),
        ({"layers": (3, 1)}, "layers 3-1: the first is after the last"),
        *(({"strength": bad}, f"strength: found '?{bad}'?, wanted a number") for bad in ("x", np.nan, np.inf, True)),
        ({"strength": 1e39}, r"strength: found 1e\+39, wanted a number from -3.4"),
        ({"path": 3}, "steer: found 3, wanted the path of a file"),
    ],
)
def test_what_python_is_refused(options, message):
    with pytest.raises(RequestError, match=f"steer: .*{message}" if "path" not in options else message):
        Steer(**{"path": "a.gguf", **options})


@pytest.mark.filterwarnings("error")
def test_the_sum_is_finite(load_model, file):
    """One need not be a list."""
    device = load_model(MODEL, **OPTIONS).device
    for steer, message in (
        (Steer(file, 3e38), "steer: layer 1: strengths times directions are not finite float32"),
        (5, "steer: found 5, wanted Steer"),
    ):
        with pytest.raises(RequestError, match=message):
            vkprefill.load(model_path(MODEL), device, steer=steer, **OPTIONS)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a.gguf:0.5", Steer("a.gguf", 0.5)),
        ("a.gguf:-1", Steer("a.gguf", -1)),
        ("C:/a b.gguf:1e-1:3", Steer("C:/a b.gguf", 0.1, (3, 3))),
        ("a:1:b.gguf:2:10-20", Steer("a:1:b.gguf", 2, (10, 20))),
    ],
)
def test_what_the_option_says(text, want):
    parser = argparse.ArgumentParser()
    add_steer_option(parser)
    assert steers(parser.parse_args(["--steer", text])) == (want,)
    assert steers(argparse.Namespace()) == ()


@pytest.mark.parametrize(
    "text", ["a.gguf", "a.gguf:", "a.gguf:much", ":1", "a.gguf:1:x", "a.gguf:1:5-2", "a.gguf:1.2.3", "a.gguf:1e39"]
)
def test_what_the_option_does_not_take(text):
    with pytest.raises(RequestError, match="steer: "):
        Steer.parse(text)
