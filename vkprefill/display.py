"""Text from outside, made safe to show: one line in messages, nothing that a terminal or a page would obey."""

from __future__ import annotations

import unicodedata

CONTROL_PICTURES = 0x2400  # U+2400 is the picture of NUL, and so on

BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(value: object, limit: int = 64) -> str:
    """A value as one printable line of at most `limit` characters; the middle of a longer one is left out."""
    text = str(value)
    if not text.isprintable():
        text = ascii(text)
    half = (limit - 3) // 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"


def quoted(value: object) -> str:
    """As printable, a text in quotes: what was found where something else was wanted."""
    return printable(repr(value) if isinstance(value, str) else value)


def visible(text: str) -> str:
    """`text` with its control characters, but line ends and tabs, as characters that can be seen and do nothing."""
    return "".join(c if c in "\n\t" or c.isprintable() else _picture(c) for c in text)


def one_line(message: object) -> str:
    """A message without line breaks and terminal codes, which names of files in it may hold."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(message))


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(CONTROL_PICTURES + code)
    if code == 0x7F:
        return "\u2421"
    if character in BIDI_CONTROLS or unicodedata.category(character) in ("Cc", "Zl", "Zp"):
        return f"<U+{code:04X}>"
    return character
