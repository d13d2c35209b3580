"""Where to mark a prompt while it runs, so that a later one that differs near its end can go on from there.

A mark costs a copy of the recurrent state and a shorter run, so there are few: the beginnings that the caller knows to
be shared; the last line breaks, since a question mostly follows a document on a line of its own; and places whose
distance from the end grows by a factor, so that a prompt that differs in its last n tokens runs a few times n.
"""

from __future__ import annotations

from collections.abc import Sequence

from vkprefill.text.tokenizer import Tokenizer

LEAST_FROM_END, FACTOR = 16, 4
LINE_BREAKS = 2
LEAST_GAP = 8  # tokens between marks, unless the caller wants both


def mark_places(token_ids: Sequence[int], wanted: Sequence[int], first: int, tokenizer: Tokenizer) -> list[int]:
    """Rising lengths of beginnings to mark, above `first` (tokens that are cached) and below the whole prompt.

    wanted: the caller's, the last being that of the history, whose own text ends there.
    """
    end = len(token_ids)
    places = {n for n in wanted if first < n < end}
    for place in (*_line_breaks(token_ids, max(wanted, default=end), first, tokenizer), *_from_end(end)):
        if first + LEAST_GAP <= place < end and all(abs(place - other) >= LEAST_GAP for other in places):
            places.add(place)
    return sorted(places)


def _line_breaks(token_ids: Sequence[int], end: int, first: int, tokenizer: Tokenizer) -> list[int]:
    """The last places before `end` that follow a line break."""
    found: list[int] = []
    for place in range(end - 1, first, -1):
        if tokenizer.token_bytes(token_ids[place - 1]).endswith(b"\n"):
            found.append(place)
            if len(found) == LINE_BREAKS:
                break
    return found


def _from_end(end: int) -> list[int]:
    places, distance = [], LEAST_FROM_END
    while distance < end:
        places.append(end - distance)
        distance *= FACTOR
    return places
