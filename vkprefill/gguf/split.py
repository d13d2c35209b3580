"""Models split into several files, NAME-00001-of-0000N.gguf and so on: which files belong together, and do they.

The first has the model's metadata; each says in keys of its own which part it is, of how many, with how many tensors
in all. Tensors lie whole in one part.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from vkprefill.errors import GGUFError

PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class Split:
    """What a part says of itself. number: from 1; num_tensors: of all parts, None where it is not said."""

    number: int
    count: int
    num_tensors: int | None


def split_of(metadata: dict[str, object], label: str) -> Split | None:
    """None for a file that is whole. Raises GGUFError for keys that make no sense."""
    count = _integer(metadata, "split.count", label)
    if count is None or count <= 1:
        return None
    number = _integer(metadata, "split.no", label)
    if number is None or number >= count:
        raise GGUFError(f"{label}: split.no: found {number}, wanted 0 to {count - 1}, the parts that split.count says")
    return Split(number + 1, count, _integer(metadata, "split.tensors.count", label))


def part_paths(path: Path, split: Split, label: str) -> list[Path]:
    """All parts, in order, by the name of one. Raises GGUFError where the name is no part's, or one is missing."""
    name = PART_NAME.fullmatch(path.name)
    if not name:
        raise GGUFError(
            f"{label}: part {split.number} of a model split into {split.count}, wanted a name that ends in"
            f" -{split.number:05}-of-{split.count:05}.gguf, by which the others are found"
        )
    if (int(name[2]), int(name[3])) != (split.number, split.count):
        raise GGUFError(
            f"{label}: holds part {split.number} of {split.count}, wanted {int(name[2])} of {int(name[3])} as in its"
            " name"
        )
    paths = []
    for number in range(1, split.count + 1):
        paths.append(path.with_name(f"{name[1]}-{number:05}-of-{split.count:05}.gguf"))
        if not paths[-1].exists():
            raise GGUFError(f"{label}: part {number} of {split.count} is missing, wanted it beside the others")
    return paths


def _integer(metadata: dict[str, object], key: str, label: str) -> int | None:
    value = metadata.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise GGUFError(f"{label}: {key}: wanted an integer from 0")
    return value
