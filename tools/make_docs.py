"""The documents as a site: python -m tools.make_docs [FOLDER]      default: build/docs/site (make docs)

All Markdown files of the repository keep their places, so that their links hold on the site as they do beside the code;
pages of all settings and all messages are made from the code. Needs mkdocs-material; a link that leads nowhere is an
error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.messages_page import messages_page
from tools.settings_page import settings_page

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "docs"
SOURCES = ("*.md", "docs/*.md", "benchmarks/*.md", "tools/train_demo/*.md", "tests/data/*/*.md")
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")


def gather(source: Path) -> None:
    """All documents, what they link to in the repository, and the pages made from the code."""
    shutil.rmtree(source, ignore_errors=True)
    for pattern in SOURCES:
        for document in sorted(ROOT.glob(pattern)):
            _copy(document, source)
            for link in LINK.findall(document.read_text()):
                linked = (document.parent / link).resolve()
                if linked.is_file() and linked.suffix != ".md":
                    _copy(linked, source)
    for name, lines in (("settings", settings_page()), ("messages", messages_page())):
        (source / "docs" / f"{name}.md").write_text("\n".join(lines) + "\n")


def _copy(file: Path, source: Path) -> None:
    place = source / file.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)


def main(arguments: list[str]) -> int:
    site = Path(arguments[0] if arguments else WORK / "site").resolve()
    gather(WORK / "source")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", site]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
