"""An answer on stdout, as it comes: cut at the texts that end it, harmless for a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing

from vkprefill.cli.common import terminal_text
from vkprefill.display import visible
from vkprefill.errors import RequestError
from vkprefill.generation.generate import GenerationPart, GenerationResult
from vkprefill.text.stop_strings import StopStrings


def add_answer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--n-predict",
        type=int,
        default=-1,
        metavar="N",
        help="at most N tokens; -1: until the end of the answer or the context",
    )
    parser.add_argument(
        "-r",
        "--reverse-prompt",
        "--stop",
        action="append",
        default=[],
        dest="stop",
        type=terminal_text,
        metavar="TEXT",
        help="end the answer before this text; may be given several times",
    )


def stop_texts(args: argparse.Namespace) -> list[str]:
    """Those of the options. Raises RequestError for an empty one."""
    if not all(args.stop):
        raise RequestError("--stop: it is empty, wanted a text")
    return args.stop


class AnswerWriter:
    """Takes an answer's parts. result: what came of them; shown: whether they go to stdout."""

    def __init__(self, stops: Sequence[str], *, shown: bool = True) -> None:
        self.result = GenerationResult()
        self._stops = StopStrings(stops)
        self._shown = shown
        self._on_terminal = sys.stdout.isatty()

    def write(self, parts: Iterator[GenerationPart]) -> None:
        """All parts, or those up to a stop text; what was held back for one is written in any case."""
        try:
            with closing(parts):
                for part in parts:
                    part.text = self._stops.push(part.text)
                    if self._stops.found is not None:
                        part.finish_reason = "stop"
                    self.result.add(part)
                    self._show(part.text)
                    if self._stops.found is not None:
                        return
        finally:
            rest = self._stops.finish()
            self.result.text += rest
            self._show(rest)

    def _show(self, text: str) -> None:
        if self._shown:
            print(visible(text) if self._on_terminal else text, end="", flush=True)
