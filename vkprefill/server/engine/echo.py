"""Log-probabilities of a prompt's own tokens, for requests that echo it: of the whole prompt, run densely once more."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from vkprefill.engine.model import Model
from vkprefill.server.engine.logprobs import chances_of


def prompt_chances(
    model: Model, token_ids: Sequence[int], num_logprobs: int, progress: Callable[[int, int], None]
) -> Generator[list[list[tuple[int, float]]], None, None]:
    """For each token but the first one (id, log-probability): the token, then the num_logprobs most probable ones; as
    many tokens at a time as a run of the model has.
    """
    with closing(model.logit_rows(token_ids, progress=progress)) as parts:
        for start, rows in parts:
            following = zip(rows, token_ids[start + 1 :], strict=False)
            yield [chances_of(row, token_id, num_logprobs) for row, token_id in following]
