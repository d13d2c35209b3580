"""A mixture's feed-forward part (HF `Qwen3_5MoeSparseMoeBlock`): router, experts, the expert that every token takes.

Each small function is one thing that a reader could get wrong (expert_mutations.py).
"""

import numpy as np

from tests.reference import activations, linear

Weights = dict[str, np.ndarray]


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """[T, X], over all experts."""
    return softmax(logits)


def chosen(probs: np.ndarray, count: int) -> np.ndarray:
    """int [T, K], the most probable first, of equal ones the lower number."""
    return np.argsort(-probs, axis=-1, kind="stable")[:, :count]


def shares(picked: np.ndarray) -> np.ndarray:
    """[T, K]: probabilities of those chosen, made to sum to 1."""
    return picked / picked.sum(-1, keepdims=True)


def router_input(normed: np.ndarray, x: np.ndarray) -> np.ndarray:
    """normed, x [T, D]: the residual stream after its norm, and before."""
    return normed


def expert_of(number: int, count: int) -> int:
    """Whose matrices the expert of this number has."""
    return number


def rows_of(choice: np.ndarray, expert: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, slots) that were sent to an expert."""
    return np.nonzero(choice == expert)


def place_of(tokens: np.ndarray) -> np.ndarray:
    """Tokens whose sums an expert's rows go to."""
    return tokens


def halves(both: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(gate, up) of the rows of a tensor that has the two of an expert, [2 F, D]."""
    return both[: len(both) // 2], both[len(both) // 2 :]


def gate_and_up(weights: Weights, block: str, expert: int) -> tuple[np.ndarray, np.ndarray]:
    if (fused := weights.get(block + "ffn_gate_up_exps.weight")) is not None:
        return halves(fused[expert])
    return weights[block + "ffn_gate_exps.weight"][expert], weights[block + "ffn_up_exps.weight"][expert]


def inner(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return activations.swiglu(gate, up)


def expert_input(normed: np.ndarray, share: np.ndarray) -> np.ndarray:
    """normed [n, D] of an expert's rows, share [n, 1]."""
    return normed


def weighted(outputs: np.ndarray, share: np.ndarray) -> np.ndarray:
    """outputs [T, K, D], share [T, K] -> [T, D]."""
    return (outputs * share[..., None]).sum(1)


def shared_input(normed: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """normed [T, D]; gate [T, 1], of how much the expert counts that every token takes."""
    return normed


def gated(output: np.ndarray, gate: np.ndarray) -> np.ndarray:
    return output * activations.sigmoid(gate)


def together(routed: np.ndarray, shared: np.ndarray) -> np.ndarray:
    return routed + shared


def mixture(normed: np.ndarray, x: np.ndarray, weights: Weights, block: str, per_token: int) -> dict[str, np.ndarray]:
    """normed, x [T, D]. Every intermediate by llama.cpp's name; the sum of all is `ffn_out`."""
    logits = linear.linear(router_input(normed, x), weights[block + "ffn_gate_inp.weight"])
    probs = probabilities(logits)
    choice = chosen(probs, per_token)
    share = shares(np.take_along_axis(probs, choice, -1))
    down = weights[block + "ffn_down_exps.weight"]
    count, dim, size = down.shape
    slots = {
        name: np.zeros((*choice.shape, width)) for name, width in zip("gusd", (size, size, size, dim), strict=True)
    }
    for number in np.unique(choice):
        tokens, at = rows_of(choice, number)
        expert = expert_of(int(number), count)
        row = expert_input(normed[tokens], share[tokens, at][:, None])
        gate, up = (linear.linear(row, w) for w in gate_and_up(weights, block, expert))
        product = inner(gate, up)
        for name, values in zip("gusd", (gate, up, product, linear.linear(product, down[expert])), strict=True):
            slots[name][place_of(tokens), at] = values
    routed = weighted(slots["d"], share)
    shared_gate = normed @ weights[block + "ffn_gate_inp_shexp.weight"][:, None]
    row = shared_input(normed, shared_gate)
    shared = (linear.linear(row, weights[f"{block}ffn_{name}_shexp.weight"]) for name in ("gate", "up"))
    shared = linear.linear(activations.swiglu(*shared), weights[block + "ffn_down_shexp.weight"])
    return {
        "ffn_moe_logits": logits,
        "ffn_moe_probs": probs,
        "ffn_moe_topk": choice,
        "ffn_moe_weights_norm": share,
        "ffn_moe_gate": slots["g"],
        "ffn_moe_up": slots["u"],
        "ffn_moe_swiglu": slots["s"],
        "ffn_moe_down": slots["d"],
        "ffn_moe_out": routed,
        "ffn_shexp": shared,
        "shared_expert_gate": shared_gate,
        "shared_expert_gate_sigmoid": activations.sigmoid(shared_gate),
        "ffn_shexp_gated": gated(shared, shared_gate),
        "ffn_out": together(routed, gated(shared, shared_gate)),
    }
