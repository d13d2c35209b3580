"""The prompt of subcommands that take one: its options, its text and its token ids."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vkprefill.cli.common import add_template_options, template_kwargs, terminal_text
from vkprefill.cli.parser import PROMPT, group_of
from vkprefill.engine.model import Model
from vkprefill.errors import RequestError
from vkprefill.generation.prompt import EncodedPrompt, encode_prompt


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """-p, -f and --raw, and what goes into the chat template with the prompt."""
    add_template_options(parser)
    group = group_of(parser, PROMPT)
    prompt = group.add_mutually_exclusive_group()
    prompt.add_argument(
        "-p",
        "--prompt",
        type=terminal_text,
        metavar="TEXT",
        help="the prompt: one user message through the file's chat template",
    )
    prompt.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file; - for stdin")
    group.add_argument("--raw", action="store_true", help="take the prompt as it stands, without the chat template")


def prompt_text(args: argparse.Namespace) -> str:
    """The prompt of the options. Raises RequestError where it is empty or cannot be read, or options contradict each
    other.
    """
    if args.raw and (args.system_prompt is not None or template_kwargs(args)):
        raise RequestError("--raw: there is no chat template to give -sys or --chat-template-kwargs to")
    text = _read_prompt(args)
    if not text:
        raise RequestError("prompt: it is empty, wanted at least one token")
    return text


def encoded_prompt(args: argparse.Namespace, model: Model, text: str) -> EncodedPrompt:
    """The prompt as the options ask for it."""
    return encode_prompt(
        model, text, raw=args.raw, system_prompt=args.system_prompt, template_kwargs=template_kwargs(args)
    )


def _read_prompt(args: argparse.Namespace) -> str:
    """The prompt of the options. Raises RequestError for a file that cannot be read or is not UTF-8."""
    if args.prompt is not None:
        return args.prompt
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
