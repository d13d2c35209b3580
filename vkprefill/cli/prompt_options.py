"""The prompt of subcommands that only read one: its options, and its token ids."""

from __future__ import annotations

import argparse

from vkprefill.cli.common import template_kwargs
from vkprefill.cli.generate import read_prompt
from vkprefill.errors import RequestError
from vkprefill.generate import encode_prompt
from vkprefill.model import Model


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "-p", "--prompt", metavar="TEXT", help="the prompt: one user message through the file's chat template"
    )
    prompt.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file; - for stdin")
    parser.add_argument("--raw", action="store_true", help="take the prompt as it stands, without the chat template")
    parser.add_argument("-sys", "--system-prompt", metavar="TEXT", help="system message before the prompt")
    parser.add_argument(
        "--chat-template-kwargs",
        metavar="JSON",
        help="variables of the chat template, such as '{\"enable_thinking\": false}'",
    )


def prompt_text(args: argparse.Namespace) -> str:
    """The prompt of the options. Raises RequestError where it cannot be read, or options contradict each other."""
    if args.raw and (args.system_prompt is not None or template_kwargs(args)):
        raise RequestError("--raw: there is no chat template to give -sys or --chat-template-kwargs to")
    return read_prompt(args)


def prompt_tokens(args: argparse.Namespace, model: Model, text: str) -> list[int]:
    """Token ids of the prompt as the options ask for it."""
    token_ids, _ = encode_prompt(
        model, text, raw=args.raw, system_prompt=args.system_prompt, template_kwargs=template_kwargs(args)
    )
    return token_ids
