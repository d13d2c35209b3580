"""vkprefill serve: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import logging
from importlib.util import find_spec

from vkprefill import log_lines
from vkprefill.cli.common import (
    add_draft_options,
    add_model_options,
    block_wanted,
    kv_type,
    max_tokens,
    model_path,
    notice,
    scoring,
    template_kwargs,
    why_off,
)
from vkprefill.cli.drafting_options import add_drafting_options, drafting_config
from vkprefill.cli.sampling_options import add_sampling_options, sampling_config
from vkprefill.cli.specprefill_options import all_settings, given_settings, unused_settings, use_of
from vkprefill.cli.steer_options import add_steer_option, steers
from vkprefill.cli.variables import RULE
from vkprefill.errors import RequestError
from vkprefill.gguf.file import open_gguf
from vkprefill.specprefill.settings import AUTO, SpecPrefillConfig

ANSWER_TOKENS = 4096  # an answer that does not end by itself must not hold up all others for long
MIN_TOKENS = 8192  # new to the cache, for speculative prefill: short prompts are answered exactly


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "serve",
        help="serve an OpenAI-compatible API",
        description=f"Serve an OpenAI-compatible API. Several requests are answered in turns, the others wait. {RULE}",
    )
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    group.add_argument(
        "--port", type=int, default=8080, metavar="N", help="port; 0: a free one, printed (default: 8080)"
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="key that requests must carry, as a bearer token or in X-Api-Key; others on this machine can read the "
        "command line, so better by its variable or --api-key-file",
    )
    group.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="file of such keys, one a line, beside --api-key; # begins a comment line; read again when it changes",
    )
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that requests may call the server by; may be repeated (default: on a loopback address its own "
        "names, elsewhere any)",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin use the API, * for all; may be repeated (default: none but its own)",
    )
    group.add_argument(
        "-np",
        "--parallel",
        type=int,
        metavar="N",
        help="conversations that are remembered at most; they share the context (default: as many as memory holds)",
    )
    group.add_argument(
        "--turns",
        type=int,
        default=4,
        metavar="N",
        help="requests that are answered in turns, each as it would be alone; others wait in the queue (default: 4)",
    )
    group.add_argument(
        "-cram",
        "--cache-ram",
        type=int,
        default=8192,
        metavar="MIB",
        help="memory of the host for the states of idle conversations, at most half of what is free; -1: no other "
        "bound (default: 8192)",
    )
    group.add_argument(
        "--max-queue",
        type=int,
        default=64,
        metavar="N",
        help="requests that may wait; more are refused with 503 (default: 64)",
    )
    group.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="seconds a request may take; 0: no limit (default: 600)"
    )
    group.add_argument(
        "--body-timeout",
        type=float,
        default=30,
        metavar="S",
        help="seconds the body of a request may take (default: 30)",
    )
    group.add_argument(
        "--drain-timeout",
        type=float,
        default=30,
        metavar="S",
        help="seconds that answers in work may take after SIGTERM; then they end with an error (default: 30)",
    )
    group.add_argument(
        "--engine-timeout",
        type=float,
        default=600,
        metavar="S",
        help="seconds without a sign of life after which the process that owns the GPU is started again; longer than "
        "any submission, kernel compilation included; 0: never (default: 600)",
    )
    group.add_argument(
        "--log-format",
        choices=log_lines.FORMATS,
        default=log_lines.TEXT,
        help="of stderr: json is an object a line, one for each request too, without any text of it (default: text, "
        "where -v has a line for each request)",
    )
    group.add_argument("-a", "--alias", metavar="NAME", help="name of the model in answers (default: the file's)")
    parser.add_argument(
        "-n",
        "--n-predict",
        type=int,
        metavar="N",
        help="most tokens of an answer, whatever a request asks for; -1: no limit (default: what a request asks for, "
        f"{ANSWER_TOKENS} where it has no limit of its own)",
    )
    parser.add_argument(
        "--chat-template-kwargs",
        metavar="JSON",
        help="variables of the chat template, where a request has none of its own",
    )
    add_sampling_options(parser)
    add_model_options(parser)
    add_draft_options(parser, SpecPrefillConfig(min_tokens=MIN_TOKENS))
    add_drafting_options(parser)
    add_steer_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    leasts = {"port": 0, "parallel": 1, "turns": 1, "cache_ram": -1, "max_queue": 1}
    leasts |= {"timeout": 0, "body_timeout": 0.1, "engine_timeout": 0, "drain_timeout": 0}
    for name, least in leasts.items():
        if getattr(args, name) is not None and not getattr(args, name) >= least:
            raise RequestError(f"--{name.replace('_', '-')}: found {getattr(args, name)}, wanted at least {least}")
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise RequestError(f"serve: {missing[0]} is not installed; run: pip install 'vkprefill[server]'")
    # Only here: the rest of the command line works without the extra.
    from vkprefill.server.engine.jobs import EngineOptions
    from vkprefill.server.http.serve import ServerOptions, serve
    from vkprefill.server.protocol.requests import Defaults

    (spec, draft), decode = scoring(args), drafting_config(args)
    if spec is None and (given := given_settings(args)):
        notice(f"{', '.join(given)}: for requests alone that ask by kept_ranges or scorer self; {why_off(args)}")
    if spec is not None:
        for line in unused_settings(args, spec, [use_of(draft)]):
            notice(f"{line}; for requests alone that ask otherwise")
    if draft is not None:
        open_gguf(draft)  # a mistake in its name is told before anything is loaded
    engine = EngineOptions(
        model_path(args),
        draft,
        spec,
        args.device,
        args.ctx_size,
        kv_type(args),
        args.batch_size,
        args.precision,
        args.parallel,
        args.cache_ram,
        **block_wanted(args),
        steer=steers(args),
        decode=decode,
        log_level=logging.INFO if args.verbose else logging.WARNING,
        log_format=args.log_format,
        turns=args.turns,
    )
    defaults = Defaults(
        sampling_config(args),
        spec,
        all_settings(args).having({"scorer": AUTO}),
        max_tokens=None if args.n_predict is None else max_tokens(args),
        answer_tokens=ANSWER_TOKENS if args.n_predict is None else None,
        template_kwargs=template_kwargs(args),
        decode=decode,
    )
    options = ServerOptions(
        engine,
        defaults,
        host=args.host,
        port=args.port,
        api_key=args.api_key,
        api_key_file=args.api_key_file,
        allowed_hosts=args.allowed_host,
        cors_origins=args.cors_origin,
        alias=args.alias,
        max_waiting=args.max_queue,
        timeout_s=args.timeout,
        engine_timeout_s=args.engine_timeout,
        body_timeout_s=args.body_timeout,
        drain_timeout_s=args.drain_timeout,
    )
    return serve(options, notice)
