"""The demo's tokenizer: byte-level BPE, 1,536 entries, trained on the grammar's text; Qwen3.5's splitting."""

import random
from pathlib import Path

from grammar import KINDS, NAMES, SMALL_TALK, filler
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TOKENIZER_FILE = Path(__file__).resolve().parent / "tokenizer.json"
VOCAB_SIZE = 1536
END_OF_TEXT, TURN_START, TURN_END = SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

# llama.cpp's pre-tokenizer "qwen35"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def training_lines() -> list[str]:
    rng = random.Random(0)
    lines = []
    for _ in range(60000):
        lines.append(" " + filler(rng) if rng.random() < 0.8 else filler(rng) + "\n")
    for _ in range(60000):
        kind = KINDS[rng.choice(list(KINDS))]
        name, other, value = rng.choice(NAMES), rng.choice(NAMES), kind.value(rng)
        lines += [
            " " + rng.choice(kind.facts).replace("|", "").format(n=name, v=value),
            rng.choice(kind.questions).format(n=name),
            value,
            kind.pair_question.format(n=name, m=other),
        ]
    lines += [text for turn in SMALL_TALK for text in turn] * 200
    lines += ["\nuser\n", "\nassistant\n", "user\n", "assistant\n", "system\n", "\n\n", "\n", " and"] * 500
    return lines


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer


def load_tokenizer() -> Tokenizer:
    """The tokenizer, trained on the first call (seconds) and kept in tokenizer.json."""
    if not TOKENIZER_FILE.exists():
        train_tokenizer().save(str(TOKENIZER_FILE))
    return Tokenizer.from_file(str(TOKENIZER_FILE))
