"""What was recorded: numpy arrays by name, in the forms that other tools take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from vkprefill.display import quoted
from vkprefill.engine.forward import EMBEDDED, NORMALIZED
from vkprefill.engine.memory import MemoryBill
from vkprefill.engine.microscope.names import (
    KEYS,
    LOGITS,
    OF_VALUE_HEADS,
    Name,
    Shapes,
    from_end,
    full_name,
    layer_of,
    local_name,
)
from vkprefill.errors import RequestError
from vkprefill.vulkan.host_memory import require_ram

if TYPE_CHECKING:
    from vkprefill.engine.microscope.head import Head


class ActivationCache(Mapping):
    """name -> float32 array; `cache["blocks.3.hook_resid_post"]` or `cache["resid_post", 3]`, a layer below 0
    from the end.

    T tokens were recorded. Arrays are [T, D], [T, H, d], [T, Hv], [T, V]; attention rows [H, T, S] over all S keys,
    zero (scores: minus infinity) after the token. States are [Hv, Dk, Dv] after the token where T is 1, else
    [T, Hv, Dk, Dv].

    tokens: int64 [T], which of the run's, counted from the prompt's beginning; positions: int64 [T], theirs; token_ids:
    int64 of the whole run, of which num_prompt are the prompt's and the others generated; logits: float32 [V] after
    the last token that ran; memory: the model's bill with what this run took for its points.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        known: Shapes,
        head: Head,
        *,
        tokens: np.ndarray,
        positions: np.ndarray,
        token_ids: np.ndarray,
        num_prompt: int,
        logits: np.ndarray,
        memory: MemoryBill,
    ) -> None:
        self._known, self._head = known, head
        self.tokens, self.positions, self.token_ids = tokens, positions, token_ids
        self.num_prompt, self.logits, self.memory = num_prompt, logits, memory
        states = [name for name in arrays if name.endswith("ssm_state") and len(tokens) == 1]
        self._arrays = arrays | {name: arrays[name][0] for name in states}

    @property
    def generated_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt :].tolist()

    def __getitem__(self, key: Name) -> np.ndarray:
        """KeyError, with the near names, for what the model does not have or was not recorded."""
        try:
            return self._arrays[full_name(key, self._known)]
        except RequestError as error:
            raise KeyError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"ActivationCache({len(self)} points of {len(self.tokens)} tokens: {', '.join(self)})"

    def lens(self, layers: int | Sequence[int] | None = None) -> np.ndarray:
        """The logit lens: float32 [layers, T, V], the model's last norm and head on the residual stream after layers
        (None: all whose hook_resid_post was recorded; below 0: from the end). Raises RequestError for a layer that was
        not, OutOfMemoryError.
        """
        recorded = [layer_of(name) for name in self if name.endswith(".hook_resid_post")]
        given = recorded if layers is None else [layers] if isinstance(layers, Integral) else layers
        try:
            chosen = [from_end(layer, self._known) for layer in given]
        except TypeError:
            raise RequestError(f"lens: found {quoted(layers)}, wanted layers") from None
        for layer in chosen:
            if layer not in recorded:
                raise RequestError(f"lens: layer {layer}: its hook_resid_post was not recorded")
        if not chosen:
            raise RequestError("lens: no hook_resid_post was recorded")
        rows = np.stack([self["resid_post", layer] for layer in chosen])
        require_ram(4 * math.prod(rows.shape[:2]) * self._known[LOGITS][0], "lens", "layers or tokens")
        logits = self._head.logits(rows.reshape(-1, rows.shape[-1]), normed=False)
        return logits.reshape(*rows.shape[:2], -1)

    def to_transformer_lens(self) -> dict[str, np.ndarray]:
        """Full name -> array with a batch axis of 1 in front, as TransformerLens keeps them:
        `ActivationCache({name: torch.from_numpy(array) ...}, model)`. Value heads of delta-net layers are in its order,
        Hugging Face's, where those of a key head follow one another.
        """
        return {name: self._as_there(name, array)[None] for name, array in self.items()}

    def _as_there(self, name: str, array: np.ndarray) -> np.ndarray:
        """Our value head h reads key head h mod Hk; theirs h div (Hv / Hk)."""
        if local_name(name) not in OF_VALUE_HEADS:
            return array
        shape, key_heads = self._known[name], self._known[f"{name.rpartition('.')[0]}.hook_k"][0]
        order = np.arange(shape[0]).reshape(-1, key_heads).T.reshape(-1)
        return array.reshape(-1, *shape).take(order, axis=1)  # states of a single token have no axis for it

    def to_hf(self) -> dict[str, object]:
        """hidden_states, attentions and logits as a Hugging Face model returns them, of what was recorded: a tuple of
        [1, T, D], the embedding first, the last one after the last norm; a tuple of [1, H, T, S], None for delta-net
        layers; [1, T, V]. What was not recorded is None.
        """
        layers = sorted({layer_of(name) for name in self._known} - {None})
        hidden = [self._arrays.get(name) for name in (EMBEDDED, *(f"blocks.{i}.hook_resid_post" for i in layers[:-1]))]
        hidden.append(self._arrays.get(NORMALIZED))
        rows = [self._arrays.get(f"blocks.{i}.attn.hook_pattern") for i in layers]
        return {
            "hidden_states": tuple(map(_batched, hidden)),
            "attentions": tuple(map(_batched, rows)),
            "logits": _batched(self._arrays.get(LOGITS)),
        }

    def attention(self, layer: int) -> np.ndarray:
        """float32 [1, H, T, T] of a layer whose rows of all tokens were recorded: what bertviz takes of each layer."""
        name = f"blocks.{layer}.attn.hook_pattern"
        if KEYS not in self._known.get(name, ()) or name not in self._arrays:
            raise RequestError(f"attention: layer {layer}: its attn.hook_pattern was not recorded")
        rows = self._arrays[name]
        if rows.shape[1] != rows.shape[2]:
            raise RequestError(f"attention: {rows.shape[1]} rows of {rows.shape[2]} keys, wanted those of all tokens")
        return rows[None]


def _batched(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else array[None]
