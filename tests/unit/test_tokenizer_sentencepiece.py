"""Tokenizer: ids of sentencepiece, and its vocabularies that are broken."""

import io
import math

import numpy as np
import pytest
import sentencepiece

from tests.unit.vocabularies import PREFIX, ROOT, TEXTS
from vkprefill.errors import GGUFError
from vkprefill.text.tokenizer import Tokenizer


@pytest.fixture(scope="module", params=[True, False], ids=["space prefix", "no space prefix"])
def spm(request) -> tuple[sentencepiece.SentencePieceProcessor, dict[str, object]]:
    """A small model trained here, and the same as GGUF metadata."""
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines() + TEXTS[8:11]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=request.param,
        user_defined_symbols=["<think>", "</think>"],
        control_symbols=["<|im_end|>"],
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

    def token_type(token_id: int) -> int:
        if processor.is_unknown(token_id):
            return 2
        if processor.is_control(token_id):
            return 3
        if processor.is_byte(token_id):
            return 6
        return 4 if processor.id_to_piece(token_id) in ("<think>", "</think>") else 1

    ids = range(len(processor))
    values = {
        "model": "llama",
        "tokens": [processor.id_to_piece(i) for i in ids],
        "scores": np.array([processor.get_score(i) for i in ids], np.float32),
        "token_type": np.array([token_type(i) for i in ids], np.int32),
        "bos_token_id": processor.bos_id(),
        "eos_token_id": processor.eos_id(),
        "add_space_prefix": request.param,
    }
    return processor, {PREFIX + key: value for key, value in values.items()}


def test_ids_of_sentencepiece(spm):
    processor, metadata = spm
    tokenizer = Tokenizer.from_metadata(metadata, vocab_size=len(processor))
    texts = [*TEXTS, *(ROOT / "ARCHITECTURE.md").read_text().splitlines(), "<unk> <s> </s> <0x0A> <|im_end|>"]
    for text in texts:
        if "<think>" in text:
            continue
        token_ids = tokenizer.encode(text)
        assert token_ids == processor.encode(text)
        assert tokenizer.decode(token_ids) == processor.decode(token_ids) == text
        decoder = tokenizer.stream_decoder()
        assert "".join(decoder.push(token_id) for token_id in token_ids) + decoder.finish() == text


def test_special_tokens_of_sentencepiece(spm):
    processor, metadata = spm
    tokenizer = Tokenizer.from_metadata(metadata)
    text = "so <think>the model</think> answers"
    assert tokenizer.encode(text, special=True) == processor.encode(text)
    assert not set(tokenizer.encode(text)) & set(tokenizer.special_tokens.values())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("a<|im_end|>b", special=True)[-2] == processor.piece_to_id("<|im_end|>")
    assert tokenizer.add_bos and tokenizer.bos_token_id == 1 and tokenizer.unk_token_id == 0


def test_hostile_sentencepiece_metadata(spm):
    metadata = spm[1]
    size = len(metadata[PREFIX + "tokens"])
    types = metadata[PREFIX + "token_type"]
    for key, value, error in [
        ("scores", None, "scores: the key is missing"),
        ("scores", [0.5], f"scores: found 1 entries, wanted {size}, one per token"),
        ("scores", np.full(size, math.nan), "scores: token 0 has score nan, wanted a finite number"),
        ("token_type", np.where(types == 2, 1, types), "token_type: found 0 tokens of type 2 (unknown), wanted one"),
        ("token_type", np.where(types == 1, 6, types), "tokens: byte token "),
        ("add_space_prefix", 1, "add_space_prefix: found int, wanted bool"),
    ]:
        changed = {k: v for k, v in {**metadata, PREFIX + key: value}.items() if v is not None}
        with pytest.raises(GGUFError) as caught:
            Tokenizer.from_metadata(changed)
        assert str(caught.value).startswith(PREFIX + error)
