"""What a user types, USER/REPO[:QUANT], and which of a repository's files that means.

As llama.cpp: without QUANT Q4_K_M, and where there is none of that the first; of a model split into parts all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from vkprefill.display import quoted
from vkprefill.errors import HubError
from vkprefill.gguf.split import PART_NAME

DEFAULT_QUANT = "Q4_K_M"
LATEST = "latest"  # what llama.cpp calls no choice
WORD = r"[A-Za-z0-9][\w.-]{0,95}"
NAME = re.compile(rf"({WORD}/{WORD})(?::([\w.-]{{1,96}}))?", re.ASCII)
# Type names of weights in the names of files, at its end or that of the folder above: Q4_K_M, IQ4_XS, BF16, MXFP4_MOE.
TYPE = re.compile(r"(?:^|[-./])((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*))(?=$|[-./])", re.ASCII | re.IGNORECASE)
BESIDE = ("mmproj", "imatrix")  # files beside a model that are none
MOST_SHOWN = 8


@dataclass(frozen=True)
class HubName:
    """quant: as given; None where none is."""

    repo: str
    quant: str | None = None

    @classmethod
    def read(cls, text: str) -> HubName:
        """Raises HubError for what is no name."""
        match = NAME.fullmatch(text)
        if not match or ".." in text or "--" in match[1]:
            raise HubError(f"{quoted(text)}: wanted USER/REPO or USER/REPO:QUANT, as in Qwen/Qwen3.5-4B-GGUF:Q4_K_M")
        quant = match[2]
        return cls(match[1], None if quant is None or quant.lower() == LATEST else quant.removesuffix(".gguf"))

    def __str__(self) -> str:
        return self.repo if self.quant is None else f"{self.repo}:{self.quant}"

    def choose(self, files: Iterable[str]) -> list[str]:
        """Of a repository's files (names with folders) those of the model, its parts in order.

        Raises HubError where there is no GGUF file, none of the quantisation asked for, or a part is missing.
        """
        models = models_among(files)
        if not models:
            raise HubError(f"{self.repo}: has no GGUF file, wanted a repository of GGUF files (often REPO-GGUF)")
        found = _named(models, self.quant or DEFAULT_QUANT)
        if not found and self.quant is not None:
            raise HubError(f"{self}: no such file, wanted one of {listed(types_among(models))}")
        return models[min(found, key=lambda name: (len(name), name)) if found else next(iter(models))]


def models_among(files: Iterable[str]) -> dict[str, list[str]]:
    """First file -> all files of each model, by name; a set that lacks a part is left out."""
    models: dict[str, list[str]] = {}
    there = set(files)
    for name in sorted(there):
        path = PurePosixPath(name)
        if path.suffix.lower() != ".gguf" or any(word in path.name.lower() for word in BESIDE):
            continue
        part = PART_NAME.fullmatch(path.name)
        if not part:
            models[name] = [name]
        elif int(part[2]) == 1:
            count = int(part[3])
            parts = [str(path.with_name(f"{part[1]}-{n:05}-of-{count:05}.gguf")) for n in range(1, count + 1)]
            if there.issuperset(parts):
                models[name] = parts
    return models


def stem(name: str) -> str:
    """A file's name without its ending and without the number of its part."""
    path = PurePosixPath(name)
    part = PART_NAME.fullmatch(path.name)
    return part[1] if part else path.name.removesuffix(".gguf")


def type_in(name: str) -> str | None:
    """The type of a model's weights that its name tells; of several the last."""
    found = TYPE.findall(str(PurePosixPath(name).with_name(stem(name))))
    return found[-1] if found else None


def types_among(models: Iterable[str]) -> list[str]:
    """For a message: what may stand behind the colon."""
    return list(dict.fromkeys(type_in(name) or stem(name) for name in models))


def listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - MOST_SHOWN} more" if len(words) > MOST_SHOWN else ""
    return ", ".join(words[:MOST_SHOWN]) + more


def _named(models: Iterable[str], quant: str) -> list[str]:
    """Those in whose name, folders included, the quantisation stands between hyphens, dots or slashes."""
    wanted = re.compile(rf"(?:^|[-./]){re.escape(quant)}(?=$|[-./])", re.IGNORECASE)
    return [name for name in models if wanted.search(str(PurePosixPath(name).with_name(stem(name))))]
