"""The files of -md, told apart by what they hold: a model that scores prompts, a multi-token-prediction block alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.gguf.config import is_companion
from vkprefill.gguf.file import open_gguf

BOTH = ("multi-token-prediction block alone", "draft model")


@dataclass(frozen=True)
class DraftFiles:
    """draft: a model for speculative prefill; companion: a file with the model's multi-token-prediction block."""

    draft: Path | None = None
    companion: Path | None = None


def sorted_drafts(paths: Sequence[str]) -> DraftFiles:
    """Raises GGUFError for what is no GGUF file, RequestError for two of a kind."""
    found: dict[str, Path] = {}
    for path in paths:
        if not path:
            raise RequestError("-md: it is empty, wanted a GGUF file")
        companion = is_companion(open_gguf(path))
        kind, what, other = ("companion", *BOTH) if companion else ("draft", *reversed(BOTH))
        if kind in found:
            raise RequestError(
                f"-md {printable(path)}: found a second {what}, after {printable(found[kind])}; wanted one, and as the "
                f"other -md at most a {other}"
            )
        found[kind] = Path(path)
    return DraftFiles(**found)
