"""Drafts of a reference model's multi-token-prediction block: what it keeps between calls, chains, rounds of decoding.

DeepSeek-V3 (arXiv 2412.19437), section 2.2, in GGUF's conventions. Each small function is one thing that a reader could
get wrong (mtp_mutations.py); `ReferenceModel.forward_mtp` is the block itself.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.reference import norm

if TYPE_CHECKING:
    from tests.reference.forward import KVState, ReferenceModel, State

Arrays = dict[str, np.ndarray]


def normed_halves(
    embedded: np.ndarray, hidden: np.ndarray, enorm: np.ndarray, hnorm: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    return norm.rms_norm(embedded, enorm, eps), norm.rms_norm(hidden, hnorm, eps)


def joined(embedded: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """[T, 2D], the embedding first."""
    return np.concatenate([embedded, hidden], axis=-1)


def block_input(
    embedded: np.ndarray, hidden: np.ndarray, enorm: np.ndarray, hnorm: np.ndarray, eps: float
) -> np.ndarray:
    return joined(*normed_halves(embedded, hidden, enorm, hnorm, eps))


def residual_start(projected: np.ndarray, embedded: np.ndarray) -> np.ndarray:
    return projected


def optional(weights: Arrays, own: str, trunk: str) -> str:
    """Name of the block's own tensor where the file has it, else of the trunk's."""
    return own if own + ".weight" in weights else trunk


def rows_of(trunk: Arrays) -> np.ndarray:
    """[T, D]: what of the trunk's pass the block reads."""
    return trunk["result_norm"]


def rows_before(waiting: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """[T, D]: of each token of a call the trunk's row one token earlier; the first takes the one that waited."""
    return np.concatenate([waiting[None], rows[:-1]])


def first_row(width: int) -> np.ndarray:
    return np.zeros(width)


def waiting_after(rows: np.ndarray) -> np.ndarray:
    """[D]: of a call's rows the one that the next call begins with."""
    return rows[-1]


def position_of(positions: np.ndarray) -> np.ndarray:
    """Where the block's rows are: at their tokens."""
    return positions


def next_hidden(step: Arrays, before: np.ndarray) -> np.ndarray:
    """[D]: what the next row of a chain reads, after a step whose own was `before`."""
    return step["h_nextn"][0]


def next_position(position: int) -> int:
    return position + 1


def filled(state: KVState) -> KVState:
    """The block's cache after its prompt rows."""
    return state


def without_drafts(before: KVState, after: KVState) -> KVState:
    """The block's cache once a chain has run."""
    return before


@dataclass(frozen=True)
class Round:
    token: int
    position: int
    drafts: list[int]
    accepted: int
    first_logits: np.ndarray  # [V], of the first draft


class DraftState:
    """The block's keys and values, and the trunk's row that waits for its next token."""

    def __init__(self, model: ReferenceModel) -> None:
        self.model, self.kv = model, model.new_kv_state()
        self.waiting = first_row(model.weights["output_norm.weight"].size)

    def feed(self, token_ids: np.ndarray, positions: np.ndarray, trunk: Arrays) -> Arrays:
        """The block over tokens that the trunk has just run; `trunk`: the arrays of that."""
        rows = rows_of(trunk)
        hidden = rows_before(self.waiting, rows)
        out = self.model.forward_mtp(hidden, token_ids, position_of(np.asarray(positions)), self.kv)
        self.kv, self.waiting = filled(self.kv), waiting_after(rows)
        return out

    def draft(self, token: int, position: int, count: int) -> tuple[list[int], list[Arrays]]:
        """`count` greedy drafts after a token that the trunk has not run."""
        kv, hidden, drafts, steps = copy.deepcopy(self.kv), self.waiting, [], []
        for _ in range(count):
            step = self.model.forward_mtp(hidden[None], [token], position_of(np.array([position])), kv)
            hidden, position = next_hidden(step, hidden), next_position(position)
            token = int(step["result_output"][0].argmax())
            drafts.append(token)
            steps.append(step)
        self.kv = without_drafts(self.kv, kv)
        return drafts, steps


def count_accepted(drafts: list[int], best: list[int]) -> int:
    """Leading drafts that are what the trunk takes itself."""
    count = 0
    while count < len(drafts) and drafts[count] == best[count]:
        count += 1
    return count


def taken_back(before: State, after: State) -> State:
    """The trunk's state to run the accepted rows on."""
    return before


def rows_kept(accepted: int, rows: int) -> int:
    """Of the rows of a verification those that become part of the sequence: the last token's and the accepted."""
    return accepted + 1


def last_kept(rows: np.ndarray, kept: int) -> np.ndarray:
    """[D]: of a verification's rows the one that waits for the next token."""
    return rows[kept - 1]


def speculate(
    model: ReferenceModel, prompt: np.ndarray, positions: np.ndarray, rounds: int, count: int
) -> tuple[list[int], list[Round], State]:
    """Greedy decoding with `count` drafts a round: (tokens, rounds, state of the trunk before the last token)."""
    state, drafter = model.new_state(), DraftState(model)
    out = model.forward(prompt, positions, state)
    drafter.feed(prompt, positions, out)
    token, position, done = int(out["result_output"][-1].argmax()), int(positions[-1]) + 1, []
    text = [token]
    for _ in range(rounds):
        drafts, steps = drafter.draft(token, position, count)
        before = copy.deepcopy(state)
        tokens, where = np.array([token, *drafts]), position + np.arange(count + 1)
        verified = model.forward(tokens, where, state)
        best = [int(row.argmax()) for row in verified["result_output"]]
        accepted = count_accepted(drafts, best)
        kept = rows_kept(accepted, count + 1)
        if kept < count + 1:
            state = taken_back(before, state)
            model.forward(tokens[:kept], where[:kept], state)
        drafter.feed(tokens[:kept], where[:kept], {"result_norm": verified["result_norm"][:kept]})
        drafter.waiting = last_kept(verified["result_norm"], kept)
        text += best[: accepted + 1]
        done.append(Round(token, position, drafts, accepted, steps[0]["result_output"][0]))
        token, position = best[accepted], position + accepted + 1
    return text, done, state
