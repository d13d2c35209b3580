"""The multi-token-prediction block of a model: the last block of the model's file, or in a companion file without the
trunk (whose block_count and sizes are the model's). What a file is shows in its tensors, not in its name.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from vkprefill.display import printable, quoted
from vkprefill.errors import RequestError, UnsupportedModelError, VkPrefillError
from vkprefill.gguf.config import OUTPUT, TOKEN_EMBEDDING, ModelConfig, is_companion
from vkprefill.gguf.file import GGUFFile, open_gguf
from vkprefill.gguf.tensors import TensorSpec, check_specs, is_mtp_tensor, mtp_specs, tensor_specs

log = logging.getLogger("vkprefill")

# Of both files: what the block takes over from the trunk, or what its cache and its kernels are made for.
SHARED_SIZES = {
    "num_hidden_layers": "trunk layers",
    "vocab_size": "vocabulary size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "experts": "experts",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rotary_dim": "rope.dimension_count",
    "rope_theta": "rope.freq_base",
    "attention_scale": "attention.scale",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
# Of the trunk's tensors, in a companion file, which may lack them: not read, and of the model's shapes.
COPIES = (TOKEN_EMBEDDING, OUTPUT, "output_norm.weight")


@dataclass(frozen=True)
class MTPBlock:
    """A block that fits its model. specs: of its tensors in `file`, the optional ones that are there among them."""

    file: GGUFFile
    layer: int
    specs: tuple[TensorSpec, ...]


def has_block(file: GGUFFile, config: ModelConfig) -> bool:
    """Whether a file holds the multi-token-prediction block that its metadata counts."""
    return any(is_mtp_tensor(config, name) for name in file.tensors)


def block_of(file: GGUFFile, config: ModelConfig, model: GGUFFile, model_config: ModelConfig) -> MTPBlock:
    """The block in `file`, for the model in another or the same file; each with its config.

    Embedding, output norm and head are the trunk's, for a companion that holds copies of them too, which may be of
    other types: they are not read, but must be of the shapes that the model has.

    Raises UnsupportedModelError where there is none, where it belongs to a model of other sizes, and for tensors of no
    known use; GGUFError for missing tensors and wrong shapes.
    """
    if not has_block(file, config):
        raise UnsupportedModelError(f"{file.label}: no multi-token-prediction block, wanted one (blk.L.nextn.*)")
    for field, name in SHARED_SIZES.items():
        found, wanted = getattr(config, field), getattr(model_config, field)
        if found != wanted:
            raise UnsupportedModelError(
                f"{file.label}: multi-token-prediction block with {name} {found}, wanted {wanted} as in {model.label}"
            )
    layer = config.num_hidden_layers
    needed, optional = mtp_specs(config, layer)
    specs = (*needed, *(spec for spec in optional if spec.name in file.tensors))
    check_specs(file, specs)
    known = {spec.name for spec in specs}
    if is_companion(file):
        known.update(COPIES)
        _check_copies(file, model, model_config)
    for name in file.tensors:
        if name not in known and (is_companion(file) or is_mtp_tensor(config, name)):
            raise UnsupportedModelError(
                f"{file.label}: {printable(name)}: unknown tensor, not part of a multi-token-prediction block"
            )
    return MTPBlock(file, layer, specs)


def _check_copies(file: GGUFFile, model: GGUFFile, config: ModelConfig) -> None:
    """Raises UnsupportedModelError where a companion's copy of a tensor of the trunk is none."""
    shapes = {spec.name: spec.shape for spec in tensor_specs(config)}
    for name in COPIES:
        found = file.tensors[name].shape if name in file.tensors else None
        if found is not None and found != shapes.get(name):
            wanted = list(shapes[name]) if name in shapes else "none, since its head is its embedding,"
            raise UnsupportedModelError(
                f"{file.label}: {name}: shape {list(found)}, wanted {wanted} as in {model.label}"
            )


def find_block(model: GGUFFile, config: ModelConfig, wanted: str | os.PathLike[str] | None) -> MTPBlock | None:
    """The block to load with a model: "auto" that of its own file, None where it has none or one that cannot be used
    (which is logged, as is a block that the file only counts); a path that of another file, such as a companion, which
    is logged where the model's file has one too; None no block.

    Raises RequestError for any other `wanted`, and what `block_of` and opening another file raise.
    """
    if wanted is None:
        return None
    if not isinstance(wanted, str | os.PathLike) or wanted == "":
        raise RequestError(f'mtp: found {quoted(wanted)}, wanted "auto", None or the path of a file')
    if wanted != "auto":
        file = open_gguf(wanted)
        block = block_of(file, ModelConfig.from_gguf(file, config), model, config)
        if has_block(model, config) and file.path != model.path:
            log.warning("%s: its multi-token-prediction block is used in place of that of %s", file.label, model.label)
        return block
    if not has_block(model, config):
        if config.num_nextn_layers:
            log.warning(
                "%s: a multi-token-prediction block is counted (nextn_predict_layers %d), but no tensor of it is there "
                "(blk.%d.*); the model runs without",
                model.label,
                config.num_nextn_layers,
                config.num_hidden_layers,
            )
        return None
    try:
        return block_of(model, config, model, config)
    except VkPrefillError as error:
        log.warning("%s; the model runs without its multi-token-prediction block", error)
        return None
