"""vkprefill generate: one prompt, one answer on stdout."""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from vkprefill.cli.common import (add_answer_options, add_draft_options, add_model_options, add_sampling_options, describe_specprefill, max_tokens,
                                  notice, open_pair, prefill_bar, sampling_config, speeds, template_kwargs)
from vkprefill.errors import RequestError
from vkprefill.generate import GenerationResult, stream_generate
from vkprefill.tokenizer import checked_text


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser("generate", help="answer one prompt", description="Answer one prompt. The answer alone goes to stdout.")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt: one user message through the file's chat template")
    prompt.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file; - for stdin")
    parser.add_argument("--raw", action="store_true", help="take the prompt as it stands, without the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object: text, token_ids, finish_reason, timings, specprefill")
    add_answer_options(parser)
    add_sampling_options(parser)
    add_model_options(parser)
    add_draft_options(parser)
    parser.set_defaults(run=run, parser=parser)


def read_prompt(args: argparse.Namespace) -> str:
    """The prompt of the options. Raises RequestError for a file that cannot be read or is not UTF-8."""
    if args.prompt is not None:
        return checked_text(args.prompt)
    if args.file is None:
        args.parser.error("a prompt is needed: -p TEXT, -f FILE, or -f - for stdin")
    try:
        if args.file == "-" and sys.stdin is None:
            raise RequestError("stdin: it is closed")
        raw = sys.stdin.buffer.read() if args.file == "-" else Path(args.file).read_bytes()
    except OSError as error:
        raise RequestError(f"{args.file}: cannot be read: {error.strerror}") from None
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{'stdin' if args.file == '-' else args.file}: byte {error.start} is not UTF-8") from None


def run(args: argparse.Namespace) -> int:
    prompt, sampling, limit, variables = read_prompt(args), sampling_config(args), max_tokens(args), template_kwargs(args)
    if args.raw and (args.system_prompt is not None or variables):
        raise RequestError("--raw: there is no chat template to give -sys or --chat-template-kwargs to")
    result = GenerationResult()
    with open_pair(args, len(prompt.encode())) as (model, draft, spec), prefill_bar() as progress:
        parts = stream_generate(model, prompt, draft=draft, spec=spec, max_tokens=limit, sampling=sampling, raw=args.raw, system_prompt=args.system_prompt,
                                template_kwargs=variables, progress=progress)
        for part in parts:
            result.add(part)
            if not args.json:
                print(part.text, end="", flush=True)
    if args.json:
        print(json.dumps(result.as_dict(), ensure_ascii=False))
    else:
        print()
    if draft is not None:
        notice(describe_specprefill(result.specprefill))
    notice(speeds(result.timings.as_dict()))
    return 0
