"""What documents tell their readers to type: commands in blocks of code, Python in its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tools.make_docs import SOURCES

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))
USED = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]  # by those who use it
FENCE = re.compile(r"^ *```.*?^ *```", re.M | re.S)
ASSIGNED = re.compile(r"^\w+=\S*$")
DOTS = "..."


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines(text: str) -> list[str]:
    """Of blocks of code, but for Python's; continued lines are one."""
    blocks = [re.sub(r"^ *```.*$", "", block, flags=re.M) for block in FENCE.findall(text) if "```python" not in block]
    blocks += re.findall(r"(?:^(?: {4}.*)\n)+", FENCE.sub("", text), re.M)
    return "\n".join(blocks).replace("\\\n", " ").splitlines()


def parts(line: str) -> list[list[str]]:
    """The words of each command of a line, as a shell has them: pipes and lists cut, comments and redirections gone."""
    words = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    words.whitespace_split, words.commenters = True, "#"
    found: list[list[str]] = [[]]
    for word in words:
        if not word.strip("();<>|&"):
            found.append([word] if word in (">", "<") else [])
        else:
            found[-1].append(word)
    return [part for part in found if part and part[0] not in (">", "<")]


def commands(text: str) -> list[list[str]]:
    """The arguments of what calls vkprefill in blocks of code."""
    found = []
    for words in (part for line in lines(text) for part in _readable(line)):
        while words and ASSIGNED.match(words[0]):
            words.pop(0)
        if words and words[0].rpartition("/")[2] == "vkprefill":
            found.append(words[1:])
    return found


def _readable(line: str) -> list[list[str]]:
    """None of a line that is no shell's, such as a drawing with a quote in it."""
    try:
        return parts(line)
    except ValueError:
        assert "vkprefill" not in line, line
        return []


def arguments(words: list[str]) -> list[str]:
    """Of a command, as they are typed: [what is optional] is taken, DOTS for more are left out."""
    return [word.strip("[]") for word in words if word not in (DOTS, "...]")]


def snippets(text: str) -> list[str]:
    """The blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def scripts(text: str) -> Iterator[tuple[str, str]]:
    """What is run besides vkprefill, in blocks and in sentences: (make, a target), (python, a module or file),
    (file, a script of tools/), (extra, what pip is to install with the package).
    """
    code = "\n".join([*lines(text), *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))])
    yield from (("make", target) for target in re.findall(r"\bmake ([a-z][\w-]*)", code))
    yield from (("python", module) for module in re.findall(r"python -m ((?:tools|benchmarks)[\w.]*)", code))
    files = r"(?:^|[ `])((?:tools|benchmarks|examples)/[\w/]+\.(?:sh|py))"
    yield from (("file", name) for name in re.findall(files, code, re.M))
    for extras in re.findall(r"pip install '(?:vkprefill|\.|[\w./*-]*)\[([\w,]+)\]'", code):
        yield from (("extra", name) for name in extras.split(","))
