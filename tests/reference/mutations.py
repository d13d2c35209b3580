"""Mistakes a reader of the model's description could make, each as a swap of one or two functions of the reference.

They show that the tests would notice: a wrong reference must disagree with llama.cpp's arrays by more than the limit of
the engine's tests, so an engine with that mistake cannot pass. `with mutation.apply():` makes the mistake in every
caller that goes through the modules (a `ReferenceModel` built before included) and undoes it on leaving.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from tests.reference import activations, attention, conv, delta_rule, norm, rope


@dataclass(frozen=True)
class Mutation:
    """title: what is done wrong. swaps: module, function name, the wrong function."""

    title: str
    swaps: tuple[tuple[ModuleType, str, Callable], ...]

    @contextlib.contextmanager
    def apply(self) -> Iterator[None]:
        originals = [(module, name, getattr(module, name)) for module, name, _ in self.swaps]
        try:
            for module, name, wrong in self.swaps:
                setattr(module, name, wrong)
            yield
        finally:
            for module, name, original in originals:
                setattr(module, name, original)


# The right functions, for wrong ones that only change an argument.
_rms_norm, _l2_norm, _causal_conv = norm.rms_norm, norm.l2_norm, conv.causal_conv
_rotate, _angles = rope.rotate, rope.angles


def _decay_after_update(state, q, k, v, log_decay, beta):
    correction = beta[:, None] * (v - np.matmul(state, k[..., None])[..., 0])
    state = state + correction[:, :, None] * k[:, None, :]
    state = state * np.exp(log_decay)[:, None, None]
    return np.matmul(state, q[..., None])[..., 0], state


def _state_read_transposed(state, q, k, v, log_decay, beta):
    state = state * np.exp(log_decay)[:, None, None]
    correction = beta[:, None] * (v - np.matmul(state, k[..., None])[..., 0])
    state = state + correction[:, :, None] * k[:, None, :]
    return np.matmul(state.transpose(0, 2, 1), q[..., None])[..., 0], state


def _recurrent_only(q, k, v, log_decay, beta, state, chunk=64):
    """The chunked form has no single step to break: take the broken recurrent one."""
    return delta_rule.recurrent(q, k, v, log_decay, beta, state)


def _not_interleaved(joint, head_count, head_size):
    query, gate = np.split(joint, 2, axis=1)
    return query.reshape(len(joint), head_count, head_size), gate


def _neighbouring_pairs(x, positions, rotary_dims, base):
    angle = rope.angles(positions, rotary_dims, base)[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle)
    even, odd = x[..., 0:rotary_dims:2], x[..., 1:rotary_dims:2]
    out = x.copy()
    out[..., 0:rotary_dims:2] = even * cos - odd * sin
    out[..., 1:rotary_dims:2] = even * sin + odd * cos
    return out


def _all_visible(query_positions, key_positions):
    return np.ones((len(query_positions), len(key_positions)), bool)


MUTATIONS = (
    Mutation("key heads grouped", ((delta_rule, "key_heads", lambda hv, hk: np.arange(hv) // (hv // hk)),)),
    Mutation("convolution taps reversed", ((conv, "causal_conv", lambda x, w, s: _causal_conv(x, w[:, ::-1], s)),)),
    Mutation("convolution state lost between calls", ((conv, "next_state", lambda x, state: np.zeros_like(state)),)),
    Mutation("no silu after the convolution", ((conv, "activate", lambda y: y),)),
    Mutation("query of the delta rule not scaled", ((delta_rule, "query_scale", lambda size: 1.0),)),
    Mutation("l2 epsilon added to the mean", ((norm, "l2_norm", lambda x, eps: _l2_norm(x, eps * x.shape[-1])),)),
    Mutation("no dt bias", ((delta_rule, "softplus_alpha", lambda alpha, dt_bias: activations.softplus(alpha)),)),
    Mutation(
        "decay after the update", ((delta_rule, "step", _decay_after_update), (delta_rule, "chunked", _recurrent_only))
    ),
    Mutation(
        "state of the delta rule read transposed",
        ((delta_rule, "step", _state_read_transposed), (delta_rule, "chunked", _recurrent_only)),
    ),
    Mutation(
        "sigmoid instead of silu on z",
        ((norm, "gated_rms_norm", lambda x, z, w, eps: norm.rms_norm(x, w, eps) * activations.sigmoid(z)),),
    ),
    Mutation("query and gate not interleaved by head", ((attention, "split_query_gate", _not_interleaved),)),
    Mutation("no key norm", ((norm, "key_norm", lambda k, w, eps: k),)),
    Mutation("KV heads tiled", ((attention, "kv_heads", lambda h, g: np.arange(h) % g),)),
    Mutation("rotation of neighbouring pairs", ((rope, "rotate", _neighbouring_pairs),)),
    Mutation("rotation of the whole head", ((rope, "rotate", lambda x, p, r, base: _rotate(x, p, x.shape[-1], base)),)),
    Mutation("positions ignored", ((rope, "angles", lambda p, r, base: _angles(np.arange(len(p)), r, base)),)),
    Mutation("no causal mask", ((attention, "visible", _all_visible),)),
    Mutation("attention gate without sigmoid", ((attention, "output_gate", lambda gate: gate),)),
    Mutation("one added to norm weights again", ((norm, "rms_norm", lambda x, w, eps: _rms_norm(x, w + 1, eps)),)),
    Mutation(
        "epsilon 1e-5 for 1e-6",
        (
            (norm, "rms_norm", lambda x, w, eps: _rms_norm(x, w, 10 * eps)),
            (norm, "l2_norm", lambda x, eps: _l2_norm(x, 10 * eps)),
        ),
    ),
    Mutation("rotary base 10000", ((rope, "angles", lambda p, r, base: _angles(p, r, 1e4)),)),
)
