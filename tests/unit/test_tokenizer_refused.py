"""Tokenizer: ids, texts and metadata that are refused, and how the refusal reads."""

import numpy as np
import pytest

from tests.unit.vocabularies import PREFIX, tiny_metadata
from vkprefill.errors import GGUFError, RequestError, UnsupportedModelError
from vkprefill.text.tokenizer import Tokenizer


@pytest.mark.parametrize("token_id", [-1, 320, 2**40, "7", 1.0])
def test_token_ids_out_of_range(tiny, token_id):
    for call in (
        lambda: tiny.decode([token_id]),
        lambda: tiny.token_text(token_id),
        lambda: tiny.stream_decoder().push(token_id),
    ):
        with pytest.raises(RequestError, match=f"^token id {token_id} is out of range, wanted 0 to 319$"):
            call()


@pytest.mark.parametrize("special", [False, True])
def test_text_that_is_none(tiny, special):
    for text, error in [
        (b"bytes", "text: found bytes, wanted str"),
        (None, "text: found NoneType, wanted str"),
        ("ab\udc80", "text: lone surrogate U+DC80 at character 2"),
    ]:
        with pytest.raises(RequestError) as caught:
            tiny.encode(text, special=special)
        assert str(caught.value) == error


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"model": "bert"}, "model: tokenizer bert is not supported (supported: gpt2, llama)"),
        ({"pre": "llama-bpe"}, "pre: pre-tokenizer llama-bpe is not supported (supported: qwen2, qwen35)"),
    ],
)
def test_unsupported(changes, error):
    with pytest.raises(UnsupportedModelError) as caught:
        Tokenizer.from_metadata(tiny_metadata(**changes))
    assert str(caught.value) == PREFIX + error


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"model": None}, "model: the key is missing"),
        ({"model": 5}, "model: found int, wanted str"),
        ({"pre": None}, "pre: the key is missing"),
        ({"tokens": None}, "tokens: the key is missing"),
        ({"tokens": []}, "tokens: the list is empty"),
        ({"tokens": "abc"}, "tokens: found str, wanted an array of strings"),
        ({"tokens": np.zeros(320)}, "tokens: found ndarray, wanted an array of strings"),
        ({"tokens": [1, 2]}, "tokens: found list, wanted an array of strings"),
        ({"tokens": ["a", "b", "a"]}, "tokens: a is both token 0 and 2"),
        ({"tokens": ["a", "", "b"]}, "tokens: token 1 is empty"),
        ({"tokens": ["a", "b"]}, "token_type: found 320 entries, wanted 2, one per token"),
        ({"token_type": None}, "token_type: the key is missing"),
        ({"token_type": "1"}, "token_type: found str, wanted an array of numbers"),
        ({"token_type": ["1"] * 320}, "token_type: found items that are no numbers, wanted an array of numbers"),
        ({"token_type": [1.5] * 320}, "token_type: found an array of float64, wanted integers"),
        ({"token_type": [0] * 320}, "token_type: token 0 has type 0, wanted 1 to 6"),
        ({"token_type": [1] * 319 + [7]}, "token_type: token 319 has type 7, wanted 1 to 6"),
        ({"merges": None}, "merges: the key is missing"),
        ({"merges": ["t h", "h zz"]}, "merges: merge 0 is 't h', wanted two tokens that join to a third"),
        ({"merges": ["th"]}, "merges: merge 0 is 'th', wanted two tokens that join to a third"),
        ({"eos_token_id": 320}, "eos_token_id: found 320, wanted a token id from 0 to 319"),
        ({"eos_token_id": -1}, "eos_token_id: found -1, wanted a token id from 0 to 319"),
        ({"eos_token_id": "2"}, "eos_token_id: found 2, wanted a token id from 0 to 319"),
        ({"bos_token_id": True}, "bos_token_id: found True, wanted a token id from 0 to 319"),
        ({"add_bos_token": "yes"}, "add_bos_token: found str, wanted bool"),
    ],
)
def test_hostile_metadata(changes, error):
    with pytest.raises(GGUFError) as caught:
        Tokenizer.from_metadata(tiny_metadata(**changes))
    assert str(caught.value) == PREFIX + error


def test_missing_byte():
    tokens = ["never" if text == "\u0100" else text for text in tiny_metadata()[PREFIX + "tokens"]]
    with pytest.raises(GGUFError, match="tokens: no token for byte 0x00"):
        Tokenizer.from_metadata(tiny_metadata(tokens=tokens))


def test_embedding_of_another_size():
    with pytest.raises(GGUFError, match="found 320 tokens, wanted 321, the rows of the embedding"):
        Tokenizer.from_metadata(tiny_metadata(), vocab_size=321)
