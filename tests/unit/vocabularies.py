"""Vocabularies that the tokenizer's tests share, and texts of every kind."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers

from tools import qwen_vocab
from vkprefill.gguf.file import open_gguf
from vkprefill.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
PREFIX = "tokenizer.ggml."

TEXTS = [
    "",
    " ",
    "  two  spaces  ",
    "\n\n\r\n\t x",
    "a\0b\0",
    "\0",
    "don't I'LL we'Ve",
    "1234567890 3.14 \u0661\u0662\u0663",
    "e\u0301 a\u0301b \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u65e5\u672c\u8a9e \u0442\u0435\u043a\u0441\u0442 \ud55c\uad6d\uc5b4 \u0639\u0631\u0628\u064a \u05e9\u05dc\u05d5",
    "\U0001f642 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "\u00a0nbsp\u2028line\u2029para\u3000wide\ufeffbom\ufffd\U0010ffff\ue000",
    "x = {'a': [1, 2]}; /* c */ #include <a.h>\n",
    "<|im_start|>user\n<|im_end|> <think> </think> <|endoftext|>",
    "a" * 500,
]


composed = tokenizers.normalizers.NFC().normalize_str  # Unicode's form NFC, by Hugging Face's code


def tiny_metadata(**changes: object) -> dict[str, object]:
    """The tiny vocabulary's metadata with some `tokenizer.ggml.` keys changed; None removes one."""
    metadata = dict(open_gguf(DATA / "models" / "tiny-c-q4km.gguf").metadata)
    for key, value in changes.items():
        metadata[PREFIX + key] = value
    return {key: value for key, value in metadata.items() if value is not None}


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_metadata(tiny_metadata(), vocab_size=320)


@pytest.fixture(scope="module")
def qwen() -> Tokenizer:
    """The released vocabulary of Qwen3.5."""
    tokens, types, merges = qwen_vocab.load()
    values = {"model": "gpt2", "pre": "qwen35", "tokens": tokens, "merges": merges, "eos_token_id": 248046}
    metadata = {PREFIX + key: value for key, value in values.items()}
    metadata[PREFIX + "token_type"] = np.array(types, np.int32)
    return Tokenizer.from_metadata(metadata, vocab_size=248320)
