"""Changes of what runs through a model: at a named point, in the rows of chosen tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.display import quoted
from vkprefill.engine.kernels.points import ADD, KEEP, SCALE, SET
from vkprefill.engine.microscope.names import KEYS, LOGITS, SCALED, Name, Shapes, full_name, local_name
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
    its end; None: all. heads: of a point that has them, in the order of the numbers; a function gets their rows alone
    ([n, len(heads), ...]); None: all. steps: "prefill", "decode" or "both".
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
    """An edit of one prompt. heads: those that change, indices on the first axis of `shape`, a token's row; values
    uint32 [R, N], bits of float32 or KEEP, N numbers of a token's row; row_of: token -> row of them, None: the first
    for all.
    """

    name: str
    edit: Edit
    op: int
    shape: tuple[int, ...]
    heads: np.ndarray
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

    @property
    def on_host(self) -> bool:
        """Whether rows come to the host to be changed: for a function, and where the device has them scaled, as numbers
        that do not change must keep their bits.
        """
        return self.edit.call is not None or local_name(self.name) == SCALED

    def changed(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """float32 [n, ...], what the rows [n, ...] of these tokens become. RequestError for what a function may not
        return.
        """
        if self.edit.call is not None:
            return self._called(rows, tokens)
        which = np.array([0 if self.row_of is None else self.row_of[token] for token in tokens.tolist()])
        bits = self.values[which].reshape(rows.shape)
        number = bits.view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            found = rows + number if self.op == ADD else rows * number if self.op == SCALE else number
        return np.where(bits == KEPT_BITS, rows, found)

    def _called(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        given = rows.take(self.heads, axis=1)
        returned = self.edit.call(given, tokens)
        try:
            numbers = np.asarray(given if returned is None else returned)
        except ValueError:
            numbers = np.array(None)
        what = f"edit: call: of {self.name}: it returned"
        if numbers.shape != given.shape or numbers.dtype.kind not in "fiu":
            found = f"{numbers.dtype} of shape {list(numbers.shape)}"
            raise RequestError(f"{what} {found}, wanted numbers of {list(given.shape)}")
        changed = rows.copy()
        with np.errstate(over="ignore"):
            changed[:, self.heads] = numbers
        if not np.isfinite(changed[changed.view(np.uint32) != rows.view(np.uint32)]).all():
            raise RequestError(f"{what} numbers that are not all finite float32")
        return changed


def placed_edits(edits: Edit | Iterable[Edit], shapes: Shapes, num_tokens: int, max_tokens: int) -> list[PlacedEdit]:
    """For a prompt of num_tokens tokens, and max_tokens generated. RequestError for what a point cannot take."""
    if not isinstance(edits, Edit | Iterable):
        raise RequestError(f"edits: found {quoted(edits)}, wanted vkprefill.Edit")
    given = [edits] if isinstance(edits, Edit) else edits
    return [_place(edit, shapes, num_tokens, max_tokens) for edit in given]


def _place(edit: Edit, shapes: Shapes, num_tokens: int, max_tokens: int) -> PlacedEdit:
    if not isinstance(edit, Edit):
        raise RequestError(f"edits: found {type(edit).__name__}, wanted vkprefill.Edit")
    name = full_name(edit.name, shapes)
    shape = shapes[name]
    if KEYS in shape or name == LOGITS:
        raise RequestError(f"edit: {name} can be read only; edit what it is made of, or what comes of it")
    chosen, heads = _positions(edit, num_tokens), _heads(edit, name, shape)
    if edit.call is None:
        values = _values(edit, name, shape, heads, chosen)
        if chosen is None and len(values) > 1:
            chosen = list(range(len(values)))
    else:
        values = np.zeros((0, math.prod(shape)), np.uint32)
    _check_steps(edit, chosen, num_tokens, max_tokens)
    row_of = None
    if chosen is not None:
        row_of = {token: row if len(values) > 1 else 0 for row, token in enumerate(chosen)}
    return PlacedEdit(name, edit, OPERATIONS[edit.operation], shape, heads, values, row_of)


def _positions(edit: Edit, num_tokens: int) -> list[int] | None:
    given = edit.positions
    if given is None:
        return None
    try:
        array = np.arange(num_tokens)[given] if isinstance(given, slice) else np.atleast_1d(np.asarray(given))
    except (TypeError, ValueError):
        array = np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise RequestError(
            f"edit: positions: found {quoted(given)}, wanted tokens, counted from the prompt's beginning"
        )
    chosen = [i + num_tokens if i < 0 else i for i in array.tolist()]
    if min(chosen) < 0 or len(set(chosen)) < len(chosen):
        raise RequestError(f"edit: positions: found {quoted(given)}, wanted each token once, from -{num_tokens} on")
    return chosen


def _check_steps(edit: Edit, chosen: list[int] | None, num_tokens: int, max_tokens: int) -> None:
    """RequestError for tokens that never run, and for an edit none of whose tokens runs in its steps."""
    first = num_tokens if edit.steps == "decode" else 0
    end = num_tokens if edit.steps == "prefill" else num_tokens + max_tokens
    what = f"edit: {edit.operation if edit.positions is None else 'positions'}"
    if first == end:
        raise RequestError("edit: steps: found 'decode' with max_tokens 0, wanted at least 1 to decode")
    if chosen is not None and max(chosen) >= num_tokens + max_tokens:
        raise RequestError(
            f"{what}: found token {max(chosen)}, wanted 0 to {num_tokens + max_tokens - 1}: "
            f"the prompt has {num_tokens}, {max_tokens} are generated"
        )
    if chosen is not None and not any(first <= token < end for token in chosen):
        raise RequestError(f"{what}: found token {chosen[0]}, wanted one of {edit.steps}, {first} to {end - 1}")


def _values(edit: Edit, name: str, shape: tuple[int, ...], heads: np.ndarray, chosen: list[int] | None) -> np.ndarray:
    """uint32 [R, N]: one row for all tokens, or one for each of those chosen."""
    what, mask = f"edit: {edit.operation}: of {name}", np.ones(shape, bool)
    if edit.operation == "zero":
        number = np.zeros(1, np.float32)
        if edit.zero is not True:
            mask[...] = False
            mask[..., _indices("zero", edit.zero, shape[-1])] = True
    else:
        number = _floats(getattr(edit, edit.operation))
        if number is None:
            raise RequestError(f"{what}: wanted finite numbers of float32")
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


def _floats(given: object) -> np.ndarray | None:
    """float32; None for what is no numbers, or not finite."""
    try:
        array = np.asarray(given)
        with np.errstate(over="ignore"):
            number = None if array.dtype.kind in "cmMOSU" else array.astype(np.float32)
    except (OverflowError, TypeError, ValueError):
        return None
    return number if number is not None and np.isfinite(number).all() else None


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
    if not valid or len(np.unique(array)) < len(array):
        raise RequestError(f"edit: {what}: found {quoted(given)}, wanted some of 0 to {size - 1}, each once")
    return array
