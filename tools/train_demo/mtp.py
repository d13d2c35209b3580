"""The multi-token-prediction block in plain torch, as a chain of drafts runs it: what train_mtp.py trains.

Row t reads token t and the trunk's row t - 1 after its last norm, and predicts token t + 1; each further row of a chain
reads the row before it in place of the trunk's. Letters as in model.py; Q chains of each sequence.
"""

from collections.abc import Iterator

import torch
import torch.nn as nn
import torch.nn.functional as F
from model import Block, Config, Model, RMSNorm, linear, rotate
from torch import Tensor

LOOKING_HEAD = 0  # of attention: as in the trunk, the one that is taught to look at the value asked for


class MtpBlock(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        hidden = config.hidden_size
        self.layer = Block(config, full_attention=True)
        self.eh_proj = linear(2 * hidden, hidden)
        self.enorm, self.hnorm, self.shared_head_norm = (RMSNorm(hidden) for _ in range(3))

    @torch.no_grad()
    def start_from(self, trunk: Model) -> None:
        """As the trunk's last layer, which reads the trunk's row with a little of the token."""
        self.layer.load_state_dict(trunk.blk[-1].state_dict())
        hidden = trunk.config.hidden_size
        self.eh_proj.weight.copy_(torch.cat([0.5 * torch.randn(hidden, hidden) / hidden**0.5, torch.eye(hidden)], 1))
        self.hnorm.weight.copy_(1 / trunk.output_norm.weight)
        self.shared_head_norm.weight.copy_(trunk.output_norm.weight)

    def chains(
        self, trunk: Model, token_ids: Tensor, positions: Tensor, hidden: Tensor, starts: Tensor, depth: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Of the first token of each chain, then of the next: rows [B, Q, D] for the head, and what attention head
        LOOKING_HEAD scores the sequence's keys with, [B, Q, T].

        token_ids, positions [B, T], hidden [B, T, D] the trunk's rows, starts [B, Q] below T - depth.
        """
        rotary = trunk.rotary(positions)
        before = F.pad(hidden, (0, 0, 1, 0))[:, :-1]
        x = self.joined(trunk, token_ids, before)
        keys, values = self.keys_values(x, rotary)
        unseen = torch.arange(token_ids.shape[1]) > starts[..., None]  # [B, Q, T]
        own: list[tuple[Tensor, Tensor]] = []  # keys and values of the chains' own rows
        x = picked(x, starts)
        for step in range(depth):
            at = starts + step
            turn = tuple(picked(part[:, 0], at)[:, None] for part in rotary)
            if step:
                own.append(self.keys_values(x, turn))
            attended, looked = self.attend(self.layer.attn_norm(x), turn, keys, values, own, unseen)
            x = x + attended
            inner = self.layer.post_attention_norm(x)
            x = x + self.layer.ffn_down(F.silu(self.layer.ffn_gate(inner)) * self.layer.ffn_up(inner))
            row = self.shared_head_norm(x)
            yield row, looked
            if step + 1 < depth:
                x = self.joined(trunk, token_ids.gather(1, at + 1), row)

    def joined(self, trunk: Model, token_ids: Tensor, hidden: Tensor) -> Tensor:
        embedded = self.enorm(F.embedding(token_ids, trunk.token_embd.weight))
        return self.eh_proj(torch.cat([embedded, self.hnorm(hidden)], -1))

    def keys_values(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Of rows [B, N, D]: two of [B, H, N, Dh]."""
        mixer, (batch, rows, _) = self.layer.mixer, x.shape
        heads, kv_heads = mixer.config.num_attention_heads, mixer.config.num_key_value_heads
        n = self.layer.attn_norm(x)
        k, v = (part(n).view(batch, rows, kv_heads, -1) for part in (mixer.attn_k, mixer.attn_v))
        k = rotate(mixer.attn_k_norm(k).transpose(1, 2), *rotary)
        return tuple(part.repeat_interleave(heads // kv_heads, 1) for part in (k, v.transpose(1, 2)))

    def attend(self, n: Tensor, rotary, keys: Tensor, values: Tensor, own, unseen: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [B, Q, D] over the sequence's keys up to each chain's start, and over those of the chain itself."""
        mixer, (batch, rows, _) = self.layer.mixer, n.shape
        heads, size = mixer.config.num_attention_heads, mixer.config.head_dim
        q, gate = mixer.attn_q(n).view(batch, rows, heads, 2 * size).split(size, -1)
        q = rotate(mixer.attn_q_norm(q).transpose(1, 2), *rotary) * size**-0.5
        scores = (q @ keys.transpose(-1, -2)).masked_fill(unseen[:, None], -1e9)
        looked = scores[:, LOOKING_HEAD]
        scores = torch.cat([scores, *((q * k).sum(-1, keepdim=True) for k, _ in own)], -1)
        weights = scores.softmax(-1)
        count = keys.shape[2]
        out = weights[..., :count] @ values
        for i, (_, v) in enumerate(own):
            out = out + weights[..., count + i, None] * v
        out = out.transpose(1, 2) * gate.sigmoid()
        return mixer.attn_output(out.reshape(batch, rows, -1)), looked


def picked(x: Tensor, at: Tensor) -> Tensor:
    """Rows `at` [B, Q] of x [B, T, ...]."""
    return x[torch.arange(len(at))[:, None], at]
