"""The documents as a site: python tools/make_docs.py [FOLDER]      default: build/docs/site (make docs)

All Markdown files of the repository keep their places, so that their links hold on the site as they do beside the code;
a page of all settings is made from the code. Needs mkdocs-material; a link that leads nowhere is an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from vkprefill.cli import variables
from vkprefill.cli.commands import SUBCOMMANDS, WITH_VARIABLES, build_parser
from vkprefill.cli.parser import Parser
from vkprefill.hub import places
from vkprefill.specprefill.settings import SpecPrefillConfig

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "docs"
SOURCES = ("*.md", "docs/*.md", "benchmarks/*.md", "tools/train_demo/*.md", "tests/data/*/*.md")
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
# Of the environment, beside those of speculative prefill's settings.
VARIABLES = {
    f"{variables.PREFIX}...": "every option of `serve`, see its table",
    places.FOLDERS: "folders with models, colons between: what `vkprefill models` lists and `-m NAME` finds",
    "VKPREFILL_COMPANION": "0: the device is opened by kp alone, with no feature on",
    "VKPREFILL_BARRIER": "0: one submission for each dependency in place of a barrier",
    "HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_HUB_OFFLINE, LLAMA_CACHE": "see [models by name](models.md)",
    "XDG_CACHE_HOME": "the folder of what is measured once (`~/.cache`)",
}


def gather(source: Path) -> None:
    """All documents, what they link to in the repository, and the page of settings."""
    shutil.rmtree(source, ignore_errors=True)
    for pattern in SOURCES:
        for document in sorted(ROOT.glob(pattern)):
            _copy(document, source)
            for link in LINK.findall(document.read_text()):
                linked = (document.parent / link).resolve()
                if linked.is_file() and linked.suffix != ".md":
                    _copy(linked, source)
    (source / "docs" / "settings.md").write_text("\n".join(settings_page()) + "\n")


def settings_page() -> Iterator[str]:
    """Markdown: every option of every subcommand, each setting of speculative prefill, the variables."""
    yield "# Settings\n\nMade from the code: what `--help-all` of each subcommand says.\n"
    yield "## Speculative prefill\n"
    yield "Fields of `SpecPrefillConfig`, in requests keys of `specprefill`; as flags `--specprefill-keep-ratio` etc.\n"
    yield "| field | default | variable | |\n|---|---|---|---|"
    for setting in fields(SpecPrefillConfig):
        kind, variable = setting.metadata["kind"], setting.metadata["variable"]
        variable = f"`{variable}`" if variable else ""
        yield _row(f"`{setting.name}`", f"`{kind.text(setting.default)}`", variable, setting.metadata["help"])
    yield "\n## Variables\n\n| | |\n|---|---|"
    yield from (_row(f"`{name}`", text) for name, text in VARIABLES.items())
    known = build_parser([]).subcommands()
    for command in SUBCOMMANDS:
        yield from _options(command, known[command])


def _options(command: str, parser: Parser) -> Iterator[str]:
    yield f"\n## vkprefill {command}\n\n{' '.join((parser.description or '').split())}\n\n| option | |\n|---|---|"
    for action in parser._actions:
        if action.dest.startswith("specprefill_") or action.help == argparse.SUPPRESS:
            continue
        metavar = f" {action.metavar}" if isinstance(action.metavar, str) and action.nargs != 0 else ""
        name = ", ".join(f"`{flag}{metavar}`" for flag in action.option_strings) or f"`{action.metavar or action.dest}`"
        if command in WITH_VARIABLES and (variable := variables.variable_of(action)):
            name += f", `{variable}`"
        choices = f" ({', '.join(map(str, action.choices))})" if action.choices and not metavar else ""
        yield _row(name, (action.help or "").replace("%%", "%") + choices)


def _row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '&#124;').replace('<', '&lt;') for cell in cells)} |"


def _copy(file: Path, source: Path) -> None:
    place = source / file.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)


def main(arguments: list[str]) -> int:
    site = Path(arguments[0] if arguments else WORK / "site").resolve()
    gather(WORK / "source")
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", site], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
