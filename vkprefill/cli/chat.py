"""vkprefill chat: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from select import select

from vkprefill.cli.answer import AnswerWriter, add_answer_options, answer_form, describe_check, stop_texts
from vkprefill.cli.common import (
    add_draft_options,
    add_model_options,
    add_template_options,
    max_tokens,
    notice,
    open_pair,
    show_prefill,
    speeds,
    template_kwargs,
)
from vkprefill.cli.drafting_options import add_drafting_options, drafting_config
from vkprefill.cli.sampling_options import add_sampling_options, sampling_config
from vkprefill.cli.specprefill_options import describe_specprefill
from vkprefill.cli.steer_options import add_steer_option
from vkprefill.display import one_line
from vkprefill.errors import RequestError
from vkprefill.generation.parts import GenerationResult
from vkprefill.generation.session import Session
from vkprefill.specprefill.plan import CHECK_PENDING

HELP = "/clear forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer"


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "chat", help="talk to the model", description=f"Talk to the model, one line at a time. {HELP}."
    )
    add_answer_options(parser)
    add_template_options(parser)
    add_sampling_options(parser)
    add_model_options(parser)
    add_draft_options(parser)
    add_drafting_options(parser)
    add_steer_option(parser)
    parser.set_defaults(run=run, parser=parser)


def read_line(idle: Callable[[], bool]) -> str | None:
    """The user's next line, None at the end of the input. idle: one step of work for as long as nothing is typed; False
    where there is none.
    """
    if sys.stdin is None:  # closed by the caller
        return None
    if sys.stdin.isatty():
        notice("> ", end="")
        while idle() and not _is_typed():
            pass
    line = sys.stdin.buffer.readline()
    if not line:
        return None
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"stdin: byte {error.start} of the line is not UTF-8") from None


def _is_typed() -> bool:
    """Whether a line is there to be read; where that cannot be told (Windows), as if it were."""
    try:
        return bool(select([sys.stdin], [], [], 0)[0])
    except OSError:
        return True


def run(args: argparse.Namespace) -> int:
    sampling, limit, variables = sampling_config(args), max_tokens(args), template_kwargs(args)
    stop, decode = tuple(stop_texts(args)), drafting_config(args)
    form = answer_form(args)
    start = [{"role": "system", "content": args.system_prompt}] if args.system_prompt is not None else []
    messages = list(start)
    answered = failed = False
    left: GenerationResult | None = None  # the last answer, where its check was left for idle time
    with open_pair(args) as (model, draft, spec):
        session = Session(model, draft, spec, decode=decode)
        notice(HELP)
        while True:
            try:
                line = read_line(session.idle)
            except KeyboardInterrupt:
                notice("")
                return 130
            except RequestError as error:
                notice(f"Error: {one_line(error)}")
                failed = True
                continue
            if left is not None and left.specprefill.check["status"] != CHECK_PENDING:
                notice(describe_check(left, None))  # it came out meanwhile
            left = None
            if line is None or line.strip() == "/quit":
                return 1 if failed and not answered else 0
            if line.strip() == "/clear":
                messages = list(start)
                continue
            if not line.strip():
                continue
            messages.append({"role": "user", "content": line})
            answer, interrupted = AnswerWriter(), False
            try:
                stream = partial(
                    session.stream,
                    messages,
                    max_tokens=limit,
                    sampling=sampling,
                    template_kwargs=variables,
                    spec=answer.for_check(spec),
                    stop=stop,
                    **form,
                )
                answer.write(show_prefill(stream))
            except KeyboardInterrupt:
                interrupted = True
            except RequestError as error:
                notice(f"Error: {one_line(error)}")
                messages.pop()
                failed = True
                continue
            answered = True
            print(flush=True)
            result = answer.result
            if interrupted and not result.text:
                messages.pop()
                notice("stopped; the question is forgotten")
            else:
                messages.append({"role": "assistant", "content": result.text})
                if spec is not None:
                    notice(describe_specprefill(result.specprefill, spec, draft))
                    if check := describe_check(result, answer.replaced):
                        notice(check)
                        left = result if result.specprefill.check["status"] == CHECK_PENDING else None
                notice("stopped" if interrupted else speeds(result.timings.as_dict()))
