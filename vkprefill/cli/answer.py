"""An answer on stdout, as it comes, harmless for a terminal; what a check finds wrong is taken back there."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from vkprefill.cli.common import terminal_text
from vkprefill.cli.parser import ANSWER, group_of
from vkprefill.cli.retype import taken_back
from vkprefill.display import printable, quoted, visible
from vkprefill.errors import RequestError
from vkprefill.generation.checked import AUTO, REPORT, REVISE
from vkprefill.generation.options import grammar_of
from vkprefill.generation.parts import GenerationPart, GenerationResult
from vkprefill.specprefill.plan import CHECK_OFF, NOT_ASKED_FOR
from vkprefill.specprefill.settings import SpecPrefillConfig


def add_answer_options(parser: argparse.ArgumentParser) -> None:
    group = group_of(parser, ANSWER)
    group.add_argument(
        "-n",
        "--n-predict",
        type=int,
        default=-1,
        metavar="N",
        help="at most N tokens; -1: until the end of the answer or the context (default: -1)",
    )
    group.add_argument(
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

    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "-jf",
        "--json-schema-file",
        "--json-schema",
        dest="json_schema",
        metavar="FILE",
        help="answer in compact JSON that follows the JSON schema in FILE, after the reasoning if there is any",
    )
    form.add_argument(
        "--grammar-file", metavar="FILE", help="answer by the grammar in FILE, in GBNF, its first rule named root"
    )


def answer_form(args: argparse.Namespace) -> dict[str, str | None]:
    """The arguments `schema` and `grammar` of an answer. RequestError for a file that cannot be read or followed."""
    form = {"schema": _text_of(args.json_schema), "grammar": _text_of(args.grammar_file)}
    grammar_of(**form, named={"schema": args.json_schema, "grammar": args.grammar_file})
    return form


def _text_of(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        raise RequestError(f"{printable(path)}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{printable(path)}: byte {error.start} is not UTF-8") from None


def stop_texts(args: argparse.Namespace) -> list[str]:
    """Those of the options. Raises RequestError for an empty one."""
    if not all(args.stop):
        raise RequestError("--stop: it is empty, wanted a text")
    return args.stop


class AnswerWriter:
    """Takes an answer's parts. result: what came of them; shown: whether they go to stdout; replaced: text that a check
    found wrong.
    """

    def __init__(self, *, shown: bool = True) -> None:
        self.result = GenerationResult()
        self.replaced: str | None = None
        self._shown = shown
        self._on_terminal = sys.stdout.isatty()
        self._waits = False

    def for_check(self, spec: SpecPrefillConfig | None) -> SpecPrefillConfig | None:
        """The settings, with what is to be done about a wrong answer chosen: a terminal can take text back. Where
        nothing can and it is asked for, the answer is written when all of it is checked.
        """
        if spec is None or not self._shown:
            return spec
        if spec.on_mismatch == AUTO:
            spec = spec.having({"on_mismatch": REVISE if self._on_terminal else REPORT})
        self._waits = spec.on_mismatch == REVISE and not self._on_terminal
        return spec

    def write(self, parts: Iterator[GenerationPart]) -> None:
        """All parts."""
        try:
            with closing(parts):
                for part in parts:
                    self._take_back(part)
                    self.result.add(part)
                    if not self._waits:
                        self._show(part.text)
        finally:
            if self._waits:
                self._show(self.result.text)

    def _take_back(self, part: GenerationPart) -> None:
        if part.revised_from is None:
            return
        text = self.result.text
        self.replaced = text[part.revised_from :]
        if self._shown and self._on_terminal:
            size = shutil.get_terminal_size()
            stays = len(visible(text[: part.revised_from]))
            print(taken_back(visible(text), stays, size.columns, size.lines), end="", flush=True)

    def _show(self, text: str) -> None:
        if self._shown:
            print(visible(text) if self._on_terminal else text, end="", flush=True)


def describe_check(result: GenerationResult, replaced: str | None) -> str | None:
    """What came of the check of an answer, as one line; None where it was not checked."""
    check = result.specprefill.check
    if check["status"] == CHECK_OFF and check["reason"] == NOT_ASKED_FOR:
        return None
    line = f"check: {check['status']}: {check['reason']}"
    if replaced:
        line += f"; it was {quoted(replaced)} there"
    if check["dense_ms"]:
        line += f" (dense prefill {check['dense_ms'] / 1e3:.2f} s, comparison {check['verify_ms'] / 1e3:.2f} s)"
    return line
