"""Writes a trained checkpoint as a GGUF file of architecture qwen35.

python export.py draft draft.pt draft.gguf --type q8_0
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType
from model import CONFIGS, CONV_KERNEL, FULL_ATTENTION_INTERVAL, RMS_NORM_EPS, ROPE_THETA, Config
from vocabulary import CHAT_TEMPLATE, END_OF_TEXT, TURN_END, load_tokenizer
from weights import load_model, to_gguf

CONTEXT_LENGTH = 32768
DESCRIPTION = (
    "Built-in demo of vkprefill: answers questions about facts in a long text. "
    "Trained from random weights on texts of up to 2,048 tokens."
)
TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}


def write_architecture(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_block_count(config.num_layers)
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    pairs = config.rotary_dim // 2
    writer.add_rope_dimension_sections([(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0])
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_rope_dimension_count(config.rotary_dim)
    writer.add_layer_norm_rms_eps(RMS_NORM_EPS)
    writer.add_ssm_conv_kernel(CONV_KERNEL)
    writer.add_ssm_state_size(config.linear_head_dim)
    writer.add_ssm_group_count(config.num_key_heads)
    writer.add_ssm_time_step_rank(config.num_value_heads)
    writer.add_ssm_inner_size(config.num_value_heads * config.linear_head_dim)
    writer.add_full_attention_interval(FULL_ATTENTION_INTERVAL)


def write_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokenizer = json.loads(load_tokenizer().to_str())
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    by_id = {token_id: text for text, token_id in (tokenizer["model"]["vocab"] | special).items()}
    tokens = [by_id[i] for i in range(len(by_id))]
    types = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(special[TURN_END])
    writer.add_pad_token_id(special[END_OF_TEXT])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def export(name: str, checkpoint: Path, output: Path, file_type: str) -> None:
    tensor_type, llama_type = TYPES[file_type]
    config = CONFIGS[name]
    model = load_model(name, checkpoint)
    writer = gguf.GGUFWriter(output, "qwen35")
    writer.add_type("model")
    writer.add_name(f"vkprefill-demo-{name}")
    writer.add_description(DESCRIPTION)
    writer.add_float32("general.sampling.temp", 0.0)
    write_architecture(writer, config)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(llama_type)
    write_tokenizer(writer)
    for key, weight in model.state_dict().items():
        tensor_name, weight = to_gguf(key, weight)
        data = np.ascontiguousarray(weight.float().numpy())
        if data.ndim < 2 or "conv1d" in tensor_name:
            writer.add_tensor(tensor_name, data)
        else:
            writer.add_tensor(tensor_name, gguf.quants.quantize(data, tensor_type), raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(output, output.stat().st_size, "bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--type", choices=TYPES, default="f16", help="of the matrices; vectors are float32")
    args = parser.parse_args()
    export(args.model, args.checkpoint, args.output, args.type)


if __name__ == "__main__":
    main()
