"""A cache that begins with a copy of what another one holds: the same bits as its own prefill, and both go on."""

import numpy as np
import pytest

from vkprefill import RequestError, SamplingConfig, Session
from vkprefill.errors import OutOfMemoryError
from vkprefill.generation.options import AnswerOptions

GREEDY = SamplingConfig(temperature=0.0)


@pytest.mark.parametrize("length", [1, 70, 256, 300])
def test_copy_goes_on_as_the_original(tiny, length):
    ids = np.random.Generator(np.random.SFC64(7)).integers(0, 256, 700).tolist()
    first, second, alone = (tiny.new_cache() for _ in range(3))
    try:
        tiny.extend(ids[:length], first)
        snapshot = first.snapshot()
        tiny.extend(ids[length : length + 90], first)
        second.start_from(first, snapshot)
        assert (len(second), second.next_position, second.token_ids) == (length, length, ids[:length])
        tiny.extend(ids[:length], alone)
        other = ids[600:640]
        want = tiny.prefill(other, cache=alone)
        assert np.array_equal(tiny.prefill(other, cache=second), want)
        alone.reset()
        tiny.extend(ids[:length], alone)
        tiny.extend(ids[length : length + 90], alone)
        assert np.array_equal(tiny.prefill(other, cache=first), tiny.prefill(other, cache=alone))
    finally:
        for cache in (first, second, alone):
            cache.close()


def test_sessions_share_a_beginning(built_in):
    text = "The river was quiet. " * 20
    ids = [built_in.tokenizer.encode(text + end) for end in ("One day", "Two days", "Three nights")]
    shared = len(built_in.tokenizer.encode(text)) - 1
    first, second, alone = (Session(built_in) for _ in range(3))

    def answer(session: Session, number: int) -> list[int]:
        options = AnswerOptions(4, GREEDY, mark_at=(shared,))
        return [part.token_id for part in session.stream_ids(ids[number], options)]

    answer(first, 0)
    remembered = list(first.prompt)
    mark, exact = first.find(ids[1], AnswerOptions()), AnswerOptions()
    assert second.prompts.start_from(first.prompts, mark)
    assert mark.length == shared == second.find(ids[2], exact).length
    assert answer(second, 1) == answer(alone, 1) and second.find(ids[2], exact).length == shared
    assert list(first.prompt) == remembered and first.find([1, 2, 3], exact) is None
    for session in (first, second, alone):
        session.close()


def test_snapshots_that_cannot_be_copied(tiny):
    first, second = tiny.new_cache(), tiny.new_cache()
    tiny.extend([1, 2, 3], first)
    own, empty = first.snapshot(), second.snapshot()
    for other, snapshot in ((second, own), (second, empty), (first, empty)):
        with pytest.raises(RequestError, match="snapshot: not one of the other cache"):
            tiny.new_cache().start_from(other, snapshot)
    hog = tiny.new_cache()
    tiny.extend([1] * (len(tiny.runner.pool.free_pages) * 256), hog)
    with pytest.raises(OutOfMemoryError):
        second.start_from(first, own)
    for cache in (first, second, hog):
        cache.close()
