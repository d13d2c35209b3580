"""vkprefill capture: attention rows of a prompt, written to a numpy file."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

import numpy as np

from vkprefill.cli.attention_plot import plot_attention
from vkprefill.cli.common import add_model_options, notice, open_model, prefill_bar
from vkprefill.cli.output_file import OutputFile
from vkprefill.cli.prompt_options import add_prompt_options, encoded_prompt, prompt_text
from vkprefill.engine.capture import AttentionCapture
from vkprefill.errors import RequestError
from vkprefill.evaluation.plot import require_matplotlib
from vkprefill.text.tokenizer import Tokenizer

DESCRIPTION = (
    "Write softmax attention rows of a prompt to an .npz file: pattern_<layer> float32 [heads, queries, keys] for each "
    "layer, query_positions, key_positions, token_ids, tokens (their text); with --delta, delta_pattern_<layer> of the "
    "same shape, signed rows that are exact. A summary goes to stderr."
)


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "capture", help="write attention rows of a prompt to a file", description=DESCRIPTION
    )
    add_prompt_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE.npz", required=True, help="the file to write")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the rows too (needs the extra vkprefill[plots])")
    parser.add_argument(
        "--layers",
        metavar="N,N",
        help="full-attention layers, by index in the model, such as 3,7; none with --delta alone (default: all)",
    )
    parser.add_argument(
        "--delta",
        metavar="N,N",
        nargs="?",
        const="all",
        help="delta-net layers, such as 0,1, whose rows are written too; without a value all of them",
    )
    parser.add_argument(
        "--queries",
        metavar="N,N",
        default="-1",
        help="tokens of the prompt whose rows are written, negative from its end; all: every token "
        "(default: -1, the last; write --queries=-2,-1 where the first of several is negative)",
    )
    add_model_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    text = prompt_text(args)
    layers, delta = _layers(args)
    queries = None if args.queries == "all" else whole_numbers("--queries", args.queries, " or all")
    if args.plot is not None:
        require_matplotlib()
    with ExitStack() as stack:
        output = stack.enter_context(OutputFile(args.output))
        plot = stack.enter_context(OutputFile(args.plot)) if args.plot is not None else None
        model = stack.enter_context(open_model(args))
        capture = AttentionCapture(layers, queries, delta)
        with prefill_bar() as progress:
            model.prefill(encoded_prompt(args, model, text).token_ids, capture=capture, progress=progress)
        arrays = capture_arrays(capture, model.tokenizer)
        output.write(lambda file: np.savez(file, **arrays))
        notice(f"{args.output}: {describe(capture)}")
        if plot is not None:
            plot.write(lambda file: plot_attention(capture, file))
            notice(f"{args.plot}: written")
    return 0


def _layers(args: argparse.Namespace) -> tuple[list[int] | None, list[int] | None]:
    """Of the capture: full-attention layers and delta-net layers, None for all."""
    delta = [] if args.delta is None else None
    if args.delta not in (None, "all"):
        delta = whole_numbers("--delta", args.delta)
    if args.layers == "none":
        if args.delta is None:
            raise RequestError("--layers: found none without --delta, wanted at least one layer")
        return [], delta
    return None if args.layers is None else whole_numbers("--layers", args.layers, " or none"), delta


def whole_numbers(option: str, text: str, alternative: str = "") -> list[int]:
    """ "0,5,-1" -> [0, 5, -1]. Raises RequestError for other text."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RequestError(
            f"{option}: found {text!r}, wanted whole numbers with commas between them{alternative}"
        ) from None


def capture_arrays(capture: AttentionCapture, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """The arrays of the file. `tokens` is for reading: bytes that are no whole character are U+FFFD in it."""
    return {
        **{f"pattern_{layer}": rows for layer, rows in capture.pattern.items()},
        **{f"delta_pattern_{layer}": rows for layer, rows in capture.delta_pattern.items()},
        "query_positions": capture.query_positions,
        "key_positions": capture.key_positions,
        "token_ids": capture.token_ids,
        "tokens": np.array([tokenizer.token_text(token_id) for token_id in capture.token_ids.tolist()]),
    }


def describe(capture: AttentionCapture) -> str:
    """What was captured, as one line."""
    parts = []
    for what, pattern in (("layers", capture.pattern), ("delta-net layers", capture.delta_pattern)):
        if pattern:
            parts.append(f"{what} {', '.join(map(str, pattern))}; {len(next(iter(pattern.values())))} heads")
    every = [*capture.pattern.values(), *capture.delta_pattern.values()]
    _, queries, keys = every[0].shape
    num_bytes = sum(rows.nbytes for rows in every)
    return f"{'; '.join(parts)}, {queries} queries, {keys} keys each; {num_bytes / 2**20:,.2f} MiB of rows"
