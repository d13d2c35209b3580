"""ARCHITECTURE.md's list of rooms is the order of imports: a line imports only from lines above it, and inside a line a
module only from those before it.

`__init__.py` files and `__main__.py` are left out: they only name what the others offer. Imports inside functions
count; those under TYPE_CHECKING only between rooms: a part may name the type of the whole that holds it.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "vkprefill"
# Extension module -> the one module that imports it.
COMPILED = {"_barrier": "vulkan.device", "_companion": "vulkan.companion"}
ROOM_LINE = re.compile(r"^    (\.|[\w/]+/)  +([\w/ ]+)$")


def rooms() -> dict[str, tuple[int, int]]:
    """Dotted name of each module (or folder of modules) in the list -> (line, place in it)."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("## Rooms", 1)[1].split("\n## ", 1)[0]
    found = {}
    lines = [m for line in section.splitlines() if (m := ROOM_LINE.match(line))]
    for number, line in enumerate(lines):
        room = line[1].strip("./").replace("/", ".")
        for place, name in enumerate(line[2].split()):
            found[f"{room}.{name.strip('/')}".lstrip(".")] = number, place
    return found


def entry_of(dotted: str, order: dict[str, tuple[int, int]]) -> str | None:
    """The list's entry that a module (name without the package) belongs to: its own, or that of a folder above it."""
    parts = dotted.split(".")
    return next((name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in order), None)


def source_files() -> list[Path]:
    names = ("__init__.py", "__main__.py")
    return [p for p in sorted((ROOT / PACKAGE).rglob("*.py")) if p.name not in names]


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / PACKAGE).with_suffix("").parts)


def for_types_only(tree: ast.AST) -> set[ast.AST]:
    """The nodes under `if TYPE_CHECKING:`."""
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    return {node for block in blocks for node in ast.walk(block)}


def imported(source: str, package: str) -> list[tuple[int, str, bool]]:
    """(line, absolute dotted name, for types only) of each import in `source`, a module of `package`; relative ones are
    resolved."""
    found, tree = [], ast.parse(source)
    types_only = for_types_only(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, node in types_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            found += [(node.lineno, f"{base}.{alias.name}", node in types_only) for alias in node.names]
    return found


def violations(source: str, path: Path, order: dict[str, tuple[int, int]]) -> list[str]:
    """What in a file of the package breaks the order, one message each."""
    where = path.relative_to(ROOT)
    own = entry_of(dotted_name(path), order)
    package = ".".join(path.relative_to(ROOT).parent.parts)
    found = []
    for line, name, types_only in imported(source, package):
        top, _, rest = name.partition(".")
        if top == "kp" and own != "vulkan.device":
            found.append(f"{where}:{line}: imports kp; only vulkan/device.py may")
        if top != PACKAGE:
            continue
        if importer := COMPILED.get(rest.split(".")[0]):
            if own != importer:
                found.append(f"{where}:{line}: imports {rest}; only {importer.replace('.', '/')}.py may")
            continue
        target = entry_of(rest, order)
        if target is None:
            found.append(f"{where}:{line}: imports {name}, which ARCHITECTURE.md does not list")
        elif target != own:
            same_room = order[target][0] == order[own][0]
            if order[target] > order[own] and not (same_room and types_only):
                found.append(f"{where}:{line}: {own} imports {target}, which stands after it in ARCHITECTURE.md")
    return found


def test_every_module_is_listed():
    order = rooms()
    missing = [dotted_name(p) for p in source_files() if entry_of(dotted_name(p), order) is None]
    assert not missing, f"not in ARCHITECTURE.md's list: {missing}"


def test_every_listed_module_is_there():
    names = {dotted_name(p) for p in source_files()}
    gone = [entry for entry in rooms() if not any(f"{name}.".startswith(f"{entry}.") for name in names)]
    assert not gone, f"in ARCHITECTURE.md's list, but not in the package: {gone}"


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(ROOT / PACKAGE)))
def test_imports_follow_the_rooms(path):
    assert violations(path.read_text(), path, rooms()) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("from ..engine.model import Model", "imports engine.model, which stands after"),
        ("from vkprefill.engine import model", "imports engine.model, which stands after"),
        ("import vkprefill.engine.model", "imports engine.model, which stands after"),
        ("from vkprefill.vulkan.device import Device", "imports vulkan.device, which stands after"),
        ("if TYPE_CHECKING:\n    from vkprefill.vulkan.device import Device", None),
        ("if TYPE_CHECKING:\n    from vkprefill.engine.model import Model", "imports engine.model, which stands after"),
        ("def f():\n    import kp", "only vulkan/device.py may"),
        ("from .._barrier import Barrier", "only vulkan/device.py may"),
        ("from vkprefill._barrier import Barrier", "only vulkan/device.py may"),
        ("import vkprefill._companion as native", "only vulkan/companion.py may"),
        ("from .nowhere import x", "does not list"),
        ("from vkprefill import Model", "does not list"),
        ("from ..errors import ShapeError\nimport numpy as np", None),
    ],
)
def test_the_check_itself(source, message):
    found = violations(source, ROOT / PACKAGE / "vulkan" / "buffer.py", rooms())
    assert bool(found) == bool(message)
    if message:
        assert message in found[0]
