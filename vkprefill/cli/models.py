"""vkprefill models: the models at hand, by the names that -m takes."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from vkprefill.cli.common import notice
from vkprefill.display import one_line
from vkprefill.errors import RequestError
from vkprefill.hub.at_hand import Facts, Place, can_draft, examine, places
from vkprefill.hub.places import FOLDERS, hub_cache, llama_cache

DESCRIPTION = f"""List the models at hand: the built-in pair, what is in Hugging Face's cache and in llama.cpp's, and
the GGUF files of the folders given here or in the variable {FOLDERS} (with colons between). Headers alone are
read. A name listed is one that -m takes, of folders if they are in the variable; the drafts named share the model's
vocabulary and take at most half of its work, the best of all first: the one that -md auto takes."""


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser("models", help="list the models at hand", description=DESCRIPTION)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="list the GGUF files in this folder too")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    folders = [Path(folder) for folder in args.folders]
    for folder in folders:
        if not os.path.isdir(folder):
            raise RequestError(f"{folder}: no such folder, wanted one with GGUF files")
    found = [(place, examine(place.path)) for place in places(folders)]
    if args.json:
        print(json.dumps([as_json(place, facts, drafts_for(facts, found)) for place, facts in found]))
        return 0
    for place, facts in found:
        print("\n".join(as_lines(place, facts, drafts_for(facts, found))))
    notice(f"looked in {', '.join(map(str, (hub_cache(), llama_cache(), *folders)))}")
    return 0


def drafts_for(model: Facts, found: list[tuple[Place, Facts]]) -> list[str]:
    """Names of those that can score prompts for a model, best first."""
    drafts = [(facts, place.name) for place, facts in found if can_draft(facts, model)]
    return [name for facts, name in sorted(drafts, key=lambda one: one[0].as_draft)]


def as_json(place: Place, facts: Facts, drafts: list[str]) -> dict[str, object]:
    return {
        "name": place.name,
        "path": str(place.path),
        "source": place.source,
        "size_bytes": facts.size_bytes,
        "architecture": facts.architecture,
        "types": facts.types,
        "parameters": facts.parameters,
        "runs": facts.problem is None and not facts.is_block,
        "problem": facts.problem,
        "is_block": facts.is_block,
        "vocabulary": facts.vocabulary,
        "drafts": drafts,
    }


def as_lines(place: Place, facts: Facts, drafts: list[str]) -> list[str]:
    total = max(sum(facts.types.values()), 1)
    types = ", ".join(f"{name} {size / total:.0%}" for name, size in facts.types.items() if size / total >= 0.01)
    what = [facts.architecture, f"{facts.parameters / 1e6:,.0f} M parameters" if facts.parameters else "", types]
    lines = [f"{place.name}: {', '.join(filter(None, what))}{', ' if any(what) else ''}{in_mib(facts.size_bytes)}"]
    lines.append(f"   {place.source}: {place.path}")
    if facts.problem is not None:
        lines.append(f"   cannot be used: {facts.problem}")
    elif facts.is_block:
        lines.append("   a multi-token-prediction block alone, for -md beside its model")
    else:
        more = f"; drafts for it: {', '.join(drafts)}" if drafts else ""
        lines.append(f"   runs; vocabulary {facts.vocabulary[:8]}{more}")
    return [one_line(line) for line in lines]


def in_mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
