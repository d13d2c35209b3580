"""The files of -md, told apart by what they hold: a model that scores prompts, a multi-token-prediction block alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.gguf.file import open_gguf
from vkprefill.gguf.tensors import is_companion


@dataclass(frozen=True)
class DraftFiles:
    """draft: a model for speculative prefill; companion: a file with the model's multi-token-prediction block."""

    draft: Path | None = None
    companion: Path | None = None


def sorted_drafts(paths: Sequence[str]) -> DraftFiles:
    """Raises GGUFError for what is no GGUF file, RequestError for two of a kind."""
    found: dict[str, Path] = {}
    for path in paths:
        companion = is_companion(open_gguf(path))
        kind, what = ("companion", "multi-token-prediction blocks") if companion else ("draft", "draft models")
        if kind in found:
            raise RequestError(
                f"-md {printable(path)}: {what} are both this and {printable(found[kind])}, wanted one; a second -md "
                f"may be a {'draft model' if companion else 'multi-token-prediction block alone'}"
            )
        found[kind] = Path(path)
    return DraftFiles(**found)
