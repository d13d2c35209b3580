"""The page of all messages, made from the code: what is said when something is refused, fails or is worth a notice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "vkprefill"
DOTS = "..."  # for what is put in
SAYING = {"notice", "bad_request", "error", "error_response", "Wrong", "wrong", "warning"}  # beside errors themselves
# Areas of the page: title, folders of the package whose messages stand there.
AREAS = {
    "Command line": ("cli",),
    "Files": ("gguf", "text"),
    "Models by name": ("hub",),
    "Device and memory": ("vulkan", "engine"),
    "Speculative prefill and drafts": ("specprefill", "drafting"),
    "Prompts and answers": ("generation", "grammar", "recording", "explain"),
    "Server": ("server",),
    "Measuring and testing": ("evaluation", "benchmark", "selftest"),
}
LEAST = 10  # characters that are not DOTS: less cannot be looked for


def messages_page() -> Iterator[str]:
    """Markdown, line by line."""
    yield "# All messages\n\nMade from the code. Three dots stand for what differs from case to case; most have the"
    yield "form *the thing: what was found, wanted what it may be*. What to do about those that are met most:"
    yield "[troubleshooting](troubleshooting.md).\n"
    for title, folders in AREAS.items():
        yield f"## {title}\n"
        found = (message for folder in folders for message in messages(PACKAGE / folder))
        yield from (f"- `{message}`" for message in sorted(set(found), key=lambda text: text.lstrip(". :`")))
        yield ""


def messages(folder: Path) -> Iterator[str]:
    """Those of a folder's modules, DOTS for what is put in."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for argument in _said(node):
                text = " ".join(re.sub("%[sd]", DOTS, _text(argument)).replace("`", "'").split())
                if " " in text and len(text.replace(DOTS, "")) >= LEAST:
                    yield re.sub(r"(?:\.\.\.)+", DOTS, text)


def _said(node: ast.AST) -> list[ast.expr]:
    """The arguments of errors, and of what takes a message."""
    if not isinstance(node, ast.Call):
        return []
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return node.args if name in SAYING or name.endswith("Error") else []


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) if isinstance(part, ast.Constant) else DOTS for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.IfExp(body=body, orelse=other):
            return _text(body) or _text(other)
    return DOTS
