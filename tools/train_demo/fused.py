"""The model's forward for training and teacher-forced evaluation: fused.c's kernels, bfloat16 products, no cache."""

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from model import Attention, Model, rotate
from torch import Tensor

SOURCE = Path(__file__).resolve().parent / "fused.c"
LIBRARY = SOURCE.with_name("libfused.so")  # fused.so would be imported in place of this file
HEAD_DIM, STATE_CHUNK = 64, 32  # fused.c's DIM and CHUNK
SUPERVISED_HEADS = (0, 2)  # of every attention layer: the value, and the words before it


def load_library() -> ctypes.CDLL:
    """fused.c for this machine's CPU, compiled when it is missing or older than its source."""
    if not LIBRARY.exists() or LIBRARY.stat().st_mtime < SOURCE.stat().st_mtime:
        options = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
        subprocess.run(["gcc", *options, str(SOURCE), "-o", str(LIBRARY), "-lmvec", "-lm"], check=True)
    return ctypes.CDLL(str(LIBRARY))


LIB = load_library()


def call(function, *arguments):
    """Calls a C function: tensors as pointers, the first argument (a row or batch count) as its type there."""
    function(*(ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments))


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        x = x.contiguous()
        rows, dim = x.numel() // x.shape[-1], x.shape[-1]
        y, inv_rms = torch.empty(x.shape, dtype=torch.bfloat16), torch.empty(rows)
        call(LIB.rms_norm_forward, ctypes.c_long(rows), dim, x, weight, y, inv_rms)
        ctx.save_for_backward(x, weight, inv_rms)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, inv_rms = ctx.saved_tensors
        dx, dweight = torch.empty_like(x), torch.zeros_like(weight)
        rows = ctypes.c_long(inv_rms.numel())
        call(LIB.rms_norm_backward, rows, x.shape[-1], x, weight, inv_rms, dy.contiguous(), dx, dweight)
        return dx, dweight


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up):
        gate_up = gate_up.contiguous()
        dim = gate_up.shape[-1] // 2
        y = torch.empty(*gate_up.shape[:-1], dim, dtype=torch.bfloat16)
        call(LIB.swiglu_forward, ctypes.c_long(y.numel() // dim), dim, gate_up, y)
        ctx.save_for_backward(gate_up)
        return y

    @staticmethod
    def backward(ctx, dy):
        (gate_up,) = ctx.saved_tensors
        dim = gate_up.shape[-1] // 2
        dgate_up = torch.empty_like(gate_up)
        rows = ctypes.c_long(gate_up.numel() // (2 * dim))
        call(LIB.swiglu_backward, rows, dim, gate_up, dy.contiguous(), dgate_up)
        return dgate_up


class DeltaNet(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, conv_weight, dt, A_log, norm_weight, num_key_heads, num_value_heads):
        x = x.contiguous()
        B, T, _ = x.shape
        channels, values = (2 * num_key_heads + num_value_heads) * HEAD_DIM, num_value_heads * HEAD_DIM
        conv_weight, A = conv_weight.t().contiguous(), -A_log.exp()
        y = torch.empty(B, T, values, dtype=torch.bfloat16)
        conv, out = torch.empty(B, T, channels), torch.empty(B, T, values)
        states = torch.empty(B, num_value_heads, -(-T // STATE_CHUNK), HEAD_DIM, HEAD_DIM)
        ctx.sizes = (B, T, num_key_heads, num_value_heads)
        call(LIB.delta_net_forward, *ctx.sizes, x, conv_weight, dt, A, norm_weight, y, conv, out, states)
        ctx.save_for_backward(x, conv_weight, dt, A, norm_weight, conv, out, states)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, conv_weight, dt, A, norm_weight, *_ = ctx.saved_tensors
        dx = torch.empty_like(x)
        gradients = [torch.zeros_like(weight) for weight in (conv_weight, dt, A, norm_weight)]
        call(LIB.delta_net_backward, *ctx.sizes, *ctx.saved_tensors, dy.contiguous(), dx, *gradients)
        dconv_weight, ddt, dA_log, dnorm_weight = gradients
        return dx, dconv_weight.t().contiguous(), ddt, dA_log, dnorm_weight, None, None


def project(x: Tensor, *layers: torch.nn.Linear) -> Tensor:
    """x through several linear layers at once, their outputs side by side."""
    return F.linear(x, torch.cat([layer.weight for layer in layers]).bfloat16())


def supervised_scores(q: Tensor, k: Tensor, sequences: Tensor, queries: Tensor) -> Tensor:
    """Attention scores [2, N, T] of chosen query rows in the supervised heads; rows are sorted by sequence."""
    B, H, T, Dh = q.shape
    group_size = H // k.shape[1]
    parts, start = [], 0
    for b, count in enumerate(torch.bincount(sequences, minlength=B).tolist()):
        rows = queries[start : start + count]
        parts.append(torch.stack([q[b, h, rows] @ k[b, h // group_size].T for h in SUPERVISED_HEADS]))
        start += count
    scores = torch.cat(parts, 1) * Dh**-0.5
    return scores.masked_fill(torch.arange(T)[None] > queries[:, None], -1e9)


def attention(layer: Attention, x: Tensor, rotary, supervised) -> tuple[Tensor, Tensor | None]:
    B, T, _ = x.shape
    H, G, Dh = layer.config.num_attention_heads, layer.config.num_key_value_heads, layer.config.head_dim
    y = project(x, layer.attn_q, layer.attn_k, layer.attn_v)
    q, k, v = y.split([2 * H * Dh, G * Dh, G * Dh], -1)
    q, gate = q.reshape(B, T, H, 2 * Dh).split(Dh, -1)
    q = RMSNorm.apply(q.float(), layer.attn_q_norm.weight).transpose(1, 2)
    k = RMSNorm.apply(k.reshape(B, T, G, Dh).float(), layer.attn_k_norm.weight).transpose(1, 2)
    v = v.reshape(B, T, G, Dh).transpose(1, 2)
    q, k = rotate(q.float(), *rotary), rotate(k.float(), *rotary)
    scores = None if supervised is None else supervised_scores(q, k, *supervised)
    k, v = (part.bfloat16().repeat_interleave(H // G, 1) for part in (k, v))
    out = F.scaled_dot_product_attention(q.bfloat16(), k, v, is_causal=True)
    out = out.transpose(1, 2) * gate.sigmoid()
    return project(out.reshape(B, T, H * Dh), layer.attn_output), scores


@dataclass(frozen=True)
class Forward:
    hidden: Tensor  # bfloat16 [B, T, D], after the last norm
    scores: list[Tensor]  # per attention layer, float32 [2, N, T]: supervised_scores
    attention_inputs: list[Tensor]  # per attention layer, bfloat16 [B, T, D]


def forward(model: Model, token_ids: Tensor, positions: Tensor, supervised=None) -> Forward:
    """The model's hidden rows; `supervised`: (sequence [N], query [N]) of the rows whose scores are wanted."""
    rotary = model.rotary(positions)
    config, x = model.config, model.token_embd(token_ids)
    all_scores, inputs = [], []
    for block in model.blk:
        h, mixer = RMSNorm.apply(x, block.attn_norm.weight), block.mixer
        if block.full_attention:
            inputs.append(h)
            y, scores = attention(mixer, h, rotary, supervised)
            if scores is not None:
                all_scores.append(scores)
        else:
            y = project(h, mixer.attn_qkv, mixer.attn_gate, mixer.ssm_alpha, mixer.ssm_beta)
            weights = (mixer.ssm_conv1d, mixer.ssm_dt, mixer.A_log, mixer.ssm_norm.weight)
            y = project(DeltaNet.apply(y, *weights, config.num_key_heads, config.num_value_heads), mixer.ssm_out)
        x = x + y
        h = RMSNorm.apply(x, block.post_attention_norm.weight)
        x = x + project(SwiGLU.apply(project(h, block.ffn_gate, block.ffn_up)), block.ffn_down)
    return Forward(RMSNorm.apply(x, model.output_norm.weight), all_scores, inputs)
