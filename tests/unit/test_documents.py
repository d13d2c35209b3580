"""What documents say: links lead somewhere, commands are ones that the parser takes, messages are ones that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.documents import DOCUMENTS, DOTS, FENCE, ROOT, USED, arguments, commands, named, scripts
from tools.make_docs import gather
from vkprefill.cli.commands import build_parser
from vkprefill.gguf.tensors import MATRIX_TYPES

LINK = re.compile(r"\]\(([^)\s]+)\)")


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


@pytest.mark.parametrize("document", USED, ids=named)
def test_commands(document, capsys):
    """Options as in the text; [what is optional] is taken, DOTS for more are left out."""
    for command in commands(document.read_text()):
        argv = arguments(command)
        try:
            build_parser(argv).parse_args(argv, type("Given", (), {"command": None})())
        except SystemExit as stopped:
            assert stopped.code == 0, (command, capsys.readouterr().err)


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_flags_in_sentences(document):
    """Of what is called in a line of text, which may leave out what is needed: the flags there are."""
    for command in re.findall(r"`vkprefill ([^`]+)`", FENCE.sub("", document.read_text())):
        name, *words = command.split()
        known = build_parser([]).subcommands()
        flags = [word for word in words if re.match(r"--?[a-z]", word)]
        assert name in known or name.startswith("-"), command
        assert name.startswith("-") or {flag.partition("=")[0] for flag in flags} <= {*known[name].flags()}, command


def test_commands_are_found():
    text = "```\n. x | X=1 .venv/bin/vkprefill generate -p 'a|b'  # it's so\nls\n```\n\n    vkprefill models > x\n"
    assert commands(text) == [["generate", "-p", "a|b"], ["models"]]
    assert len(commands((ROOT / "README.md").read_text())) >= 5


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_scripts(document):
    """Targets of make, modules, files and extras that a document names are there."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    for kind, name in scripts(document.read_text()):
        there = {
            "make": name in targets,
            "python": any((ROOT / f"{name.replace('.', '/')}{end}").is_file() for end in (".py", "/__main__.py")),
            "file": (ROOT / name).is_file(),
            "extra": name in extras,
        }
        assert there[kind], (kind, name)


def test_lists_of_kernels_and_types():
    """Those of docs/how.md are there; docs/start.md has each type of weights, and no other."""
    page = (ROOT / "docs" / "how.md").read_text().partition("## The kernels")[2].partition("\n## ")[0]
    for family, kernels in re.findall(r"^\| `(\w+)/` \| ([^|]+) \|", page, re.M):
        for kernel in kernels.split(", "):
            assert list((ROOT / "shaders" / family).glob(f"{kernel.strip()}.comp")), (family, kernel)
    text = (ROOT / "docs" / "start.md").read_text()
    listed = text.partition("whose weights are ")[2].partition(", each tensor")[0]
    assert {*re.split(r",\s+|\s+or\s+", listed)} == {kind.name for kind in MATRIX_TYPES}
    assert f"weights of {len(MATRIX_TYPES)} types" in page


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
    assert pages == {*map(named, DOCUMENTS), "docs/settings.md", "docs/messages.md"}
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert {*listed} <= pages and "docs/settings.md" in listed
    settings = (tmp_path / "source" / "docs" / "settings.md").read_text()
    for wanted in (
        "| `keep_ratio` | `0.3` | a number from 0 to 1 ",
        "| `SP_",
        "## vkprefill serve",
        "| `-hf USER/REPO[:QUANT]`",
        "| `HF_TOKEN, ",
        "| `--spec-draft-n-max N` | 3 | a whole number from 1 to 7 | ",
        "| `logprobs` | completions | false | ",
    ):
        assert wanted in settings
    cells = 0
    for line in filter(lambda line: line.startswith("|"), settings.splitlines()):
        cells = cells if line.startswith("| `") else line.count("|")  # of the header above
        assert line.count("|") == cells, line
    said = (tmp_path / "source" / "docs" / "messages.md").read_text()
    for message in (
        "`device ...: found ... Vulkan device... (...)`",
        "`queue: ... requests are waiting, no more are taken`",
    ):
        assert f"- {message}\n" in said
