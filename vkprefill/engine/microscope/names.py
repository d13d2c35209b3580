"""Names of what can be looked at inside a model, TransformerLens's where it has one; the shape of a token's row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from numbers import Integral

from vkprefill.display import printable, quoted
from vkprefill.engine.forward import EMBEDDED, NORMALIZED
from vkprefill.errors import RequestError
from vkprefill.gguf.config import FULL_ATTENTION, ModelConfig

LOGITS = "hook_logits"
STATE, SCORES, PATTERN = "linear_attn.hook_ssm_state", "attn.hook_attn_scores", "attn.hook_pattern"  # in a layer
SCALED = "linear_attn.hook_q"  # in a layer: the only point whose numbers are those of its buffer times a factor
VALUE_HEADS = "v_pre_conv", "gate_input", "v", "log_decay", "beta", "recurrence_out", "ssm_state"
OF_VALUE_HEADS = frozenset(f"linear_attn.hook_{name}" for name in VALUE_HEADS)  # their first axis
KEYS = -1  # in a shape: as many as there are keys

Name = str | tuple
Shapes = dict[str, tuple[int, ...]]


def point_shapes(c: ModelConfig) -> Shapes:
    """Every name that a model has, in the order of the forward pass -> shape of a token's row.

    Letters of ARCHITECTURE.md: [D], heads [H, Dh], [Hk, Dk], [Hv, Dv]; numbers of a head [Hv]; states [Hv, Dk, Dv];
    attention rows [H, KEYS].
    """
    width = (c.hidden_size,)
    shapes: Shapes = {EMBEDDED: width}
    for layer, kind in enumerate(c.layer_types):
        of_layer = {"hook_resid_pre": width}
        of_layer |= _attention(c) if kind == FULL_ATTENTION else _delta_net(c)
        of_layer |= {"hook_attn_out": width, "hook_resid_mid": width}
        if c.experts is None:
            of_layer |= {f"mlp.hook_{name}": (c.intermediate_size,) for name in ("pre", "pre_linear", "post")}
        of_layer |= {"hook_mlp_out": width, "hook_resid_post": width}
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in of_layer.items()}
    return shapes | {NORMALIZED: width, LOGITS: (c.vocab_size,)}


def _attention(c: ModelConfig) -> Shapes:
    heads, kv_heads = (c.num_attention_heads, c.head_dim), (c.num_key_value_heads, c.head_dim)
    rows = c.num_attention_heads, KEYS
    shapes = {"q": heads, "k": kv_heads, "v": kv_heads, "rot_q": heads, "rot_k": kv_heads}
    shapes |= {"attn_scores": rows, "pattern": rows, "z": heads}
    return {f"attn.hook_{name}": shape for name, shape in shapes.items()}


def _delta_net(c: ModelConfig) -> Shapes:
    keys = c.linear_num_key_heads, c.linear_key_head_dim
    values, each = (c.linear_num_value_heads, c.linear_value_head_dim), (c.linear_num_value_heads,)
    shapes = {"in": (c.hidden_size,), "q_pre_conv": keys, "k_pre_conv": keys, "v_pre_conv": values}
    shapes |= {"gate_input": values, "q": keys, "k": keys, "v": values, "log_decay": each, "beta": each}
    shapes |= {"recurrence_out": values, "ssm_state": (values[0], keys[1], values[1]), "out": (c.hidden_size,)}
    return {f"linear_attn.hook_{name}": shape for name, shape in shapes.items()}


def short_name(name: str) -> str:
    """`blocks.3.attn.hook_q` -> `q`."""
    return name.rsplit(".", 1)[-1].removeprefix("hook_")


def layer_of(name: str) -> int | None:
    """None for what is outside the layers."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else None


def local_name(name: str) -> str:
    """`blocks.3.attn.hook_q` -> `attn.hook_q`; what is outside the layers as it is."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name


def expand(wishes: Name | Sequence[Name], known: Iterable[str]) -> list[str]:
    """The full names that are meant, in the order of `known`. RequestError for what means none, with those near it."""
    known = list(known)
    given = [wishes] if isinstance(wishes, str) or _is_key(wishes) else wishes
    try:
        chosen = {name for wish in given for name in _meant(wish, known)}
    except TypeError:
        raise RequestError(f"names: found {quoted(wishes)}, wanted names of points") from None
    if not chosen:
        raise RequestError("names: none given, wanted at least one")
    return [name for name in known if name in chosen]


def _meant(wish: Name, known: list[str]) -> list[str]:
    """A full name, one with * in it, a short one of every layer, or (short name, layer[, part of the layer])."""
    if _is_key(wish):
        return [full_name(wish, known)]
    if not isinstance(wish, str):
        raise _no_name(wish)
    found = _matching(wish, known)
    if not found:
        raise _unknown(wish, known)
    return found


def _is_key(wish: object) -> bool:
    """(short name, layer[, part of the layer]), not several names."""
    return isinstance(wish, tuple) and 2 <= len(wish) <= 3 and isinstance(wish[1], Integral)


def full_name(key: Name, known: Iterable[str]) -> str:
    """One name: itself, or "embed", ("q", 3), ("q", 3, "attn"); a layer below 0 counts from the end. RequestError for
    what is none or not one.
    """
    known = list(known)
    parts = key if isinstance(key, tuple) and 1 <= len(key) <= 3 else (key,)
    short, layer, part = (*parts, None, None)[:3]
    if not (isinstance(short, str) and isinstance(layer, Integral | None) and isinstance(part, str | None)):
        raise _no_name(key)
    found = _matching(short, known)
    if layer is not None:
        wanted = from_end(layer, known)
        found = [name for name in found if layer_of(name) == wanted]
    if part is not None:
        found = [name for name in found if local_name(name).startswith(f"{part}.")]
    if not found:
        raise _unknown(key, known)
    if len(found) > 1:
        names = ", ".join(found[:4]) + (", ..." if found[4:] else "")
        raise RequestError(f"names: found {printable(key)}, which names {len(found)} points, wanted one of {names}")
    return found[0]


def from_end(layer: int, known: Iterable[str]) -> int:
    """A layer below 0 counts from the end."""
    return layer if layer >= 0 else layer + 1 + max(layer_of(name) or 0 for name in known)


def _matching(wish: str, known: list[str]) -> list[str]:
    """What a full name, one with * in it, or a short one means."""
    if not wish.strip():
        raise _no_name(wish)
    if wish in known:
        return [wish]
    if "*" in wish:
        return [name for name in known if fnmatchcase(name, wish)]
    return [name for name in known if wish in (short_name(name), local_name(name))]


def _no_name(wish: object) -> RequestError:
    return RequestError(f"names: found {quoted(wish)}, wanted a name of a point, or (short name, layer)")


def _unknown(wish: object, known: list[str]) -> RequestError:
    """With the near names: of the same layer where one is named."""
    if isinstance(wish, tuple):
        text = f"blocks.{wish[1]}.hook_{wish[0]}" if len(wish) > 1 else str(wish[0])
    else:
        text = str(wish)
    layer = ".".join(text.split(".")[:2]) + "."
    pool = [name for name in known if name.startswith(layer)] if text.startswith("blocks.") else []
    pool = pool or [*known, *{short_name(name) for name in known}]
    near = get_close_matches(text, pool, 5, 0.5) or get_close_matches(short_name(text), pool, 5, 0.5)
    # A name that another kind of layer has: those that differ from it in the layer alone.
    near = [name for name in known if local_name(name) == local_name(text)][:4] + near if "." in text else near
    hint = ", ".join(dict.fromkeys(near)) or ", ".join(known[:4])
    return RequestError(f"names: found {printable(wish)}, which the model does not have; near it: {hint}")
