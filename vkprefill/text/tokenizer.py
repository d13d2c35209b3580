"""Text <-> token ids, from the vocabulary in a GGUF file's metadata.

Byte-level BPE ("gpt2") runs on the package `tokenizers`, SentencePiece BPE ("llama") on `sentencepiece`. Both see only
text without special tokens: those are cut out here, and only where the caller asks for it.
"""

import codecs
import gc
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
import sentencepiece
import tokenizers
from gguf.constants import TokenType

from vkprefill.display import printable
from vkprefill.errors import GGUFError, RequestError
from vkprefill.text.vocabulary import BYTE_LEVEL_BPE, PREFIX, Vocabulary

SPACE = "\u2581"  # stands for a space in SentencePiece's pieces
BLOCK = 2**16
# Where no pattern of vocabulary.SPLIT_PATTERNS has one piece on both sides, whatever stands around: before a space
# after what is no white space, after a line end before what is none, after a digit, between a letter and a sign.
SAFE_CUT = re.compile(
    r"(?<=\S)(?= )|(?<=\n)(?=\S)|(?<=[0-9])|(?<=[A-Za-z\u4e00-\u9fff])(?=[!-/:-@\[-`{-~\u3001\u3002\uff0c])"
)
UNKNOWN_TEXT = " \u2047 "  # what SentencePiece decodes its unknown token to


class Tokenizer:
    """A vocabulary with its encoder and decoder. Build it with `from_metadata`; safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._model = (_ByteLevelBPE if vocabulary.model == BYTE_LEVEL_BPE else _SentencePiece)(vocabulary)
        self._shown: dict[bool, dict[int, bytes]] = {True: {}, False: {}}  # bytes of tokens that were asked for

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], vocab_size: int | None = None) -> "Tokenizer":
        """Build the tokenizer that a file's `tokenizer.ggml.*` keys describe.

        Args:
            metadata: key -> value; arrays as lists, numeric ones also as numpy arrays.
            vocab_size: rows of the embedding matrix, compared with the number of tokens.

        Raises:
            UnsupportedModelError: a tokenizer or pre-tokenizer that is not known here.
            GGUFError: missing, wrong or contradictory metadata.
        """
        return cls(Vocabulary.from_metadata(metadata, vocab_size))

    @property
    def vocab_size(self) -> int:
        return len(self._vocabulary.tokens)

    @property
    def bos_token_id(self) -> int | None:
        return self._vocabulary.bos_token_id

    @property
    def add_bos(self) -> bool:
        """Whether a raw prompt should start with `bos_token_id`; `encode` never adds it."""
        return self._vocabulary.add_bos

    @property
    def eos_token_id(self) -> int | None:
        return self._vocabulary.eos_token_id

    @property
    def pad_token_id(self) -> int | None:
        return self._vocabulary.pad_token_id

    @property
    def unk_token_id(self) -> int | None:
        return self._vocabulary.unk_token_id

    @property
    def eog_token_ids(self) -> frozenset[int]:
        """The tokens that end a generation."""
        return self._vocabulary.eog_token_ids

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text -> id of the control and user-defined tokens."""
        return self._vocabulary.special_tokens

    @property
    def vocabulary_hash(self) -> str:
        """SHA-256 over the tokens, in hex. Models that exchange token ids must share it."""
        return self._vocabulary.sha256

    def token_text(self, token_id: int) -> str:
        """The text of one token; bytes that are no whole character appear as U+FFFD. RequestError for an unknown id."""
        return self._token_bytes(token_id, True).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, a special token's text included. RequestError for an id out of range."""
        return self._token_bytes(token_id, special=True)

    def all_bytes(self) -> list[bytes]:
        """token_bytes of every token in turn; none of those that stand for nothing."""
        kinds = enumerate(self._vocabulary.token_types)
        return [b"" if kind == TokenType.UNUSED else self._token_bytes(token_id, True) for token_id, kind in kinds]

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of `text`. Qwen's vocabularies have it in Unicode's composed form: `decode` gives that back, so "e"
        and a combining accent come back as one character.

        Args:
            text: any text that can be written as UTF-8.
            special: whether the text of control and user-defined tokens becomes those tokens. If not, text stays text:
                "<|im_end|>" is encoded as ten ordinary characters.

        Raises:
            RequestError: not a str, or lone surrogates in it.
        """
        return self.encode_parts(self.split_special(text) if special else [text])

    def encode_parts(self, parts: Iterable[str | int]) -> list[int]:
        """Token ids of text (encoded as ordinary text) and special tokens (ids, taken over) in turn.

        Raises:
            RequestError: text that is no str or has lone surrogates, ids out of range.
        """
        return [token_id for ids in self.encode_each(parts) for token_id in ids]

    def encode_each(self, parts: Iterable[str | int], most: int | None = None) -> Iterator[list[int]]:
        """As `encode_parts`, but the ids of each part by themselves.

        most: tokens that are wanted at all. Where there are more, the work ends soon after that many: the last list is
        then cut short, and all together are longer than `most`.
        """
        count = 0
        for number, part in enumerate(parts):
            ids: list[int] = []
            if isinstance(part, int | np.integer):
                ids.append(self._checked_id(part))
            else:
                for block in self._model.blocks(checked_text(part)):
                    ids += self._model.encode(block, at_start=number == 0 and not ids)
                    if most is not None and count + len(ids) > most:
                        break
            count += len(ids)
            yield ids
            if most is not None and count > most:
                return

    def split_special(self, text: str, control: bool = True) -> list[str | int]:
        """Cut `text` at the special tokens in it, leftmost first and the longest of several: text and ids in turn.

        control: False to leave control tokens in the text and cut at user-defined ones only.

        Raises:
            RequestError: not a str, or lone surrogates in it.
        """
        pattern = self._special_pattern if control else self._user_defined_pattern
        pieces = pattern.split(checked_text(text))
        return [self.special_tokens[piece] if i % 2 else piece for i, piece in enumerate(pieces) if piece]

    def decode(self, token_ids: Iterable[int], special: bool = True) -> str:
        """The text of `token_ids`; bytes that are not UTF-8 become U+FFFD.

        Args:
            token_ids: ids from 0 to `vocab_size` - 1.
            special: whether control tokens appear with their text; if not, they are left out.

        Raises:
            RequestError: an id out of range.
        """
        raw = b"".join([self._token_bytes(token_id, special) for token_id in token_ids])
        if self._vocabulary.add_space_prefix:  # the space that encoding put before the text
            raw = raw.removeprefix(b" ")
        return raw.decode(errors="replace")

    def stream_decoder(self, special: bool = True) -> "StreamDecoder":
        """A decoder for tokens that come one by one; its pieces join to what `decode` gives for all of them."""
        return StreamDecoder(self, special)

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        return re.compile(f"({any_of(self.special_tokens)})")

    @cached_property
    def _user_defined_pattern(self) -> re.Pattern[str]:
        types = self._vocabulary.token_types
        user_defined = any_of(text for text, i in self.special_tokens.items() if types[i] == TokenType.USER_DEFINED)
        return re.compile(f"({user_defined})")

    def _checked_id(self, token_id: int) -> int:
        if not isinstance(token_id, int | np.integer) or not 0 <= token_id < self.vocab_size:
            raise RequestError(f"token id {printable(token_id)} is out of range, wanted 0 to {self.vocab_size - 1}")
        return token_id

    def _token_bytes(self, token_id: int, special: bool) -> bytes:
        shown = self._shown[special]
        if type(token_id) is not int or token_id not in shown:
            return shown.setdefault(int(self._checked_id(token_id)), self._new_bytes(token_id, special))
        return shown[token_id]

    def _new_bytes(self, token_id: int, special: bool) -> bytes:
        kind = self._vocabulary.token_types[token_id]
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNUSED):
            shown = special or kind != TokenType.CONTROL
            return self._vocabulary.tokens[token_id].encode() if shown else b""
        return self._model.token_bytes(token_id)


class StreamDecoder:
    """Token ids one by one -> text as it becomes complete: never half a character. For one generation, one thread."""

    def __init__(self, tokenizer: Tokenizer, special: bool) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drop_space = tokenizer._vocabulary.add_space_prefix

    def push(self, token_id: int) -> str:
        """The text that this token completes, "" while a character is incomplete. RequestError for an unknown id."""
        raw = self._tokenizer._token_bytes(token_id, self._special)
        if self._drop_space and raw:  # the space that encoding put before the text
            self._drop_space = False
            raw = raw.removeprefix(b" ")
        return self._utf8.decode(raw)

    def finish(self) -> str:
        """The end of the text: U+FFFD if the last character never became complete, else ""."""
        return self._utf8.decode(b"", final=True)


def any_of(texts: Iterable[str]) -> str:
    """A pattern for the longest of `texts`; one that never matches for none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return f"(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})"


def checked_text(text: str) -> str:
    """`text` itself. RequestError if it is no str or cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise RequestError(f"text: found {type(text).__name__}, wanted str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"text: lone surrogate U+{ord(text[error.start]):04X} at character {error.start}") from None
    return text


def _printable_bytes() -> list[str]:
    """GPT-2's character for each byte value: itself where printable, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_OF = {character: byte for byte, character in enumerate(_printable_bytes())}


class _ByteLevelBPE:
    """Text without special tokens -> ids: composed (NFC), split by the pattern, then byte pairs are merged, lowest rank
    first."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        token_ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
        for character, byte in BYTE_OF.items():
            if character not in token_ids:
                raise GGUFError(f"{PREFIX}tokens: no token for byte 0x{byte:02X} ({character})")
        self._bpe = tokenizers.Tokenizer(_bpe_model(token_ids, vocabulary))
        if vocabulary.composed:
            self._bpe.normalizer = tokenizers.normalizers.NFC()
        pattern = tokenizers.Regex(vocabulary.split_pattern)
        self._bpe.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
            [
                tokenizers.pre_tokenizers.Split(pattern, behavior="isolated"),
                tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    def blocks(self, text: str) -> Iterator[str]:
        """The text in blocks of about BLOCK characters that can be encoded by themselves: the memory that encoding
        takes, hundreds of bytes for each character, is then that of a block."""
        start = 0
        while start < len(text):
            cut = SAFE_CUT.search(text, start + BLOCK)
            end = cut.start() if cut else len(text)
            yield text[start:end]
            start = end

    def encode(self, text: str, at_start: bool) -> list[int]:
        # The call for batches lets other threads run meanwhile; the one for a single text does not.
        return self._bpe.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def token_bytes(self, token_id: int) -> bytes:
        text = self._tokens[token_id]
        if all(character in BYTE_OF for character in text):
            return bytes(BYTE_OF[character] for character in text)
        return text.encode()


def _bpe_model(token_ids: dict[str, int], vocabulary: Vocabulary) -> tokenizers.models.BPE:
    """A quarter of a million merges: pairs that the collector would walk over and over as they are made."""
    collected = gc.isenabled()
    gc.disable()
    try:
        return tokenizers.models.BPE(token_ids, [tuple(merge.split(" ", 1)) for merge in vocabulary.merges])
    except Exception:  # of no class of its own; without the rank
        vocabulary.check_merges()
        raise
    finally:
        if collected:
            gc.enable()


class _SentencePiece:
    """Text without special tokens -> ids, through a SentencePiece model rebuilt from the vocabulary.

    Text is taken as it is: no normalisation, as in the models of this kind (and in llama.cpp). Special tokens go in as
    control pieces, which text never matches. A space is put before a text's start where the vocabulary asks for it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes = {
            token_id: _byte_value(token_id, vocabulary.tokens[token_id])
            for token_id, kind in enumerate(vocabulary.token_types)
            if kind == TokenType.BYTE
        }
        if self._bytes and len(set(self._bytes.values())) != 256:
            raise GGUFError(f"{PREFIX}tokens: byte tokens for {len(set(self._bytes.values()))} values, wanted all 256")
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=_model_proto(vocabulary))
        except RuntimeError as error:
            raise GGUFError(f"{PREFIX}tokens: refused by sentencepiece: {printable(error)}") from None

    def blocks(self, text: str) -> Iterator[str]:
        """All of the text, if there is any: it has no places where pieces always end."""
        if text:
            yield text

    def encode(self, text: str, at_start: bool) -> list[int]:
        return self._processor.encode(" " + text if at_start and self._vocabulary.add_space_prefix else text)

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self._bytes:
            return bytes([self._bytes[token_id]])
        if token_id == self._vocabulary.unk_token_id:
            return UNKNOWN_TEXT.encode()
        return self._vocabulary.tokens[token_id].replace(SPACE, " ").encode()


def _byte_value(token_id: int, text: str) -> int:
    if not re.fullmatch("<0x[0-9A-F]{2}>", text):
        raise GGUFError(f"{PREFIX}tokens: byte token {token_id} is {text!r}, wanted <0x00> to <0xFF>")
    return int(text[3:5], 16)


def _model_proto(vocabulary: Vocabulary) -> bytes:
    """The vocabulary as a serialised sentencepiece.ModelProto (sentencepiece_model.proto), written without protobuf."""
    special = set(vocabulary.special_tokens.values())
    pieces = []
    for token_id, text in enumerate(vocabulary.tokens):
        kind = TokenType.CONTROL if token_id in special else vocabulary.token_types[token_id]
        piece = _field(1, text.encode()) + _field(2, vocabulary.scores[token_id]) + _field(3, int(kind))
        pieces.append(_field(1, piece))
    bpe, byte_fallback = 2, TokenType.BYTE in vocabulary.token_types
    trainer = _field(3, bpe) + _field(4, len(pieces)) + _field(35, int(byte_fallback))
    # name; add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces
    normalizer = _field(1, b"identity") + _field(3, 0) + _field(4, 0) + _field(5, 1)
    return b"".join([*pieces, _field(2, trainer), _field(3, normalizer)])


def _field(number: int, value: int | float | bytes) -> bytes:
    """One protobuf field: a non-negative int as varint, a float as 32 bits, bytes with their length."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
