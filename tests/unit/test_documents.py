"""What documents say: links lead somewhere, commands are ones that the parser takes, messages are ones that exist."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from tools.make_docs import SOURCES, gather
from vkprefill.cli.commands import build_parser

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))
FENCE = re.compile(r"^ *```.*?^ *```", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ASSIGNED = re.compile(r"^\w+=\S+$")
DOTS = "..."


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """Of its headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links(document):
    for link in LINK.findall(FENCE.sub("", document.read_text())):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def commands(text: str) -> list[str]:
    """Lines of code that call vkprefill, without what a shell makes of them; continued lines are one."""
    blocks = [re.sub(r"^ *```.*$", "", block, flags=re.M) for block in FENCE.findall(text)]
    blocks += re.findall(r"(?:^(?: {4}.*)\n)+", FENCE.sub("", text), re.M)
    found = []
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        for part in re.split(r"\s[|&;]+\s|<\(|\)", line):
            words = shlex.split(part, comments=True) if part.count("'") % 2 == part.count('"') % 2 == 0 else []
            while words and ASSIGNED.match(words[0]):
                words.pop(0)
            if words and words[0].rpartition("/")[2] == "vkprefill":
                found.append(" ".join(map(shlex.quote, words[1:])))
    return found


@pytest.mark.parametrize("document", [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))], ids=named)
def test_commands(document, capsys):
    """Options as in the text; [what is optional] is taken, DOTS for more are left out."""
    for command in commands(document.read_text()):
        argv = [word.strip("[]") for word in shlex.split(command) if word not in (DOTS, "...]")]
        argv = argv[: argv.index(">")] if ">" in argv else argv
        try:
            build_parser(argv).parse_args(argv, type("Given", (), {"command": None})())
        except SystemExit as stopped:
            assert stopped.code == 0, (command, capsys.readouterr().err)


def test_commands_are_found():
    text = "```\n. x | X=1 .venv/bin/vkprefill generate -p 'a b'  # so\nls\n```\n\n    vkprefill models > x\n"
    assert commands(text) == ["generate -p 'a b'", "models '>' x"]
    assert len(commands((ROOT / "README.md").read_text())) > 8


def texts_in_code() -> str:
    """Every text of the package, one a line, DOTS for what is put in."""
    found = []
    for path in sorted((ROOT / "vkprefill").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else DOTS for part in node.values)
                found.append("".join(parts))
    return "\n".join(found)


def test_messages():
    """Those of docs/troubleshooting.md, and of the table in docs/models.md."""
    code, text = texts_in_code(), (ROOT / "docs" / "troubleshooting.md").read_text()
    text += (ROOT / "docs" / "models.md").read_text().partition("| it says |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", text, re.M)
    messages = [message for cell in cells for message in re.findall("`([^`]+)`", cell)]
    assert len(messages) > 15
    for message in messages:
        missing = [part for part in message.split(DOTS) if part.strip() and part not in code]
        assert not missing, f"{message}: wanted as one text in the code (DOTS stand for what is put in)"


def test_the_site_has_all_pages(tmp_path):
    gather(tmp_path / "source")
    pages = {str(path.relative_to(tmp_path / "source")) for path in (tmp_path / "source").rglob("*.md")}
    assert pages == {*map(named, DOCUMENTS), "docs/settings.md"}
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert {*listed} <= pages and "docs/settings.md" in listed
    settings = (tmp_path / "source" / "docs" / "settings.md").read_text()
    for wanted in ("| `keep_ratio` | ", "`SP_", "## vkprefill serve", "`-hf USER/REPO[:QUANT]`", "| `HF_TOKEN, "):
        assert wanted in settings
    assert all(
        line.replace("\\|", "").count(" | ") in (1, 3) for line in settings.splitlines() if line.startswith("| `")
    )
