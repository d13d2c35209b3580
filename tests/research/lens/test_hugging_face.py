"""Our points against Hugging Face's model of the same weights, by what it returns and by TransformerLens's hooks."""

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

import vkprefill
from tests.reference.fixtures import model_path, rms
from tests.research.lens.conftest import IDS
from tests.research.lens.hugging_face import hugging_face_model
from vkprefill.engine.microscope.names import local_name

CLOSE = 1e-4  # of the RMS: both are float32, with sums in other orders, through four layers
# What it has no hook for; hook_attn_out of delta-net layers is its linear_attn.hook_out.
OURS_ALONE = {"linear_attn.hook_ssm_state", "hook_attn_out", "hook_logits"}


@pytest.fixture(scope="module", params=["tiny-a-f32", "tiny-c-q4km"])
def path(request):
    return model_path(request.param)


@pytest.fixture(scope="module")
def recorded(path):
    with vkprefill.load(path, kv_type="f32", max_context=256) as model:
        yield model.record(IDS, list(model.points), tokens="all")


def check(name: str, got: torch.Tensor, want: np.ndarray) -> None:
    assert tuple(got.shape) == want.shape, name
    error = np.abs(got.numpy() - want).max() / rms(want)
    assert error <= CLOSE, f"{name}: {error:.1e} of the RMS"


def test_what_it_returns(path, recorded):
    model, ours = hugging_face_model(path), recorded.to_hf()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = model(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True, use_cache=False)
    check("logits", theirs.logits, ours["logits"])
    assert len(theirs.hidden_states) == len(ours["hidden_states"])
    for layer, (got, want) in enumerate(zip(theirs.hidden_states, ours["hidden_states"], strict=True)):
        check(f"hidden_states[{layer}]", got, want)
    (rows,) = (rows for rows in ours["attentions"] if rows is not None)  # theirs are of attention layers alone
    (found,) = theirs.attentions
    check("attentions", found, rows)


def test_every_point_that_transformer_lens_hooks(path, recorded):
    """The same names are the same numbers, but for those that docs/research.md tells apart."""
    model, ours = hugging_face_model(path), recorded.to_transformer_lens()
    bridge = build_bridge_from_module(model, "Qwen3_5ForCausalLM", hf_config=model.config)
    with torch.no_grad():
        _, theirs = bridge.run_with_cache(torch.tensor([IDS]), use_cache=False)
    assert {local_name(name) for name in ours if name not in theirs} == OURS_ALONE
    for name, want in ours.items():
        if name not in theirs:
            continue
        got, kind = theirs[name], local_name(name)
        if kind in ("linear_attn.hook_q", "linear_attn.hook_k"):  # before they are brought to length 1
            got = got / torch.linalg.vector_norm(got, dim=-1, keepdim=True)
        elif kind == "attn.hook_q":  # with the gate, head by head
            got = got.reshape(*want.shape[:-1], 2, want.shape[-1])[..., 0, :]
        elif kind == "attn.hook_attn_scores":  # a large negative number after the token
            masked = np.isneginf(want)
            assert (got.numpy()[masked] < -1e30).all()
            got, want = got.masked_fill(torch.from_numpy(masked), 0), np.where(masked, 0, want)
        elif kind == "ln_final.hook_normalized":  # before the norm's weight
            got = theirs["ln_final.hook_out"]
        check(name, got, want)
