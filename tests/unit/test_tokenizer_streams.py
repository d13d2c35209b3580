"""Tokenizer: text of tokens that come one by one."""

import numpy as np
import pytest

from tests.unit.vocabularies import TEXTS, composed
from vkprefill.text.tokenizer import Tokenizer


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text)[:24])
def test_stream_gives_whole_characters(tiny, qwen, text):
    for tokenizer in (tiny, qwen):
        decoder = tokenizer.stream_decoder()
        token_ids = tokenizer.encode(text)
        pieces = [decoder.push(token_id) for token_id in token_ids]
        assert "".join(pieces) == composed(text)
        assert decoder.finish() == ""
        so_far = b""
        for token_id, piece in zip(token_ids, pieces, strict=True):  # as soon as the bytes are there
            so_far += tokenizer._token_bytes(token_id, True)
            complete = so_far.decode(errors="ignore")
            assert piece == complete
            so_far = so_far[len(complete.encode()) :]


@pytest.mark.parametrize("first", range(256))
def test_stream_agrees_with_decode_on_invalid_bytes(tiny, first):
    """Byte tokens in any order: with U+FFFD where Python puts it, and nothing held back for long."""
    random = np.random.default_rng(first)
    for length in range(5):
        raw = [first, *random.integers(0, 256, length).tolist()]
        token_ids = [byte_token(tiny, byte) for byte in raw]
        decoder = tiny.stream_decoder()
        text = "".join(decoder.push(token_id) for token_id in token_ids) + decoder.finish()
        assert text == bytes(raw).decode(errors="replace") == tiny.decode(token_ids)


def byte_token(tokenizer: Tokenizer, byte: int) -> int:
    return next(i for i in range(256) if tokenizer._token_bytes(i, True) == bytes([byte]))


def test_stream_ends_in_half_a_character(tiny):
    decoder = tiny.stream_decoder()
    emoji = tiny.encode("\U0001f642")
    assert [decoder.push(token_id) for token_id in emoji[:-1]] == ["", "", ""]
    assert decoder.finish() == "\ufffd"
