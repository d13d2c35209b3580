"""vkprefill explain: which tokens of a prompt speculative prefill keeps, and why."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack

from rich.console import Console

from vkprefill.cli.common import (
    add_draft_options,
    add_model_options,
    notice,
    open_pair,
    prefill_bar,
    scoring,
)
from vkprefill.cli.output_file import OutputFile
from vkprefill.cli.prompt_options import add_prompt_options, encoded_prompt, prompt_text
from vkprefill.cli.specprefill_options import refuse_checks
from vkprefill.errors import RequestError
from vkprefill.explain.explanation import coloured_text, explain, marked_text, summary
from vkprefill.explain.layer_map import layer_map
from vkprefill.explain.page import page
from vkprefill.specprefill.pipeline import SpecPrefill

DESCRIPTION = (
    "Show a prompt with what the draft model finds important and what speculative prefill would drop. A dry run: the "
    "target prefills nothing (but for a short measurement of its speed, once on a device), or, with "
    "--specprefill-scorer self, its early layers only, on a cache of their own. On a terminal kept text has "
    "a colour by importance (yellow to red) and dropped text is "
    "dim and struck through; elsewhere dropped text stands in [- and -]. A summary goes to stderr."
)


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "explain", help="show which parts of a prompt would be dropped", description=DESCRIPTION
    )
    add_prompt_options(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object: specprefill, kept_ranges, importance, chunk_scores, ...",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page that needs nothing else, in place of the text")
    parser.add_argument(
        "--all-layers",
        action="store_true",
        help="with --html or --json: a dense prefill of the model too, and what the last token reads in every layer",
    )
    add_model_options(parser)
    add_draft_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    refuse_checks(args)
    text = prompt_text(args)
    if args.specprefill is False:
        raise RequestError("--no-specprefill: there is nothing to explain without speculative prefill")
    if args.all_layers and args.html is None and not args.json:
        raise RequestError("--all-layers: shown with --html or --json only")
    if scoring(args)[0] is None:
        raise RequestError("explain: there is no draft model; give one with -md FILE, or --specprefill-scorer self")
    with ExitStack() as stack:
        html = stack.enter_context(OutputFile(args.html)) if args.html is not None else None
        model, draft, config = stack.enter_context(open_pair(args, len(text.encode())))
        prompt = encoded_prompt(args, model, text)
        spec = SpecPrefill(model, draft, config)
        stack.callback(spec.close)
        with prefill_bar() as progress:
            found = explain(spec, prompt.token_ids, progress, protected=prompt.protected)
        layers = None
        if args.all_layers:
            with prefill_bar() as progress:
                layers = layer_map(model, prompt.token_ids, progress)
        if html is not None:
            document = page(found, layers).encode()
            html.write(lambda file: file.write(document))
            notice(f"{args.html}: written")
    if args.json:
        described = found.as_dict() if layers is None else found.as_dict() | {"layers": layers.as_dict()}
        print(json.dumps(described, ensure_ascii=False))
    elif html is None:
        console = Console(highlight=False, soft_wrap=True)
        if console.is_terminal and console.color_system and not console.no_color:
            console.print(coloured_text(found))
        else:
            print(marked_text(found))
    notice(summary(found))
    return 0
