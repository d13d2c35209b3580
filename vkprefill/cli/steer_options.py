"""--steer: control vectors that a model runs with."""

from __future__ import annotations

import argparse

from vkprefill.engine.microscope.steering import Steer
from vkprefill.errors import RequestError


def add_steer_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steer",
        action="append",
        metavar="FILE:STRENGTH[:LAYERS]",
        help="add the directions of a control-vector GGUF file, times STRENGTH, to the residual stream after each "
        "layer that it has, or after LAYERS alone (12, or 10-20); may be repeated",
    )


def steers(args: argparse.Namespace) -> tuple[Steer, ...]:
    """Those of the command line. Raises RequestError."""
    try:
        return tuple(Steer.parse(text) for text in getattr(args, "steer", None) or ())
    except RequestError as error:
        raise RequestError(f"--{error}") from None
