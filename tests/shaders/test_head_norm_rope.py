import numpy as np
import pytest

from tests.reference import fixtures, norm, rope
from tests.shaders.run_kernel import ELEMENTWISE, check
from tests.shaders.same_input_kernels import check_on_llama_cpp, head_norm_rope, reference_model, rope_table, weight

EPS, BASE = 1e-6, 1e7


@pytest.mark.parametrize("gated", [False, True])  # the heads of a joint projection lie 2 Dh apart
@pytest.mark.parametrize(
    ("tokens", "heads", "dim", "rotary"),
    [
        (1, 1, 256, 64),
        (2, 3, 32, 8),
        (63, 2, 64, 64),
        (64, 1, 36, 4),
        (65, 5, 80, 20),
        (127, 2, 36, 34),
        (200, 4, 128, 2),
    ],
)
def test_heads(device, tokens, heads, dim, rotary, gated):
    rng = np.random.default_rng(dim)
    x = (
        rng.standard_normal((tokens, heads, 1 + gated, dim)) * np.exp(rng.uniform(-8, 3, (tokens, heads, 1, 1)))
    ).astype(np.float32)
    if gated:
        x[:, :, 1] = np.nan  # the gates are none of this kernel's business
    weight = rng.uniform(0.3, 2, dim).astype(np.float32)
    positions = np.cumsum(rng.integers(1, 900, tokens))
    y = head_norm_rope(
        device,
        x.reshape(tokens, -1),
        weight,
        rope_table(positions, rotary, BASE),
        heads=heads,
        eps=EPS,
        num_rows=tokens + 2,
    )
    expected = rope.rotate(norm.rms_norm(x[:, :, 0].astype(float), weight.astype(float), EPS), positions, rotary, BASE)
    check(f"head_norm_rope T {tokens}, {heads} heads of {dim}, R {rotary}, gated {gated}", y, expected, ELEMENTWISE)


def test_llama_cpp(device):
    check_on_llama_cpp(device, "Qcur_normed", "Qcur", "Kcur")


@pytest.mark.parametrize("name", fixtures.FIXTURES)
def test_llama_cpp_norm_and_rotary_together(device, name):
    model, case = reference_model(name), fixtures.load_case(name, "p7")
    for layer in (i for i in range(model.layer_count) if not model.recurrent[i]):
        table = rope_table(case.positions, model.rotary_dims, model.rope_base)
        norm_weight = weight(model, layer, "attn_q_norm.weight")
        y = head_norm_rope(
            device, case.arrays[f"Qcur_full-{layer}"], norm_weight, table, heads=model.heads, eps=model.eps
        )
        check(f"{name} Qcur-{layer} from Qcur_full", y, case.arrays[f"Qcur-{layer}"], ELEMENTWISE)
