"""SpecDecodeConfig: where drafted tokens come from, and how many."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from vkprefill.checks import MOST_INTEGER, check_number
from vkprefill.display import quoted
from vkprefill.engine.sizes import HEAD_ROWS, MAX_DRAFTS
from vkprefill.errors import RequestError

NONE, AUTO, MTP, NGRAM, NGRAM_OR_MTP = "none", "auto", "draft-mtp", "ngram", "draft-mtp,ngram"
TYPES = (NONE, AUTO, MTP, NGRAM, NGRAM_OR_MTP)
OTHER_ORDER = "ngram,draft-mtp"  # of the last one, which it is the same as: a list, as llama.cpp has it
SPELLINGS = (*TYPES, OTHER_ORDER)

# setting: type, least, greatest
LIMITS = {
    "n_max": (Integral, 1, MAX_DRAFTS),
    "n_min": (Integral, 0, MAX_DRAFTS),
    "p_min": (Real, 0, 1),
    "head_rows": (Integral, 0, MOST_INTEGER),
}


@dataclass(frozen=True)
class SpecDecodeConfig:
    """How tokens are drafted, several of which decode verifies in one run: the answer is the same with and without.

    Attributes:
        type: "draft-mtp": by the file's multi-token-prediction block; "ngram": looked up in the prompt and in the
            answer so far; "draft-mtp,ngram": looked up where at least 3 tokens match, else by the block; "auto": by the
            block where the file has one; "none": not at all. "ngram,draft-mtp" is taken as "draft-mtp,ngram".
        n_max: 1 to 7; most tokens of a draft.
        n_min: 0 to n_max; shorter drafts are dropped, except where the answer ends with them.
        p_min: 0 to 1; the block's draft ends before a token that it finds less probable.
        adaptive: draft fewer, or none, where that has been measured to be faster; else always n_max.
        head_rows: rows of the vocabulary that the block chooses from, the special tokens and the prompt's beside; 0:
            all.

    Raises:
        RequestError: a value out of its range or of the wrong type.
    """

    type: str = AUTO
    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0
    adaptive: bool = True
    head_rows: int = HEAD_ROWS

    def __post_init__(self) -> None:
        if self.type == OTHER_ORDER:
            object.__setattr__(self, "type", NGRAM_OR_MTP)
        if self.type not in TYPES:
            raise RequestError(f"type: found {quoted(self.type)}, wanted one of {' | '.join(TYPES)}")
        for name, (kind, least, most) in LIMITS.items():
            check_number(name, getattr(self, name), kind, least, most)
        if not isinstance(self.adaptive, bool):
            raise RequestError(f"adaptive: found {quoted(self.adaptive)}, wanted true or false")
        if self.n_min > self.n_max:
            raise RequestError(f"n_min: found {self.n_min}, wanted at most n_max, which is {self.n_max}")

    @property
    def sources(self) -> tuple[str, ...]:
        """NGRAM and MTP as they are asked for drafts, in order; AUTO and NONE ask for none."""
        return {MTP: (MTP,), NGRAM: (NGRAM,), NGRAM_OR_MTP: (NGRAM, MTP)}.get(self.type, ())


def check_config(decode: object) -> None:
    """RequestError for what is no SpecDecodeConfig."""
    if not isinstance(decode, SpecDecodeConfig):
        raise RequestError(f"decode: found {type(decode).__name__}, wanted SpecDecodeConfig")
