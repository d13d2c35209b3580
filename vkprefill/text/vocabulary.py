"""Metadata -> Vocabulary: the `tokenizer.ggml.*` keys of a GGUF file, checked for presence, type, length and range.

Nothing here encodes or decodes; `tokenizer.py` builds on a Vocabulary without doubting it, but for the merges: what the
encoder is built with looks each of them up anyway.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gguf.constants import TokenType

from vkprefill.display import printable
from vkprefill.errors import GGUFError, UnsupportedModelError

BYTE_LEVEL_BPE = "gpt2"
SENTENCEPIECE = "llama"

# How each pre-tokenizer cuts text before merging. Qwen3.5 counts combining marks (\p{M}) to the letters.
SPLIT_PATTERNS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}

PREFIX = "tokenizer.ggml."
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Tokens that end a generation by their text, as in llama.cpp (llama-vocab.cpp, special_eog_ids), whatever the keys say.
END_TEXTS = ("<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model and how text is cut into them.

    `tokens[id]` is the text as stored: GPT-2's printable characters for byte-level BPE ("gpt2"), pieces with U+2581 for
    spaces for SentencePiece ("llama"). composed: text is brought into Unicode's form NFC first, as Qwen's own tokenizer
    does, with which the models were trained. `merges` (two tokens with a space between, lowest rank first) belong to
    the former, `scores` to the latter.
    """

    model: str
    tokens: list[str]
    token_types: list[int]
    split_pattern: str
    composed: bool
    merges: list[str]
    scores: list[float]
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    unk_token_id: int | None
    eog_token_ids: frozenset[int]
    add_bos: bool
    add_space_prefix: bool

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], vocab_size: int | None = None) -> "Vocabulary":
        """Read the keys `tokenizer.ggml.*`.

        Args:
            metadata: key -> value, arrays as lists or numpy arrays.
            vocab_size: rows of the embedding matrix; the token list must be as long.

        Raises:
            UnsupportedModelError: a tokenizer or pre-tokenizer that is not known here.
            GGUFError: a missing key, a wrong type, a length or an id that does not fit.
        """
        model = _required(metadata, "model", str)
        if model not in (BYTE_LEVEL_BPE, SENTENCEPIECE):
            raise UnsupportedModelError(
                f"{PREFIX}model: tokenizer {printable(model)} is not supported "
                f"(supported: {BYTE_LEVEL_BPE}, {SENTENCEPIECE})"
            )
        is_bpe = model == BYTE_LEVEL_BPE
        split_pattern = _split_pattern(_required(metadata, "pre", str)) if is_bpe else ""
        tokens = _tokens(metadata, vocab_size)
        kinds = _token_types(metadata, len(tokens))
        token_types = kinds.tolist()
        ids = {key: _token_id(metadata, key, len(tokens)) for key in (*END_KEYS, "bos_token_id", "padding_token_id")}
        return cls(
            model=model,
            tokens=tokens,
            token_types=token_types,
            split_pattern=split_pattern,
            composed=is_bpe,
            merges=_strings(metadata, "merges") if is_bpe else [],
            scores=[] if is_bpe else _scores(metadata, len(tokens)),
            bos_token_id=ids["bos_token_id"],
            eos_token_id=ids["eos_token_id"],
            pad_token_id=ids["padding_token_id"],
            unk_token_id=None if is_bpe else _unknown_id(token_types),
            eog_token_ids=_end_ids(tokens, kinds, [ids[key] for key in END_KEYS]),
            add_bos=_flag(metadata, "add_bos_token", default=not is_bpe) and ids["bos_token_id"] is not None,
            add_space_prefix=_flag(metadata, "add_space_prefix", default=not is_bpe),
        )

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Text -> id of the control and user-defined tokens. One of a single character is taken for ordinary text."""
        special = _special_ids(np.array(self.token_types))
        return {self.tokens[token_id]: token_id for token_id in special if len(self.tokens[token_id]) > 1}

    def check_merges(self) -> None:
        """Raise GGUFError for the first merge that is not two tokens which join to a third."""
        known = set(self.tokens)
        for rank, text in enumerate(self.merges):
            left, _, right = text.partition(" ")
            if not {left, right, left + right} <= known:
                raise GGUFError(
                    f"{PREFIX}merges: merge {rank} is {printable(text)!r}, wanted two tokens that join to a third"
                )

    @cached_property
    def sha256(self) -> str:
        """Hex digest over the token texts in order: equal for vocabularies that give every id the same meaning."""
        digest = hashlib.sha256()
        for text in self.tokens:
            raw = text.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()


def _found(metadata: Mapping[str, object], key: str) -> object:
    if PREFIX + key not in metadata:
        raise GGUFError(f"{PREFIX}{key}: the key is missing")
    return metadata[PREFIX + key]


def _required(metadata: Mapping[str, object], key: str, kind: type) -> object:
    value = _found(metadata, key)
    if not isinstance(value, kind):
        raise GGUFError(f"{PREFIX}{key}: found {type(value).__name__}, wanted {kind.__name__}")
    return value


def _flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    return _required(metadata, key, bool) if PREFIX + key in metadata else default


def _token_id(metadata: Mapping[str, object], key: str, num_tokens: int) -> int | None:
    if PREFIX + key not in metadata:
        return None
    value = metadata[PREFIX + key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < num_tokens:
        raise GGUFError(f"{PREFIX}{key}: found {printable(value)}, wanted a token id from 0 to {num_tokens - 1}")
    return value


def _split_pattern(pre: str) -> str:
    if pre not in SPLIT_PATTERNS:
        supported = ", ".join(SPLIT_PATTERNS)
        raise UnsupportedModelError(
            f"{PREFIX}pre: pre-tokenizer {printable(pre)} is not supported (supported: {supported})"
        )
    return SPLIT_PATTERNS[pre]


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = _found(metadata, key)
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise GGUFError(f"{PREFIX}{key}: found {type(value).__name__}, wanted an array of strings")
    return value


def _numbers(metadata: Mapping[str, object], key: str, num_tokens: int, kinds: str) -> np.ndarray:
    """A one-dimensional array whose dtype kind is one of `kinds` ("iu" integers, "f" floats), one entry per token."""
    value = _found(metadata, key)
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
        raise GGUFError(f"{PREFIX}{key}: found {type(value).__name__}, wanted an array of numbers")
    if isinstance(value, Sequence) and not all(type(item) in (int, float) for item in value):
        raise GGUFError(f"{PREFIX}{key}: found items that are no numbers, wanted an array of numbers")
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in kinds:
        wanted = "floats" if "f" in kinds else "integers"
        raise GGUFError(f"{PREFIX}{key}: found an array of {array.dtype}, wanted {wanted}")
    if len(array) != num_tokens:
        raise GGUFError(f"{PREFIX}{key}: found {len(array)} entries, wanted {num_tokens}, one per token")
    return array


def _tokens(metadata: Mapping[str, object], vocab_size: int | None) -> list[str]:
    tokens = _strings(metadata, "tokens")
    if not tokens:
        raise GGUFError(f"{PREFIX}tokens: the list is empty")
    if vocab_size is not None and len(tokens) != vocab_size:
        raise GGUFError(f"{PREFIX}tokens: found {len(tokens)} tokens, wanted {vocab_size}, the rows of the embedding")
    known = set(tokens)
    if len(known) < len(tokens):
        first: dict[str, int] = {}
        for token_id, text in enumerate(tokens):
            if first.setdefault(text, token_id) != token_id:
                raise GGUFError(f"{PREFIX}tokens: {printable(text)} is both token {first[text]} and {token_id}")
    if "" in known:
        raise GGUFError(f"{PREFIX}tokens: token {tokens.index('')} is empty")
    return tokens


def _token_types(metadata: Mapping[str, object], num_tokens: int) -> np.ndarray:
    types = _numbers(metadata, "token_type", num_tokens, "iu")
    wrong = np.flatnonzero((types < min(TokenType)) | (types > max(TokenType)))
    if wrong.size:
        raise GGUFError(
            f"{PREFIX}token_type: token {wrong[0]} has type {types[wrong[0]]}, "
            f"wanted {min(TokenType).value} to {max(TokenType).value}"
        )
    return types


def _scores(metadata: Mapping[str, object], num_tokens: int) -> list[float]:
    scores = _numbers(metadata, "scores", num_tokens, "iuf").astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(scores))
    if wrong.size:
        raise GGUFError(f"{PREFIX}scores: token {wrong[0]} has score {scores[wrong[0]]}, wanted a finite number")
    return scores.tolist()


def _unknown_id(token_types: list[int]) -> int:
    count = token_types.count(TokenType.UNKNOWN)
    if count != 1:
        raise GGUFError(f"{PREFIX}token_type: found {count} tokens of type 2 (unknown), wanted one")
    return token_types.index(TokenType.UNKNOWN)


def _special_ids(kinds: np.ndarray) -> list[int]:
    """The control and user-defined tokens."""
    return np.flatnonzero((kinds == TokenType.CONTROL) | (kinds == TokenType.USER_DEFINED)).tolist()


def _end_ids(tokens: list[str], kinds: np.ndarray, by_key: list[int | None]) -> frozenset[int]:
    by_text = [token_id for token_id in _special_ids(kinds) if tokens[token_id] in END_TEXTS]
    return frozenset([*(token_id for token_id in by_key if token_id is not None), *by_text])
