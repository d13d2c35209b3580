"""The Qwen3.5 text model (GGUF architecture qwen35) in plain torch, with a cache: what evaluation and export use.

Weights follow the GGUF file's conventions: modules have the names of its tensors, norm weights include the +1, and
value head h reads key head h % Hk. The maths is that of llama.cpp's src/models/qwen35.cpp. Letters: B sequences,
T tokens, H and G attention and KV heads, Dh head size, Hk and Hv key and value heads of the delta net.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

RMS_NORM_EPS = 1e-6
ROPE_THETA = 1e7
CONV_KERNEL = 4
FULL_ATTENTION_INTERVAL = 4
DELTA_CHUNK = 64


@dataclass(frozen=True)
class Config:
    num_layers: int
    hidden_size: int
    num_value_heads: int
    intermediate_size: int = 256
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    num_key_heads: int = 2
    linear_head_dim: int = 64  # of key and value heads alike; fused.c is written for 64


CONFIGS = {
    "draft": Config(num_layers=4, hidden_size=128, num_value_heads=2),
    "deep": Config(num_layers=12, hidden_size=128, num_value_heads=2),  # for evaluation: a draft that can stop early
    "target": Config(num_layers=8, hidden_size=256, num_value_heads=4),
}


class RMSNorm(nn.Module):
    def __init__(self, size: int, weight: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), weight))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + RMS_NORM_EPS) * self.weight


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def unit_length(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + RMS_NORM_EPS)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule in chunks (Yang et al. 2024, arXiv 2412.06464).

    q, k [B, Hv, T, D] of unit length (q scaled), v [B, Hv, T, D], log_decay and beta [B, Hv, T], state [B, Hv, D, D].
    Returns the outputs [B, Hv, T, D] and the state after the last token.
    """
    B, H, T, D = q.shape
    C = min(DELTA_CHUNK, T)
    padding = -T % C
    q, k, v = (F.pad(x, (0, 0, 0, padding)).reshape(B * H, -1, C, D) for x in (q, k, v))
    log_decay, beta = (F.pad(x, (0, padding)).reshape(B * H, -1, C) for x in (log_decay, beta))
    total = log_decay.cumsum(-1)  # since the chunk's start
    lower = torch.ones(C, C, dtype=torch.bool).tril()
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, -1e9).exp()
    since_start, beta = total.exp().unsqueeze(-1), beta.unsqueeze(-1)

    k_beta = k * beta
    overlap = (k_beta @ k.transpose(-1, -2) * between).tril(-1)
    right = torch.cat([v * beta, k_beta * since_start], -1)
    own, carried = torch.linalg.solve_triangular(overlap, right, upper=False, unitriangular=True).split(D, -1)
    within = (q @ k.transpose(-1, -2)) * between
    q = q * since_start
    k = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
    outputs, state = [], state.reshape(B * H, D, D)
    for i in range(q.shape[1]):
        update = own[:, i] - carried[:, i] @ state
        outputs.append(q[:, i] @ state + within[:, i] @ update)
        state = state * since_start[:, i, -1:] + k[:, i] @ update
    return torch.stack(outputs, 1).reshape(B, H, T + padding, D)[:, :, :T], state.reshape(B, H, D, D)


class DeltaNet(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        hidden, heads, dim = config.hidden_size, config.num_value_heads, config.linear_head_dim
        self.key_size, self.value_size = config.num_key_heads * dim, heads * dim
        self.conv_channels = 2 * self.key_size + self.value_size
        self.attn_qkv = linear(hidden, self.conv_channels)
        self.attn_gate = linear(hidden, self.value_size)
        self.ssm_beta = linear(hidden, heads)
        self.ssm_alpha = linear(hidden, heads)
        self.ssm_conv1d = nn.Parameter(torch.randn(self.conv_channels, CONV_KERNEL) * 0.3)
        step = torch.exp(torch.linspace(math.log(0.002), math.log(0.1), heads))
        self.ssm_dt = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus of it is `step`
        self.A_log = nn.Parameter(torch.log(torch.linspace(1, 4, heads)))
        self.ssm_norm = RMSNorm(dim)
        self.ssm_out = linear(self.value_size, hidden)

    def new_cache(self) -> dict[str, Tensor]:
        dim = self.config.linear_head_dim
        return {
            "conv": torch.zeros(1, self.conv_channels, CONV_KERNEL - 1),
            "state": torch.zeros(1, self.config.num_value_heads, dim, dim),
        }

    def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:
        B, T, _ = x.shape
        config, dim = self.config, self.config.linear_head_dim
        beta = self.ssm_beta(x).sigmoid().transpose(1, 2)
        log_decay = (-self.A_log.exp() * F.softplus(self.ssm_alpha(x) + self.ssm_dt)).transpose(1, 2)
        channels = torch.cat([cache["conv"], self.attn_qkv(x).transpose(1, 2)], -1)
        mixed = F.silu(F.conv1d(channels, self.ssm_conv1d.unsqueeze(1), groups=self.conv_channels)).transpose(1, 2)
        parts = mixed.split([self.key_size, self.key_size, self.value_size], -1)
        q, k, v = (part.view(B, T, -1, dim).transpose(1, 2) for part in parts)
        repeats = config.num_value_heads // config.num_key_heads
        q, k = (unit_length(part).repeat(1, repeats, 1, 1) for part in (q, k))
        out, cache["state"] = delta_rule(q * dim**-0.5, k, v, log_decay, beta, cache["state"])
        cache["conv"] = channels[..., 1 - CONV_KERNEL :]
        out = self.ssm_norm(out.transpose(1, 2)).reshape(B, T, -1) * F.silu(self.attn_gate(x))
        return self.ssm_out(out)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Partial NeoX rotary embedding: pairs (i, i + R / 2) of the first R dimensions."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        H, G, Dh = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.attn_q = linear(config.hidden_size, H * Dh * 2)  # per head: query, gate
        self.attn_k = linear(config.hidden_size, G * Dh)
        self.attn_v = linear(config.hidden_size, G * Dh)
        self.attn_output = linear(H * Dh, config.hidden_size)
        self.attn_q_norm, self.attn_k_norm = RMSNorm(Dh, 1.5), RMSNorm(Dh, 1.5)

    def new_cache(self) -> dict[str, Tensor]:
        empty = torch.zeros(1, self.config.num_key_value_heads, 0, self.config.head_dim)
        return {"k": empty, "v": empty}

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], cache: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(output, softmax rows [B, H, S] of the last token)."""
        B, T, _ = x.shape
        H, G, Dh = self.config.num_attention_heads, self.config.num_key_value_heads, self.config.head_dim
        q, gate = self.attn_q(x).view(B, T, H, 2 * Dh).split(Dh, -1)
        q = rotate(self.attn_q_norm(q).transpose(1, 2), *rotary)
        k = rotate(self.attn_k_norm(self.attn_k(x).view(B, T, G, Dh)).transpose(1, 2), *rotary)
        v = self.attn_v(x).view(B, T, G, Dh).transpose(1, 2)
        past = cache["k"].shape[2]
        cache["k"], cache["v"] = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        k, v = (part.repeat_interleave(H // G, 1) for part in (cache["k"], cache["v"]))
        mask = torch.ones(T, past + T, dtype=torch.bool).tril(past)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        rows = (torch.einsum("bhd,bhkd->bhk", q[:, :, -1], k) * Dh**-0.5).softmax(-1)
        out = out.transpose(1, 2) * gate.sigmoid()
        return self.attn_output(out.reshape(B, T, H * Dh)), rows


class Block(nn.Module):
    def __init__(self, config: Config, full_attention: bool):
        super().__init__()
        self.full_attention = full_attention
        hidden, inner = config.hidden_size, config.intermediate_size
        self.attn_norm, self.post_attention_norm = RMSNorm(hidden), RMSNorm(hidden)
        self.mixer = Attention(config) if full_attention else DeltaNet(config)
        self.ffn_gate, self.ffn_up, self.ffn_down = linear(hidden, inner), linear(hidden, inner), linear(inner, hidden)


class Model(nn.Module):
    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(vocab_size, config.hidden_size)
        self.blk = nn.ModuleList(
            Block(config, (i + 1) % FULL_ATTENTION_INTERVAL == 0) for i in range(config.num_layers)
        )
        self.output_norm = RMSNorm(config.hidden_size)
        self.output = linear(config.hidden_size, vocab_size)
        exponents = torch.arange(0, config.rotary_dim, 2).float() / config.rotary_dim
        self.register_buffer("inverse_frequencies", ROPE_THETA**-exponents, persistent=False)
        self.initialise()

    @torch.no_grad()
    def initialise(self):
        """Random weights; queries and keys start equal, so that attention goes by likeness from the first step."""
        for name, weight in self.named_parameters():
            if weight.ndim != 2 or "conv1d" in name:
                continue
            std = weight.shape[1] ** -0.5
            if name == "token_embd.weight":
                std = 1.0
            elif name == "output.weight":
                std = 0.02
            elif name.split(".")[-2] in ("ssm_out", "attn_output", "ffn_down"):
                std *= 0.3
            nn.init.normal_(weight, std=std)
        H, G, Dh = self.config.num_attention_heads, self.config.num_key_value_heads, self.config.head_dim
        for block in self.blk:
            mixer = block.mixer
            if block.full_attention:
                queries, keys = mixer.attn_q.weight.view(H, 2, Dh, -1), mixer.attn_k.weight.view(G, Dh, -1)
                for group in range(G):
                    queries[group * (H // G), 0] = keys[group]
            else:
                size = mixer.key_size
                mixer.attn_qkv.weight[size : 2 * size] = mixer.attn_qkv.weight[:size]
                mixer.ssm_conv1d[size : 2 * size] = mixer.ssm_conv1d[:size]

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float()[..., None] * self.inverse_frequencies
        return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


class Session:
    """Cached decoding of one sequence."""

    def __init__(self, model: Model):
        self.model = model
        self.cache = [block.mixer.new_cache() for block in model.blk]

    @torch.no_grad()
    def step(self, token_ids: list[int], positions: list[int]) -> tuple[Tensor, list[Tensor]]:
        """(logits [V] of the last token, its softmax rows [1, H, S] in each attention layer)."""
        model, rows = self.model, []
        rotary = model.rotary(torch.tensor([positions]))
        x = model.token_embd(torch.tensor([token_ids]))
        for block, cache in zip(model.blk, self.cache, strict=True):
            h = block.attn_norm(x)
            if block.full_attention:
                y, layer_rows = block.mixer(h, rotary, cache)
                rows.append(layer_rows)
            else:
                y = block.mixer(h, cache)
            x = x + y
            h = block.post_attention_norm(x)
            x = x + block.ffn_down(F.silu(block.ffn_gate(h)) * block.ffn_up(h))
        return model.output(model.output_norm(x)[0, -1]), rows
