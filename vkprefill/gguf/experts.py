"""What makes a model a mixture of experts: how many, how large, how many of them a token takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from vkprefill.errors import UnsupportedModelError
from vkprefill.gguf.file import GGUFFile
from vkprefill.gguf.keys import MIXTURE, Keys

FUSED_EXPERTS = "ffn_gate_up_exps.weight"  # of a block whose experts have gate and up in one tensor
MAX_EXPERTS, MAX_EXPERTS_PER_TOKEN = 512, 32
WIDTH_MULTIPLE = 16  # of what matrices multiply; a row of blocks is a multiple of 32 besides, or it could not be stored


@dataclass(frozen=True)
class Experts:
    """The feed-forward layers of a mixture: each has `count` experts, of which every token takes some, beside one that
    every token takes (of ModelConfig.intermediate_size).

    per_token, sizes: of each block, how many a token takes and their feed-forward length; fused: blocks with gate and
    up in one tensor.
    """

    count: int
    per_token: tuple[int, ...]
    sizes: tuple[int, ...]
    fused: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        per_token, sizes = (
            str(most) if (most := max(v)) == min(v) else f"up to {most}" for v in (self.per_token, self.sizes)
        )
        return f"{self.count} of length {sizes}, {per_token} for each token"


def read_experts(keys: Keys, file: GGUFFile, block_count: int) -> Experts | None:
    """Of a mixture. Without a length of its own an expert has its part of feed_forward_length, as in llama.cpp."""
    if keys.architecture != MIXTURE:
        return None
    groups = keys.integer("expert_group_count", 0, 1 << 20, default=0)
    if groups > 1:
        raise UnsupportedModelError(f"{keys.label}: {groups} groups of experts are not supported, wanted one")
    count = keys.integer("expert_count", 1, MAX_EXPERTS)
    per_token = keys.integers("expert_used_count", 1, min(count, MAX_EXPERTS_PER_TOKEN), block_count)
    key = "expert_feed_forward_length"
    if keys.has(key) or not keys.has("feed_forward_length"):
        sizes = keys.integers(key, 1, 1 << 20, block_count)
    else:
        whole = keys.integers("feed_forward_length", 1, 1 << 20, block_count)
        sizes = tuple(n // used for n, used in zip(whole, per_token, strict=True))
    if bad := [size for size in sizes if size == 0 or size % WIDTH_MULTIPLE]:
        raise UnsupportedModelError(
            f"{keys.label}: {key} {bad[0]} is not supported, wanted a multiple of {WIDTH_MULTIPLE}"
        )
    fused = tuple(i for i in range(block_count) if f"blk.{i}.{FUSED_EXPERTS}" in file.tensors)
    return Experts(count, per_token, sizes, fused)
