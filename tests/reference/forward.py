"""A whole `qwen35` or `qwen35moe` file on numpy: HF `modeling_qwen3_5.py` in GGUF's conventions, a function for each
kind of layer.

Intermediates carry llama.cpp's names, as in tests/data/models/README.md. Weights are read and dequantised by the `gguf`
package, so that a mistake in the engine's own reader cannot hide here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from tests.reference import activations, attention, conv, delta_rule, experts, linear, mtp, norm, rope

# Names of intermediates of an attention layer -> llama.cpp's in the multi-token-prediction block, after `mtp_`.
MTP_NAMES = {
    "Qcur_full": "Qcur_full",
    "Qcur_normed": "Qcur_normed",
    "Kcur_normed": "Kcur_normed",
    "Vcur": "Vcur",
    "gate_reshaped": "gate",
    "attn_pregate": "attn_pregate",
    "attn_output": "attn_out",
    "attn_residual": "attn_residual",
    "attn_post_norm": "attn_post_norm",
    "ffn_swiglu": "ffn_swiglu",
    "ffn_out": "ffn_out",
    "l_out": "post_ffn",
    "ffn_moe_out": "ffn_moe_out",
    "ffn_shexp": "ffn_shexp",
    "shared_expert_gate_sigmoid": "shared_expert_gate_sigmoid",
    "ffn_shexp_gated": "ffn_shexp_gated",
}
MTP_SAME_NAMES = (
    "kq_soft_max",
    *(f"ffn_moe_{name}" for name in "logits probs topk weights_norm gate up swiglu down".split()),
)


@dataclass
class DeltaState:
    conv: np.ndarray  # [taps - 1, C], oldest first
    memory: np.ndarray  # [Hv, Dv, Dk]


@dataclass
class KVState:
    keys: np.ndarray  # [S, G, Dh], rotated
    values: np.ndarray  # [S, G, Dh]
    positions: np.ndarray  # int64 [S]


State = list[DeltaState | KVState]


class ReferenceModel:
    """`forward` may be called again with the same state and later tokens; intermediates are those of the call."""

    def __init__(self, path: str | Path, dtype: type = np.float64, *, chunk: int = 0):
        """chunk: tokens per chunk of the delta rule; 0 takes the recurrent form."""
        reader = gguf.GGUFReader(path)
        architecture = reader.fields["general.architecture"].contents()

        def key(name, default=None):
            field = reader.fields.get(f"{architecture}.{name}")
            return default if field is None else field.contents()

        self.dtype, self.chunk = dtype, chunk
        # Called with each point (engine/microscope/names.py) and its rows [T, ...]; what it returns takes their place.
        self.at: Callable[[str, np.ndarray], np.ndarray] = lambda name, rows: rows
        self.mtp_blocks = key("nextn_predict_layers", 0)
        self.layer_count = key("block_count") - self.mtp_blocks
        self.heads, self.kv_heads = key("attention.head_count"), key("attention.head_count_kv")
        self.head_size = key("attention.key_length")
        self.rotary_dims, self.rope_base = key("rope.dimension_count"), key("rope.freq_base")
        self.eps = key("attention.layer_norm_rms_epsilon")
        self.conv_taps = key("ssm.conv_kernel")
        self.key_heads, self.value_heads = key("ssm.group_count"), key("ssm.time_step_rank")
        self.state_size = key("ssm.state_size")
        per_token = key("expert_used_count")  # one number, or one for each block
        self.experts_per_token = per_token if isinstance(per_token, list) else [per_token] * key("block_count")
        interval, listed = key("full_attention_interval", 4), key("attention.recurrent_layers")
        self.recurrent = [bool(listed[i]) if listed else (i + 1) % interval != 0 for i in range(self.layer_count)]
        self.weights = {
            t.name: linear.dequantise(t.data, t.tensor_type).astype(dtype).reshape(t.shape[::-1].astype(int))
            for t in reader.tensors
        }

    def new_state(self) -> State:
        channels = (2 * self.key_heads + self.value_heads) * self.state_size
        return [
            DeltaState(
                np.zeros((self.conv_taps - 1, channels), self.dtype),
                np.zeros((self.value_heads, self.state_size, self.state_size), self.dtype),
            )
            if recurrent
            else self.new_kv_state()
            for recurrent in self.recurrent
        ]

    def new_kv_state(self) -> KVState:
        empty = np.zeros((0, self.kv_heads, self.head_size), self.dtype)
        return KVState(empty, empty, np.zeros(0, np.int64))

    def forward(self, token_ids: Sequence[int], positions: Sequence[int], state: State) -> dict[str, np.ndarray]:
        """token_ids, positions int [T]; changes `state`. Returns every intermediate; logits are `result_output`."""
        positions = np.asarray(positions, np.int64)
        x = self.at("hook_embed", self.weights["token_embd.weight"][np.asarray(token_ids)])
        out = {"model.input_embed": x}
        for i, recurrent in enumerate(self.recurrent):
            x = self.at(f"blocks.{i}.hook_resid_pre", x)
            normed = out[f"attn_norm-{i}"] = self._norm(x, f"blk.{i}.attn_norm")
            if recurrent:
                mixed = self._delta_net(normed, state[i], i, out)
            else:
                mixed = self._attention(normed, positions, state[i], i, out)
            mixed = self.at(f"blocks.{i}.hook_attn_out", mixed)
            x = self.at(f"blocks.{i}.hook_resid_post", self._residual_mlp(x, mixed, i, out))
        out["result_norm"] = self.at("ln_final.hook_normalized", self._norm(x, "output_norm"))
        out["result_output"] = self._head(out["result_norm"])
        return out

    def forward_mtp(
        self, hidden: np.ndarray, token_ids: Sequence[int], positions: Sequence[int], state: KVState
    ) -> dict[str, np.ndarray]:
        """The multi-token prediction block: hidden [T, D] is `result_norm` one position earlier, token_ids the tokens
        at `positions`; its logits predict the token after them (DeepSeek-V3, section 2.2)."""
        i, weights = self.layer_count, self.weights
        block = f"blk.{i}.nextn."
        table = weights[mtp.optional(weights, block + "embed_tokens", "token_embd") + ".weight"]
        embedded = table[np.asarray(token_ids)]
        norms = [weights[f"{block}{name}.weight"] for name in ("enorm", "hnorm")]
        halves = mtp.normed_halves(embedded, np.asarray(hidden, self.dtype), *norms, self.eps)
        projected = self._linear(mtp.joined(*halves), block + "eh_proj")
        x, of_block = mtp.residual_start(projected, embedded), {}
        normed = self._norm(x, f"blk.{i}.attn_norm")
        mixed = self._attention(normed, np.asarray(positions, np.int64), state, i, of_block)
        x = self._residual_mlp(x, mixed, i, of_block)
        out = {f"mtp_enorm-{i}": halves[0], f"mtp_hnorm-{i}": halves[1], f"mtp_eh_proj-{i}": projected}
        out |= {f"mtp_attn_norm-{i}": normed}
        names = {ours: f"mtp_{theirs}" for ours, theirs in MTP_NAMES.items()} | {name: name for name in MTP_SAME_NAMES}
        out |= {f"{names[n]}-{i}": of_block[f"{n}-{i}"] for n in names if f"{n}-{i}" in of_block}
        out["h_nextn"] = self._norm(x, mtp.optional(weights, block + "shared_head_norm", "output_norm"))
        head = "output" if "output.weight" in weights else "token_embd"
        out["result_output"] = self._linear(out["h_nextn"], mtp.optional(weights, block + "shared_head_head", head))
        return out

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return linear.linear(x, self.weights[name + ".weight"])

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return norm.rms_norm(x, self.weights[name + ".weight"], self.eps)

    def _head(self, x: np.ndarray) -> np.ndarray:
        return self._linear(x, "output" if "output.weight" in self.weights else "token_embd")

    def _residual_mlp(self, x: np.ndarray, mixed: np.ndarray, i: int, out: dict) -> np.ndarray:
        x = out[f"attn_residual-{i}"] = self.at(f"blocks.{i}.hook_resid_mid", x + mixed)
        n = out[f"attn_post_norm-{i}"] = self._norm(x, f"blk.{i}.post_attention_norm")
        if f"blk.{i}.ffn_gate_inp.weight" in self.weights:
            mixed = experts.mixture(n, x, self.weights, f"blk.{i}.", self.experts_per_token[i])
            out.update({f"{name}-{i}": value for name, value in mixed.items()})
        else:
            gate = self.at(f"blocks.{i}.mlp.hook_pre", self._linear(n, f"blk.{i}.ffn_gate"))
            up = self.at(f"blocks.{i}.mlp.hook_pre_linear", self._linear(n, f"blk.{i}.ffn_up"))
            inner = self.at(f"blocks.{i}.mlp.hook_post", activations.swiglu(gate, up))
            out[f"ffn_swiglu-{i}"] = inner
            out[f"ffn_out-{i}"] = self._linear(inner, f"blk.{i}.ffn_down")
        out[f"ffn_out-{i}"] = self.at(f"blocks.{i}.hook_mlp_out", out[f"ffn_out-{i}"])
        out[f"l_out-{i}"] = x + out[f"ffn_out-{i}"]
        return out[f"l_out-{i}"]

    def _delta_net(self, n: np.ndarray, state: DeltaState, i: int, out: dict) -> np.ndarray:
        block, weights = f"blk.{i}.", self.weights
        size, tokens = self.state_size, len(n)
        point = f"blocks.{i}.linear_attn.hook_"
        n = self.at(point + "in", n)
        mixed = self._linear(n, block + "attn_qkv")  # [T, C]: q, k, v, each head-major
        raw = self._at_qkv(point, "_pre_conv", *self._heads_of(mixed))
        mixed = np.concatenate([rows.reshape(tokens, -1) for rows in raw], -1)
        z = self._linear(n, block + "attn_gate")
        z = self.at(point + "gate_input", z.reshape(tokens, -1, size)).reshape(z.shape)
        beta_raw, alpha = self._linear(n, block + "ssm_beta"), self._linear(n, block + "ssm_alpha")
        beta = self.at(point + "beta", activations.sigmoid(beta_raw))
        step_size = delta_rule.softplus_alpha(alpha, weights[block + "ssm_dt.bias"])
        decay = self.at(point + "log_decay", delta_rule.log_decay(step_size, weights[block + "ssm_a"]))

        convolved = conv.causal_conv(mixed, weights[block + "ssm_conv1d.weight"], state.conv)
        state.conv = conv.next_state(mixed, state.conv)
        active = conv.activate(convolved)
        q, k, v = self._heads_of(active)
        q, k, v = self._at_qkv(point, "", norm.l2_norm(q, self.eps), norm.l2_norm(k, self.eps), v)

        if self.chunk:
            core, state.memory = delta_rule.chunked(q, k, v, decay, beta, state.memory, self.chunk)
        else:
            core, state.memory = delta_rule.recurrent(q, k, v, decay, beta, state.memory)
        core = self.at(point + "recurrence_out", core)
        gated = norm.gated_rms_norm(core, z.reshape(core.shape), weights[block + "ssm_norm.weight"], self.eps)
        gated = gated.reshape(tokens, -1)
        projected = self.at(point + "out", self._linear(gated, block + "ssm_out"))
        named = {
            "linear_attn_qkv_mixed": mixed,
            "z": z,
            "beta": beta_raw,
            "beta_sigmoid": beta,
            "alpha": alpha,
            "a_softplus": step_size,
            "gate": decay,
            "conv_output_raw": convolved,
            "conv_output_silu": active,
            "conv_state_last": state.conv.T,
            "q_conv_predelta": q,
            "k_conv_predelta": k,
            "v_conv_predelta": v,
            "attn_output": core,
            "new_state": state.memory,
            "final_output": gated,
            "linear_attn_out": projected,
        }
        out.update({f"{name}-{i}": value for name, value in named.items()})
        return projected

    def _heads_of(self, channels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """[T, C] -> q, k [T, Hk, Dk], v [T, Hv, Dv]."""
        size, width = self.state_size, self.key_heads * self.state_size
        parts = np.split(channels, [width, 2 * width], axis=-1)
        return tuple(rows.reshape(len(channels), -1, size) for rows in parts)

    def _at_qkv(self, point: str, suffix: str, *qkv: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(self.at(f"{point}{name}{suffix}", rows) for name, rows in zip("qkv", qkv, strict=True))

    def _attention(self, n: np.ndarray, positions: np.ndarray, state: KVState, i: int, out: dict) -> np.ndarray:
        block, weights, tokens = f"blk.{i}.", self.weights, len(n)
        point = f"blocks.{i}.attn.hook_"
        joint = self._linear(n, block + "attn_q")
        q, gate = attention.split_query_gate(joint, self.heads, self.head_size)
        q = self.at(point + "q", q)
        k = self.at(point + "k", self._linear(n, block + "attn_k").reshape(tokens, self.kv_heads, self.head_size))
        v = self.at(point + "v", self._linear(n, block + "attn_v").reshape(tokens, self.kv_heads, self.head_size))
        q_normed = norm.rms_norm(q, weights[block + "attn_q_norm.weight"], self.eps)
        k_normed = norm.key_norm(k, weights[block + "attn_k_norm.weight"], self.eps)
        q_rotated = self.at(point + "rot_q", rope.rotate(q_normed, positions, self.rotary_dims, self.rope_base))
        k_rotated = self.at(point + "rot_k", rope.rotate(k_normed, positions, self.rotary_dims, self.rope_base))
        state.keys = np.concatenate([state.keys, k_rotated])
        state.values = np.concatenate([state.values, v])
        state.positions = np.concatenate([state.positions, positions])

        heads, rows = attention.attend(q_rotated, state.keys, state.values, positions, state.positions)
        ungated, factor = heads.reshape(tokens, -1), attention.output_gate(gate)
        gated = self.at(point + "z", (ungated * factor).reshape(heads.shape)).reshape(tokens, -1)
        projected = self._linear(gated, block + "attn_output")
        named = {
            "Qcur_full": joint,
            "Qcur_normed": q_normed,
            "Kcur_normed": k_normed,
            "Qcur": q_rotated,
            "Kcur": k_rotated,
            "Vcur": v,
            "gate_reshaped": gate,
            "gate_sigmoid": factor,
            "kq_soft_max": rows,
            "attn_pregate": ungated,
            "attn_gated": gated,
            "attn_output": projected,
        }
        out.update({f"{name}-{i}": value for name, value in named.items()})
        return projected
