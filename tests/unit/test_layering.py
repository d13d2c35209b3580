"""ARCHITECTURE.md's module list is the order of imports: a module imports only from lines above its own.

`__init__.py` files and `__main__.py` are left out: they only name what the others offer. Imports inside functions
count.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "vkprefill"
COMPILED = {"_barrier": "device"}  # extension module -> the one module that imports it
MODULE_LINE = re.compile(r"^    (\w+)(\.py|/)\s")


def layers() -> dict[str, int]:
    """Name of each module or subpackage -> its line in the list under "Layers"."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("## Layers", 1)[1].split("\n## ", 1)[0]
    names = [m[1] for line in section.splitlines() if (m := MODULE_LINE.match(line))]
    return {name: position for position, name in enumerate(names)}


def source_files() -> list[Path]:
    names = ("__init__.py", "__main__.py")
    return [p for p in sorted((ROOT / PACKAGE).rglob("*.py")) if p.name not in names]


def layer_of(path: Path) -> str:
    """The name of the list that a file belongs to: its own, or its folder's."""
    return path.relative_to(ROOT / PACKAGE).with_suffix("").parts[0]


def imported(source: str, package: str) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of each import in `source`, a module of `package`; relative ones are resolved."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def violations(source: str, path: Path, order: dict[str, int]) -> list[str]:
    """What in a file of the package breaks the order, one message each."""
    where = path.relative_to(ROOT)
    own = layer_of(path)
    package = ".".join(path.relative_to(ROOT).parent.parts)
    found = []
    for line, name in imported(source, package):
        top, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if top == "kp" and own != "device":
            found.append(f"{where}:{line}: imports kp; only device.py may")
        if top == PACKAGE and target in COMPILED:
            if own != COMPILED[target]:
                found.append(f"{where}:{line}: imports {target}; only {COMPILED[target]}.py may")
            continue
        if top != PACKAGE or target == own:
            continue
        if target not in order:
            if own != "cli":  # the command line may use the package's public names
                found.append(f"{where}:{line}: imports {name}, which ARCHITECTURE.md does not list")
        elif order[target] > order[own]:
            found.append(f"{where}:{line}: {own} imports {target}, which stands below it in ARCHITECTURE.md")
    return found


def test_every_module_is_listed():
    missing = {layer_of(p) for p in source_files()} - set(layers())
    assert not missing, f"not in ARCHITECTURE.md's list: {sorted(missing)}"


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(ROOT / PACKAGE)))
def test_imports_follow_the_layers(path):
    order = layers()
    if layer_of(path) not in order:
        pytest.skip("not listed: test_every_module_is_listed tells")
    assert violations(path.read_text(), path, order) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("from .model import Model", "imports model, which stands below"),
        ("from . import model", "imports model, which stands below"),
        ("import vkprefill.model", "imports model, which stands below"),
        ("def f():\n    import kp", "only device.py may"),
        ("from ._barrier import Barrier", "only device.py may"),
        ("from vkprefill._barrier import Barrier", "only device.py may"),
        ("from .nowhere import x", "does not list"),
        ("from .errors import ShapeError\nimport numpy as np", None),
    ],
)
def test_the_check_itself(source, message):
    found = violations(source, ROOT / PACKAGE / "quants.py", layers())
    assert bool(found) == bool(message)
    if message:
        assert message in found[0]
