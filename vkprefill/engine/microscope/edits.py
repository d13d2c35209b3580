"""Changes of what runs through a model: at a named point, in the rows of chosen tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.display import quoted
from vkprefill.engine.kernels.points import ADD, KEEP, SCALE, SET
from vkprefill.engine.microscope.names import KEYS, LOGITS, Name, Shapes, full_name
from vkprefill.errors import RequestError

OPERATIONS = {"add": ADD, "scale": SCALE, "set": SET, "zero": SET, "call": SET}
STEPS = ("prefill", "decode", "both")
KEPT_BITS = np.uint32(KEEP)

Rewrite = Callable[[np.ndarray, np.ndarray], np.ndarray | None]


@dataclass(frozen=True, eq=False)
class Edit:
    """A change at a point; exactly one of add, scale, set, zero and call.

    name: as for Model.record, of one point; add, set: numbers that are added to the point's, or take their place, of
    its shape for a token, or with an axis of the positions before it; scale: numbers, or one, that they are multiplied
    by; zero: True, or channels (the last axis) that become 0; call(rows [n, ...], positions [n]): a function that
    changes float32 rows or returns new ones, for which the device waits: exact, and slow.
    positions: tokens, counted from the beginning of the prompt, those that are generated go on counting; negative from
    its end; None: all. heads: of a point that has them; None: all. steps: "prefill", "decode" or "both".
    """

    name: Name
    add: object = None
    scale: object = None
    set: object = None
    zero: object = None
    call: Rewrite | None = None
    positions: int | slice | Sequence[int] | None = None
    heads: int | Sequence[int] | None = None
    steps: str = "both"

    def __post_init__(self) -> None:
        given = self._given()
        if len(given) != 1:
            wanted = ", ".join(OPERATIONS)
            raise RequestError(f"edit: found {', '.join(given) or 'nothing to do'}, wanted exactly one of {wanted}")
        if self.steps not in STEPS:
            raise RequestError(f"edit: steps: found {quoted(self.steps)}, wanted one of {', '.join(STEPS)}")
        if self.call is not None and not callable(self.call):
            raise RequestError(f"edit: call: found {quoted(self.call)}, wanted a function")

    @property
    def operation(self) -> str:
        return self._given()[0]

    def _given(self) -> list[str]:
        return [name for name in OPERATIONS if getattr(self, name) is not None and getattr(self, name) is not False]


@dataclass(frozen=True, eq=False)
class PlacedEdit:
    """An edit of one prompt. values uint32 [R, N], bits of float32 or KEEP, N numbers of a token's row; row_of: token
    -> row of them, None: the first for all.
    """

    name: str
    edit: Edit
    op: int
    shape: tuple[int, ...]
    values: np.ndarray
    row_of: dict[int, int] | None

    def applies(self, *, decode: bool) -> bool:
        return self.edit.steps in ("both", "decode" if decode else "prefill")

    def rows(self, first: int, count: int, none: int) -> np.ndarray:
        """uint32 [count]: of each token from `first` on the row that changes it, or `none`."""
        if self.row_of is None:
            return np.zeros(count, np.uint32)
        return np.array([self.row_of.get(first + i, none) for i in range(count)], np.uint32)

    @property
    def changes_nothing(self) -> bool:
        return self.edit.call is None and bool((self.values == KEPT_BITS).all())


def place(edit: Edit, shapes: Shapes, num_tokens: int) -> PlacedEdit:
    """For a prompt of num_tokens tokens. RequestError for what the point cannot take."""
    if not isinstance(edit, Edit):
        raise RequestError(f"edits: found {type(edit).__name__}, wanted vkprefill.Edit")
    name = full_name(edit.name, shapes)
    shape = shapes[name]
    if KEYS in shape or name == LOGITS:
        raise RequestError(f"edit: {name} can be read only; edit what it is made of, or what comes of it")
    chosen = _positions(edit, num_tokens)
    if edit.call is not None:
        size = int(np.prod(shape))
        row_of = None if chosen is None else {token: row for row, token in enumerate(chosen)}
        return PlacedEdit(name, edit, SET, shape, np.zeros((0, size), np.uint32), row_of)
    values = _values(edit, name, shape, chosen)
    if chosen is None and len(values) > 1:
        chosen = list(range(len(values)))
    row_of = None
    if chosen is not None:
        row_of = {token: row if len(values) > 1 else 0 for row, token in enumerate(chosen)}
    return PlacedEdit(name, edit, OPERATIONS[edit.operation], shape, values, row_of)


def _positions(edit: Edit, num_tokens: int) -> list[int] | None:
    given = edit.positions
    if given is None:
        return None
    if isinstance(given, slice):
        return list(range(num_tokens))[given]
    array = np.atleast_1d(np.asarray(given))
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise RequestError(
            f"edit: positions: found {quoted(given)}, wanted tokens, counted from the prompt's beginning"
        )
    chosen = [int(i) + num_tokens if i < 0 else int(i) for i in array]
    if min(chosen) < 0 or len(set(chosen)) < len(chosen):
        raise RequestError(f"edit: positions: found {quoted(given)}, wanted each token once, from -{num_tokens} on")
    return chosen


def _values(edit: Edit, name: str, shape: tuple[int, ...], chosen: list[int] | None) -> np.ndarray:
    """uint32 [R, N]: one row for all tokens, or one for each of those chosen."""
    what = f"edit: {edit.operation}: of {name}"
    heads, mask = _heads(edit, name, shape), np.ones(shape, bool)
    if edit.operation == "zero":
        number = np.zeros(1, np.float32)
        if edit.zero is not True:
            mask[...] = False
            mask[..., _indices("zero", edit.zero, shape[-1])] = True
    else:
        try:
            number = np.asarray(getattr(edit, edit.operation), np.float32)
        except (TypeError, ValueError):
            number = np.full(1, np.nan, np.float32)
        if not np.isfinite(number).all():
            raise RequestError(f"{what}: wanted finite numbers")
    part = (len(heads), *shape[1:])  # what numbers are given for
    count = len(number) if number.ndim > len(shape) else 1
    if chosen is not None and count not in (1, len(chosen)):
        raise RequestError(f"{what}: {count} rows, wanted 1 or {len(chosen)}, one for each position")
    whole = np.zeros((count, *shape), np.float32)
    try:
        whole[:, heads] = np.broadcast_to(number, (count, *part))
    except ValueError:
        wanted = f"{list(part)}, with the positions before it where they differ"
        raise RequestError(f"{what}: found shape {list(number.shape)}, wanted {wanted}") from None
    outside = np.ones(shape[0], bool)
    outside[heads] = False
    mask[outside] = False
    op = OPERATIONS[edit.operation]
    changes = mask & (whole != {ADD: 0.0, SCALE: 1.0}[op]) if op != SET else np.broadcast_to(mask, whole.shape)
    return np.where(changes, whole.view(np.uint32), KEPT_BITS).reshape(count, -1)


def _heads(edit: Edit, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Indices on the first axis of a token's row that change."""
    if edit.heads is None:
        return np.arange(shape[0])
    if len(shape) < 2 and not name.endswith(("log_decay", "beta")):
        raise RequestError(f"edit: heads: {name} has none")
    return _indices("heads", edit.heads, shape[0])


def _indices(what: str, given: object, size: int) -> np.ndarray:
    try:
        array = np.atleast_1d(np.asarray(given))
        valid = array.ndim == 1 and array.dtype.kind in "iu" and array.size and array.min() >= 0 and array.max() < size
    except ValueError:
        valid = False
    if not valid:
        raise RequestError(f"edit: {what}: found {quoted(given)}, wanted some of 0 to {size - 1}")
    return np.unique(array)
