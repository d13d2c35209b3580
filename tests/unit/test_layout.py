"""Where prompts are cut: lines, sentences, characters; what is a block of code."""

from pathlib import Path

import numpy as np
import pytest

import vkprefill
from vkprefill.errors import ShapeError
from vkprefill.gguf.file import open_gguf
from vkprefill.specprefill.layout import Layout, layout_of
from vkprefill.text.tokenizer import Tokenizer

FILES = [
    Path(vkprefill.__file__).parent / "data" / "target.gguf",
    Path(__file__).parents[1] / "data" / "models" / "tiny-c-q4km.gguf",
]
CODE = "".join(
    f"def handler_{i}(request, options):\n    value = options.get({i})\n    if value > {i}:\n        return value\n\n"
    for i in range(30)
)
BRACES = "".join(f"int f{i}(int x) {{\n\tif (x) {{\n\t\treturn {i};\n\t}}\n\treturn x;\n}}\n\n" for i in range(30))
PROSE = "The old man crossed the river slowly. In the morning it was closed. " * 12
TEXTS = {
    "code": CODE,
    "braces": BRACES,
    "windows": CODE.replace("\n", "\r\n"),
    "prose": "\n".join([PROSE] * 4),
    "one line": PROSE * 4,
    "chinese": "这是一个很长的句子，没有空格。" * 60,
    "emoji": "👨‍👩‍👧👍🏽é́" * 60,
    "no ends": "word" * 600,
    "table": "\n".join(f"{i}\t{i * i}" for i in range(300)),
}


@pytest.fixture(scope="module", params=FILES, ids=["words", "few merges"])
def tokenizer(request) -> Tokenizer:
    return Tokenizer.from_metadata(open_gguf(request.param).metadata)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("chunk_size, first", [(32, 0), (32, 7), (8, 0), (1, 0), (10_000, 5)])
def test_borders(tokenizer, name, chunk_size, first):
    ids = tokenizer.encode(TEXTS[name])
    raw = [tokenizer.token_bytes(token_id) for token_id in ids]
    bounds = Layout(raw).bounds(chunk_size, first)
    assert bounds[0] == first and bounds[-1] == len(ids) and (np.diff(bounds) > 0).all()
    for border in bounds[1:-1].tolist():
        before, after = b"".join(raw[:border]), b"".join(raw[border:])
        before.decode(), after.decode()  # no half character
        assert not after.decode().startswith(("\u200d", "\u0301", "🏽")) and not before.decode().endswith("\u200d")
        if not before.endswith(b"\n") and not after.startswith((b"\n", b"\r")):
            start, end = before.rfind(b"\n") + 1, after.find(b"\n") + 1 or len(after)
            line = tokenizer.encode((before[start:] + after[:end]).decode())
            assert len(line) > chunk_size, (before[start:], after[:end])


@pytest.mark.parametrize("name", TEXTS)
def test_chunks_are_as_long_as_wanted(tokenizer, name):
    ids = tokenizer.encode(TEXTS[name])
    sizes = np.diff(layout_of(tokenizer, ids).bounds(32, 0))[:-1]
    assert sizes.max() <= 32 and sizes.mean() >= 16


def test_borders_in_a_long_line_are_at_sentences():
    tokenizer = Tokenizer.from_metadata(open_gguf(FILES[0]).metadata)
    ids = tokenizer.encode(TEXTS["one line"])
    bounds = layout_of(tokenizer, ids).bounds(32, 0)[1:-1].tolist()
    ends = [tokenizer.decode(ids[:border]).rstrip().endswith(".") for border in bounds]
    assert sum(ends) > 0.8 * len(ends)


def test_borders_by_hand():
    def bounds(text: str, chunk_size: int, first: int = 0) -> list[int]:
        return Layout([c.encode() for c in text]).bounds(chunk_size, first).tolist()

    assert bounds("aaa\nbbb\nccc\nddd\n", 8) == [0, 8, 16]
    assert bounds("aaa\nbbb\nccc\nddd\n", 6) == [0, 4, 8, 12, 16]
    assert bounds("aaaaa\nbbbbb\nccccc\n", 8) == [0, 6, 12, 18]
    assert bounds("aaaaaaaaaaaaaaaaaa\nb\nc\n", 8) == [0, 8, 16, 23], "a line longer than a chunk is cut inside"
    assert bounds("aaaa. aaaa aaaa aaa", 8) == [0, 6, 14, 19], "at the sentence"
    assert bounds("aaa. aaaa aaaa aaa", 8) == [0, 8, 16, 18], "too far from the end of the chunk"
    assert bounds("aa\naaaaaaaaaaaaaaaaa\n", 8) == [0, 8, 16, 21], "no chunk for a short line before a long one"
    assert bounds("aaaa\naaaaaaaaaaaaaaaaa\n", 8) == [0, 5, 13, 21, 23]
    assert bounds("aaa\nbbb\nccc\nddd\n", 8, first=2) == [2, 8, 16]
    assert bounds("", 8) == [0] and bounds("a", 8) == [0, 1]


def test_a_token_with_a_line_end_and_the_next_indentation():
    made = Layout([b"if x:", b"\n    ", b"y", b";\n", b"\n\n", b"z", b"; \n  ", b"w"])
    assert made.line_starts.tolist() == [0, 1, 4, 5, 7]


def test_widened():
    raw = [b"a", *("字".encode()[i : i + 1] for i in range(3)), b"b"]
    made = Layout(raw)
    assert made.whole.tolist() == [True, True, False, False, True]
    assert made.widened(np.array([False, False, True, False, False])).tolist() == [False, True, True, True, False]
    assert made.widened(np.array([True, False, False, False, True])).tolist() == [True, False, False, False, True]
    with pytest.raises(ShapeError, match="layout: of 5 tokens, wanted 4"):
        made.widened(np.zeros(4, bool))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a\n b\nc\n d\n\n e\nf", ["a, b", "c, d, , e"]),
        ("f {\n x\n}\ng {\n y\n}\n", ["f {, x,}", "g {, y,}"]),
        ("a\nb\nc", []),
        ("", []),
        ("class a\n f\n  x\n g\n  y\n", ["class a, f,  x, g,  y"]),
    ],
)
def test_blocks(text, expected):
    raw = [line.encode() for line in text.splitlines(keepends=True)]
    numbers = Layout(raw).blocks(32)
    found = {}
    for number, line in zip(numbers.tolist(), raw, strict=True):
        if number >= 0:
            found.setdefault(number, []).append(line.decode().rstrip("\n"))
    assert [",".join(lines).replace(", ,", ",,") for lines in found.values()] == [
        one.replace(", ,", ",,") for one in expected
    ]


def test_a_large_block_is_looked_into():
    methods = "".join(f"  def m{i}:\n" + "    x\n" * 10 for i in range(4))
    raw = [line.encode() for line in f"class A:\n{methods}".splitlines(keepends=True)]
    numbers = Layout(raw).blocks(1)  # 45 lines are more than 16 chunks of a token
    assert numbers[0] == -1 and len(set(numbers[1:].tolist())) == 4
    assert len(set(Layout(raw).blocks(32).tolist())) == 1
