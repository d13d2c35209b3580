"""How tokens are chosen: the options, and the settings that they say."""

from __future__ import annotations

import argparse

from vkprefill.generation.sampling import SamplingConfig


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "sampling (defaults: the file's general.sampling.* keys, else Qwen3.5's model card)"
    )
    group.add_argument("--temp", type=float, metavar="T", help="temperature; 0 takes the most probable token")
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K most probable tokens; 0 keeps all")
    group.add_argument("--top-p", type=float, metavar="P", help="keep the most probable tokens that make up P")
    group.add_argument("--min-p", type=float, metavar="P", help="keep tokens at least P times as probable as the first")
    group.add_argument(
        "--presence-penalty", type=float, metavar="X", help="taken once from the logits of tokens generated before"
    )
    group.add_argument(
        "--frequency-penalty",
        type=float,
        default=SamplingConfig.frequency_penalty,
        metavar="X",
        help="taken from the logits of tokens generated before, as often as they were (default: 0)",
    )
    group.add_argument(
        "--repeat-penalty",
        type=float,
        default=SamplingConfig.repeat_penalty,
        metavar="X",
        help="positive logits of the last tokens, the prompt's too, are divided by it, others multiplied (default: 1)",
    )
    group.add_argument(
        "--repeat-last-n",
        type=int,
        default=SamplingConfig.repeat_last_n,
        metavar="N",
        help="tokens that it looks back to; 0: none, -1: all (default: 64)",
    )
    group.add_argument("-s", "--seed", type=int, metavar="N", help="seed; -1 or none for a new one each time")


def sampling_config(args: argparse.Namespace) -> SamplingConfig:
    return SamplingConfig(
        temperature=args.temp,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        repeat_penalty=args.repeat_penalty,
        repeat_last_n=args.repeat_last_n,
        seed=None if args.seed == -1 else args.seed,
    )
