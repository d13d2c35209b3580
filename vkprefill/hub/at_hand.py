"""The models on this machine: where they lie, what their headers say, which can be drafts of which."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from vkprefill.display import printable
from vkprefill.errors import GGUFError, RequestError, VkPrefillError
from vkprefill.gguf.config import OUTPUT, TOKEN_EMBEDDING, ModelConfig, is_companion
from vkprefill.gguf.file import open_gguf
from vkprefill.gguf.tensors import TensorSpec, check_tensors, tensor_specs
from vkprefill.hub.cache import RepoCache, cached_repos, files_below
from vkprefill.hub.names import listed, models_among, stem
from vkprefill.hub.places import llama_cache, own_folders
from vkprefill.text.vocabulary import Vocabulary

DEMO_TARGET, DEMO_DRAFT = "target.gguf", "draft.gguf"
BUILT_IN = {"built-in": DEMO_TARGET, "built-in-draft": DEMO_DRAFT}
DRAFT_SHARE = 0.5  # of the model's work for a token, at most a draft's
LEAST_BITS = 4.0  # of a weight, for a draft to be taken where a larger file of it is there


@dataclass(frozen=True)
class Place:
    """A model by its name. source: in words; files of a split model are one, `path` its first."""

    name: str
    path: Path
    source: str


@dataclass(frozen=True)
class Facts:
    """What a header says. problem: why it cannot run, None where it can; then all else is known.

    work: weights that a token of a prompt is multiplied with; types: bytes in the file by type of weights; vocabulary:
    SHA-256 of its tokens.
    """

    size_bytes: int
    architecture: str
    types: dict[str, int]
    problem: str | None
    is_block: bool = False
    parameters: int = 0
    work: int = 0
    vocabulary: str = ""

    @property
    def as_draft(self) -> tuple[int, bool, int]:
        """Less is better: little work, 4 bits of a weight or more, a small file."""
        return self.work, 8 * self.size_bytes < LEAST_BITS * self.parameters, self.size_bytes


def places(folders: Sequence[Path] = ()) -> list[Place]:
    """All models at hand, by names that are different: the built-in pair, the caches, the folders given and those of
    VKPREFILL_MODELS. No file is opened.
    """
    found = [Place(name, built_in(name), "built-in") for name in BUILT_IN]
    for repo in cached_repos():
        latest: dict[str, Path] = {}
        for folder in RepoCache.of(repo).snapshots():
            for name in models_among(files_below(folder)):
                latest.setdefault(name, folder / name)
        found += [Place(stem(name), path, repo) for name, path in latest.items()]
    found += _in_folder(llama_cache(), "llama.cpp's cache")
    for folder in (*folders, *own_folders()):
        found += _in_folder(folder, str(folder))
    once: dict[Path, Place] = {}
    for place in found:
        once.setdefault(place.path.resolve(), place)
    often = Counter(place.name for place in once.values())
    return [
        place if often[place.name] == 1 else replace(place, name=f"{place.source}/{place.name}")
        for place in once.values()
    ]


def named(flag: str, name: str) -> Path:
    """The file of a listed name, given with a flag. Raises RequestError where none or several have it."""
    wanted = name.removesuffix(".gguf").lower()
    found = [place for place in places() if wanted in (place.name.lower(), place.name.rpartition("/")[2].lower())]
    exact = [place for place in found if place.name.lower() == wanted]
    if len(exact or found) != 1:
        what = f"is one of {listed([place.name for place in found])}" if found else "no such file, nor a listed model"
        raise RequestError(f"{flag} {printable(name, 120)}: {what} (vkprefill models lists them)")
    return (exact or found)[0].path


def built_in(name: str) -> Path:
    return demo_path(BUILT_IN[name])


def demo_path(name: str) -> Path:
    return Path(str(files("vkprefill") / "data" / name))


def examine(path: Path) -> Facts:
    """By the header alone, with the checks of it that loading makes."""
    try:
        file = open_gguf(path)
    except VkPrefillError as error:
        return Facts(_size(path), "", {}, str(error))
    types = Counter[str]()
    for info in file.tensors.values():
        types[info.type.name] += info.num_bytes
    architecture = printable(file.metadata.get("general.architecture", "none"))
    facts = Facts(file.size_bytes, architecture, dict(types.most_common()), None, is_companion(file))
    if facts.is_block:
        return facts
    try:
        config = ModelConfig.from_gguf(file)
        check_tensors(file, config)
        vocabulary = Vocabulary.from_metadata(file.metadata, config.vocab_size)
    except VkPrefillError as error:
        return replace(facts, problem=str(error))
    specs = tensor_specs(config)
    parameters = sum(math.prod(spec.shape) for spec in specs)
    return replace(facts, parameters=parameters, work=work(specs, config), vocabulary=vocabulary.sha256)


def work(specs: Iterable[TensorSpec], config: ModelConfig) -> int:
    """Weights that a token of a prompt is multiplied with: of experts those that it takes, of the vocabulary none."""
    total = 0.0
    for spec in specs:
        count = math.prod(spec.shape)
        if spec.role == "experts":
            layer = int(spec.name.split(".")[1])
            count *= config.experts.per_token[layer] / config.experts.count
        if spec.name not in (TOKEN_EMBEDDING, OUTPUT):
            total += count
    return round(total)


def can_draft(draft: Facts, model: Facts) -> bool:
    """Whether a model can be a scoring draft of another, and pays."""
    sound = draft.problem is None and model.problem is None and not draft.is_block and not model.is_block
    return sound and draft.vocabulary == model.vocabulary and draft.work <= DRAFT_SHARE * model.work


def best_draft(path: Path) -> Path:
    """Of the models at hand, those beside the model's own file too, the one with the least work for a token; of its
    files the smallest with 4 bits of a weight or more.

    Raises RequestError where there is none, and what opening the model raises.
    """
    model = examine(path)
    if model.problem is not None or model.is_block:
        raise GGUFError(model.problem or f"{printable(path)}: holds a multi-token-prediction block alone")
    drafts = [(examine(place.path), place.path) for place in places([path.parent])]
    drafts = [(facts, draft) for facts, draft in drafts if can_draft(facts, model)]
    if not drafts:
        raise RequestError(
            f"-md auto: no model at hand shares the vocabulary of {printable(path.name)} with at most half of its work "
            "(vkprefill models lists them)"
        )
    return min(drafts, key=lambda one: one[0].as_draft)[1]


def _in_folder(folder: Path, source: str) -> list[Place]:
    try:
        names = [path.name for path in folder.iterdir() if os.path.isfile(path)]
    except OSError:
        return []
    return [Place(stem(name), folder / name, source) for name in models_among(names)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
