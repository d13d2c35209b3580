"""vkprefill generate: one prompt, one answer on stdout."""

from __future__ import annotations

import argparse
import json
from functools import partial

from vkprefill.cli.answer import AnswerWriter, add_answer_options, answer_form, describe_check, stop_texts
from vkprefill.cli.common import (
    add_draft_options,
    add_model_options,
    max_tokens,
    notice,
    open_pair,
    show_prefill,
    speeds,
    template_kwargs,
)
from vkprefill.cli.drafting_options import add_drafting_options, drafting_config
from vkprefill.cli.profile_options import add_profile_options, check_timed, report_times, timed, trace_file
from vkprefill.cli.prompt_options import add_prompt_options, prompt_text
from vkprefill.cli.sampling_options import add_sampling_options, sampling_config
from vkprefill.cli.specprefill_options import describe_specprefill
from vkprefill.cli.steer_options import add_steer_option
from vkprefill.generation.generate import stream_generate


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "generate", help="answer one prompt", description="Answer one prompt. The answer alone goes to stdout."
    )
    add_prompt_options(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object: text, token_ids, finish_reason, timings, specprefill",
    )
    add_answer_options(parser)
    add_sampling_options(parser)
    add_model_options(parser)
    add_draft_options(parser)
    add_drafting_options(parser)
    add_steer_option(parser)
    add_profile_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    prompt, sampling, limit, variables = (
        prompt_text(args),
        sampling_config(args),
        max_tokens(args),
        template_kwargs(args),
    )
    decode = drafting_config(args)
    stop, answer = tuple(stop_texts(args)), AnswerWriter(shown=not args.json)
    form = answer_form(args)
    check_timed(args)
    with trace_file(args) as trace:
        with open_pair(args, len(prompt.encode())) as (model, draft, spec):
            stream = partial(
                stream_generate,
                model,
                prompt,
                draft=draft,
                spec=answer.for_check(spec),
                max_tokens=limit,
                sampling=sampling,
                decode=decode,
                stop=stop,
                **form,
                whole=True,  # nothing comes after it that a check could be left for
                raw=args.raw,
                system_prompt=args.system_prompt,
                template_kwargs=variables,
            )
            with timed(args, model, draft) as runs:
                answer.write(show_prefill(stream))
        result = answer.result
        if args.json:
            print(json.dumps(result.as_dict(), ensure_ascii=False))
        else:
            print()
        if spec is not None:
            notice(describe_specprefill(result.specprefill, spec, draft))
            if check := describe_check(result, answer.replaced):
                notice(check)
        notice(speeds(result.timings.as_dict()))
        report_times(args, runs, model.device.info, trace)
    return 0
