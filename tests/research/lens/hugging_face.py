"""A GGUF file's weights in Hugging Face's class: what a converter did, taken back."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import GGUFFile, open_gguf

BOTH = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
ATTENTION = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}


def hugging_face_model(path: Path) -> Qwen3_5ForCausalLM:
    file = open_gguf(path)
    c = ModelConfig.from_gguf(file)
    rotary = {"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": c.rotary_dim / c.head_dim}
    same = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim"
    same += " rms_norm_eps linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim"
    same += " linear_conv_kernel_dim tie_word_embeddings"
    config = Qwen3_5TextConfig(
        **{name: getattr(c, name) for name in same.split()},
        layer_types=list(c.layer_types),
        rope_parameters={**rotary, "mrope_section": [c.rotary_dim // 2, 0, 0], "mrope_interleaved": True},
    )
    model = Qwen3_5ForCausalLM(config).eval()
    weights = {name: torch.from_numpy(np.ascontiguousarray(array, np.float32)) for name, array in _weights(file, c)}
    if c.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model


def _weights(file: GGUFFile, c: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    yield "model.embed_tokens.weight", file.dequantize("token_embd.weight")
    yield "model.norm.weight", file.dequantize("output_norm.weight") - 1  # the file has 1 added
    if not c.tie_word_embeddings:
        yield "lm_head.weight", file.dequantize("output.weight")
    for layer in range(c.num_hidden_layers):

        def read(name: str, layer: int = layer) -> np.ndarray:
            return file.dequantize(f"blk.{layer}.{name}")

        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", read("attn_norm.weight") - 1
        yield f"{prefix}.post_attention_layernorm.weight", read("post_attention_norm.weight") - 1
        for name, there in BOTH.items():
            yield f"{prefix}.{there}.weight", read(f"{name}.weight")
        if layer in c.attention_layers:
            for name, there in ATTENTION.items():
                yield f"{prefix}.self_attn.{there}.weight", read(f"{name}.weight")
            for name in ("q", "k"):
                yield f"{prefix}.self_attn.{name}_norm.weight", read(f"attn_{name}_norm.weight") - 1
        else:
            yield from _delta_net(read, f"{prefix}.linear_attn", c)


def _delta_net(read, prefix: str, c: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Value heads are put side by side again by key head."""
    keys, dim = c.linear_num_key_heads, c.linear_value_head_dim
    values = 2 * keys * c.linear_key_head_dim  # where they begin among the channels

    def in_order(array: np.ndarray, width: int) -> np.ndarray:
        """Rows of heads, `width` each."""
        heads = array.reshape(-1, keys, width, *array.shape[1:])
        return np.swapaxes(heads, 0, 1).reshape(array.shape)

    def channels(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array[:values], in_order(array[values:], dim)])

    yield f"{prefix}.in_proj_qkv.weight", channels(read("attn_qkv.weight"))
    yield f"{prefix}.conv1d.weight", channels(read("ssm_conv1d.weight"))[:, None]
    yield f"{prefix}.in_proj_z.weight", in_order(read("attn_gate.weight"), dim)
    yield f"{prefix}.in_proj_b.weight", in_order(read("ssm_beta.weight"), 1)
    yield f"{prefix}.in_proj_a.weight", in_order(read("ssm_alpha.weight"), 1)
    yield f"{prefix}.dt_bias", in_order(read("ssm_dt.bias"), 1)
    yield f"{prefix}.A_log", np.log(-in_order(read("ssm_a"), 1))
    yield f"{prefix}.norm.weight", read("ssm_norm.weight")
    yield f"{prefix}.out_proj.weight", in_order(read("ssm_out.weight").T, dim).T
