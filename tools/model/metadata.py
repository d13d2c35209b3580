"""Metadata of a model's file: its sizes, and a vocabulary with a chat template."""

import math

from tools import qwen_vocab
from vkprefill.gguf.config import FULL_ATTENTION, LINEAR_ATTENTION, ModelConfig
from vkprefill.gguf.keys import ARCHITECTURE

MERGES = (
    ("Ġ t", "h e", "i n", "Ġ a", "e r", "o n", "Ġt he", "r e", "a t", "Ġ s", "e n", "o r", "Ġ w", "Ġ o", "i t", "i s")
    + ("e s", "a n", "Ġ c", "n d", "in g", "Ġa n", "Ġan d", "o u", "l e", "a l", "Ġ Ġ", "Ċ Ċ", ". Ċ", "' s", "Ì ģ")
    + ("1 2", "Ġ 1", "e 1", "e Ìģ", "Ġ (", "( a")  # these join only where text was split wrongly
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_pad|>", "<think>", "</think>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def sizes(config: ModelConfig) -> dict[str, object]:
    """What the file says of the model's sizes, and its name."""
    c = config
    pairs = c.rotary_dim // 2
    values: dict[str, object] = {
        "block_count": c.num_hidden_layers + c.num_nextn_layers,
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "rope.freq_base": c.rope_theta,
        "rope.dimension_count": c.rotary_dim,
        "rope.dimension_sections": [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0],
        "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "ssm.state_size": c.linear_key_head_dim,
        "ssm.group_count": c.linear_num_key_heads,
        "ssm.time_step_rank": c.linear_num_value_heads,
        "ssm.inner_size": c.linear_value_dim,
    }
    interval = c.attention_layers[0] + 1 if c.attention_layers else c.num_hidden_layers + 1
    if c.attention_layers == tuple(range(interval - 1, c.num_hidden_layers, interval)):
        values["full_attention_interval"] = interval
    else:
        blocks = (*c.layer_types, *[FULL_ATTENTION] * c.num_nextn_layers)
        values["attention.recurrent_layers"] = [kind == LINEAR_ATTENTION for kind in blocks]
    if c.num_nextn_layers:
        values["nextn_predict_layers"] = c.num_nextn_layers
    if c.attention_scale != 1 / math.sqrt(c.head_dim):
        values["attention.scale"] = c.attention_scale
    if c.experts:
        values |= {
            "expert_count": c.experts.count,
            "expert_used_count": _one_or_all(c.experts.per_token),
            "expert_feed_forward_length": _one_or_all(c.experts.sizes),
            "expert_shared_feed_forward_length": values.pop("feed_forward_length"),
        }
    general = {"general.architecture": c.architecture, "general.type": "model", "general.name": c.name}
    return {**general, **{f"{c.architecture}.{key}": value for key, value in values.items()}}


def _one_or_all(values: tuple[int, ...]) -> int | list[int]:
    """Of all blocks; one number where they are the same."""
    return values[0] if len(set(values)) == 1 else list(values)


def small_vocabulary(vocab_size: int) -> dict[str, object]:
    """The 256 bytes, a few merges, special tokens, and unused rows up to `vocab_size`."""
    room = vocab_size - 256 - len(SPECIAL_TOKENS)
    if room < 0:
        raise ValueError(f"vocabulary of {vocab_size}, wanted at least {256 + len(SPECIAL_TOKENS)}")
    merges = list(MERGES[:room])
    tokens = qwen_vocab.byte_characters() + [merge.replace(" ", "") for merge in merges]
    types = [qwen_vocab.NORMAL] * len(tokens)
    first_special = len(tokens)
    tokens += SPECIAL_TOKENS
    types += [qwen_vocab.USER_DEFINED if "think" in token else qwen_vocab.CONTROL for token in SPECIAL_TOKENS]
    types += [qwen_vocab.UNUSED] * (vocab_size - len(tokens))
    tokens += [f"[PAD{token_id}]" for token_id in range(len(tokens), vocab_size)]
    return _vocabulary_keys(tokens, types, merges, first_special + 2, first_special + 3)


def real_vocabulary(vocab_size: int) -> dict[str, object]:
    if vocab_size != qwen_vocab.VOCAB_SIZE:
        raise ValueError(f"vocabulary of {vocab_size}, but the released one has {qwen_vocab.VOCAB_SIZE} tokens")
    return _vocabulary_keys(*qwen_vocab.load(), qwen_vocab.EOS_TOKEN_ID, qwen_vocab.PADDING_TOKEN_ID)


def _vocabulary_keys(
    tokens: list[str], types: list[int], merges: list[str], eos_token_id: int, padding_token_id: int
) -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": ARCHITECTURE,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": eos_token_id,
        "tokenizer.ggml.padding_token_id": padding_token_id,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
