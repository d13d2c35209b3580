"""The multi-token-prediction block: a token's embedding and the trunk's row before it, through one attention layer with
keys and values of its own, predict the token after it (DeepSeek-V3, arXiv 2412.19437, section 2.2).
"""

from __future__ import annotations

from dataclasses import replace

from vkprefill.engine import kernels
from vkprefill.engine.halves import half_for
from vkprefill.engine.layers.attention import append_keys_values, attention
from vkprefill.engine.layers.context import LayerContext
from vkprefill.engine.layers.feed_forward import feed_forward
from vkprefill.engine.weights import MTPWeights
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def mtp_context(at: LayerContext) -> LayerContext:
    """Where the block's layer is recorded: its residual stream is not the trunk's, which stays as it is."""
    s = at.scratch
    normed = s.mtp_pair.part("mtp_h", 0, s.mtp_x.shape)  # the pair is not needed any more
    return replace(at, scratch=replace(s, x=s.mtp_x, h=normed))


def mtp_input(p: Program, at: LayerContext, w: MTPWeights, hidden: Buffer, waited: Buffer) -> None:
    """mtp_x[T, D] = eh_proj [embedding of each token ; row of hidden[T, D] of the token before it]; that before the
    first is `waited`.
    """
    s, eps = at.scratch, at.config.rms_norm_eps
    half = half_for(w.eh_proj, at.half)
    kernels.embedding(p, s.token_ids, w.embed_tokens, s.mtp_x)
    kernels.mtp_input(p, s.mtp_x, hidden, waited, w.enorm, w.hnorm, s.mtp_pair, eps=eps, half=half)
    kernels.linear(p, s.mtp_pair, w.eh_proj, s.mtp_x, half=half)


def mtp_fill(p: Program, at: LayerContext, w: MTPWeights, hidden: Buffer) -> None:
    """Append the block's keys and values of this call's tokens; hidden[T, D]: the trunk's rows after its last norm, of
    which the last one waits for the next call.
    """
    waited = at.pool.waiting_row
    if at.few_rows:  # the last one that is accepted will wait
        kernels.last_accepted(p, at.pool.kept.hidden, waited, keep=hidden)
    mtp_input(p, at, w, hidden, waited)
    if not at.few_rows:
        kernels.keep_row(p, hidden, waited)
    own = mtp_context(at)
    kernels.rms_norm(p, own.scratch.x, w.layer.attn_norm, own.scratch.h, eps=at.config.rms_norm_eps, half=at.half)
    append_keys_values(p, own, w.layer.mixer)


def mtp_block(p: Program, at: LayerContext, w: MTPWeights, waited: Buffer) -> None:
    """mtp_hidden[1, D] of one token, whose row before it is `waited`: the row before the token that it predicts."""
    mtp_input(p, at, w, at.scratch.mtp_hidden, waited)
    own, eps = replace(mtp_context(at), pages=at.pool.draft_pages), at.config.rms_norm_eps
    s = own.scratch
    kernels.rms_norm(p, s.x, w.layer.attn_norm, s.h, eps=eps)
    attention(p, own, w.layer.mixer)
    kernels.rms_norm(p, s.x, w.layer.post_attention_norm, s.h, eps=eps)
    feed_forward(p, own, w.layer.mlp)
    kernels.rms_norm(p, s.x, w.shared_head_norm, s.mtp_hidden, eps=eps)
