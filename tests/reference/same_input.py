"""Single operations with llama.cpp's input and llama.cpp's output: the p7 case stores both.

A shader fed with the inputs must give the output; the limit is that of one float32 kernel on the same input. These see
what the whole model hides, such as the place of an epsilon.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.reference import activations, attention, conv, delta_rule, fixtures, norm, rope
from tests.reference.forward import ReferenceModel


@dataclass(frozen=True)
class Operation:
    """One stored array and how to get it from other stored arrays of the same layer."""

    output: str
    inputs: tuple[str, ...]
    limit: float  # part of the RMS of the stored output
    # model (weights, sizes), layer, input arrays as float64 -> the output
    compute: Callable[..., np.ndarray]


def _weight(model: ReferenceModel, layer: int, name: str) -> np.ndarray:
    return model.weights[f"blk.{layer}.{name}"]


def _heads(model: ReferenceModel, active: np.ndarray, first: int) -> np.ndarray:
    width = model.key_heads * model.state_size
    return active[:, first * width : (first + 1) * width].reshape(len(active), model.key_heads, model.state_size)


def _l2_norm_query(model, layer, active):
    return norm.l2_norm(_heads(model, active, 0), model.eps)


def _l2_norm_key(model, layer, active):
    return norm.l2_norm(_heads(model, active, 1), model.eps)


def _step_size(model, layer, alpha):
    return delta_rule.softplus_alpha(alpha, _weight(model, layer, "ssm_dt.bias"))


def _conv(model, layer, x):
    return conv.causal_conv(x, _weight(model, layer, "ssm_conv1d.weight"), model.new_state()[layer].conv)


def _delta(model, layer, q, k, v, log_decay, beta):
    return delta_rule.recurrent(q, k, v, log_decay, beta, model.new_state()[layer].memory)[0]


def _gated_norm(model, layer, core, z):
    weight = _weight(model, layer, "ssm_norm.weight")
    return norm.gated_rms_norm(core, z.reshape(core.shape), weight, model.eps).reshape(z.shape)


def _attend(model, layer, q, k, v):
    positions = np.arange(len(q))
    return attention.attend(q, k, v, positions, positions)[0].reshape(len(q), -1)


def _rotate(model, layer, x):
    return rope.rotate(x, np.arange(len(x)), model.rotary_dims, model.rope_base)


def _query_norm(model, layer, joint):
    query = attention.split_query_gate(joint, model.heads, model.head_size)[0]
    return norm.rms_norm(query, _weight(model, layer, "attn_q_norm.weight"), model.eps)


ELEMENTWISE, REDUCTION = fixtures.SAME_INPUT_ELEMENTWISE, fixtures.SAME_INPUT_REDUCTION
OPERATIONS = (
    Operation("conv_output_raw", ("linear_attn_qkv_mixed",), ELEMENTWISE, _conv),
    Operation("conv_output_silu", ("conv_output_raw",), ELEMENTWISE, lambda m, i, x: conv.activate(x)),
    Operation("q_conv_predelta", ("conv_output_silu",), ELEMENTWISE, _l2_norm_query),
    Operation("k_conv_predelta", ("conv_output_silu",), ELEMENTWISE, _l2_norm_key),
    Operation("beta_sigmoid", ("beta",), ELEMENTWISE, lambda m, i, x: activations.sigmoid(x)),
    Operation(
        "a_softplus",
        ("alpha",),
        ELEMENTWISE,
        _step_size,
    ),
    Operation("gate", ("a_softplus",), ELEMENTWISE, lambda m, i, x: delta_rule.log_decay(x, _weight(m, i, "ssm_a"))),
    Operation(
        "attn_output",
        ("q_conv_predelta", "k_conv_predelta", "v_conv_predelta", "gate", "beta_sigmoid"),
        REDUCTION,
        _delta,
    ),
    Operation("final_output", ("attn_output", "z"), ELEMENTWISE, _gated_norm),
    Operation(
        "attn_post_norm",
        ("attn_residual",),
        ELEMENTWISE,
        lambda m, i, x: norm.rms_norm(x, _weight(m, i, "post_attention_norm.weight"), m.eps),
    ),
    Operation("Qcur_normed", ("Qcur_full",), ELEMENTWISE, _query_norm),
    Operation("Qcur", ("Qcur_normed",), ELEMENTWISE, _rotate),
    Operation("Kcur", ("Kcur_normed",), ELEMENTWISE, _rotate),
    Operation("gate_sigmoid", ("gate_reshaped",), ELEMENTWISE, lambda m, i, x: attention.output_gate(x)),
    Operation("attn_pregate", ("Qcur", "Kcur", "Vcur"), REDUCTION, _attend),
)


def operations(
    model: ReferenceModel, case: fixtures.Case
) -> Iterator[tuple[Operation, int, list[np.ndarray], np.ndarray]]:
    """Operation, layer, float64 inputs and stored output, wherever `case` stores them all (p7: every layer)."""
    for layer in range(model.layer_count):
        for operation in OPERATIONS:
            names = [f"{name}-{layer}" for name in (*operation.inputs, operation.output)]
            if all(name in case.arrays for name in names):
                *inputs, expected = (case.arrays[name] for name in names)
                yield operation, layer, [x.astype(np.float64) for x in inputs], expected
