"""The page of all settings, made from the code: options, variables, fields of requests, with defaults and ranges."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import fields
from numbers import Integral

from vkprefill.checks import range_in_words
from vkprefill.cli import variables
from vkprefill.cli.commands import SUBCOMMANDS, WITH_VARIABLES, build_parser
from vkprefill.cli.parser import Parser
from vkprefill.cli.serve import ANSWER_TOKENS
from vkprefill.drafting import settings as drafts
from vkprefill.engine.sizes import MAX_CHUNK, MAX_CONTEXT
from vkprefill.generation import sampling
from vkprefill.hub import places
from vkprefill.server.protocol.kinds import Kind, Named, Neutral, Noted
from vkprefill.server.protocol.tables import CHAT, COMPLETION
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.vulkan import switches

# Of the environment, beside those of speculative prefill's settings.
VARIABLES = {
    f"{variables.PREFIX}...": "every option of `serve`, see its table",
    places.FOLDERS: "folders with models, colons between: what `vkprefill models` lists and `-m NAME` finds",
    switches.COMPANION: "0: the device is opened by kp alone, with no feature on",
    switches.BARRIER: "0: one submission for each dependency in place of a barrier",
    "HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_HUB_OFFLINE, LLAMA_CACHE": "see [models by name](models.md)",
    "XDG_CACHE_HOME": "the folder of what is measured once (`~/.cache`)",
}
# Of fields of requests; where neither this nor an option of `serve` of the same name has one, nothing is asked for.
CARD = "the file's, or Qwen3.5's card's"
DEFAULTS = {
    **{name: f"{value:g}" for name, value in vars(sampling.SamplingConfig()).items() if isinstance(value, int | float)},
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "presence_penalty"), CARD),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "n_predict"), f"{ANSWER_TOKENS:,}, or `-n` of `serve`"),
    **dict.fromkeys(("parallel_tool_calls", "cache_prompt", "add_generation_prompt"), "true"),
    **dict.fromkeys(("stream", "logprobs", "echo", "ignore_eos", "return_progress", "specprefill_details"), "false"),
    **{f"speculative.{name}": f"{value}" for name, value in vars(drafts.SpecDecodeConfig()).items()},
    "n": "1",
    "tool_choice": "auto, with tools",
    "reasoning_format": "auto",
    "specprefill": "the server's",
}
DEFAULT = re.compile(r"\s*\(default: (.*?)\)(?=$|[ ;,])", re.S)


def settings_page() -> Iterator[str]:
    """Markdown, line by line."""
    yield "# Settings\n\nMade from the code: what `--help-all` says, and what requests are checked by.\n"
    yield "## Speculative prefill\n"
    yield "Fields of `SpecPrefillConfig`, in requests keys of `specprefill`; as flags `--specprefill-keep-ratio` etc.\n"
    yield "| field | default | range | variable | |\n|---|---|---|---|---|"
    for setting in fields(SpecPrefillConfig):
        kind, variable = setting.metadata["kind"], setting.metadata["variable"]
        cells = (_code(setting.name), _code(kind.text(setting.default)), kind.wanted, _code(variable or ""))
        yield _row(*cells, setting.metadata["help"])
    yield "\n## Variables\n\n| | |\n|---|---|"
    yield from (_row(_code(name), text) for name, text in VARIABLES.items())
    known = build_parser([]).subcommands()
    for command in SUBCOMMANDS:
        yield from _options(command, known[command])
    yield "\n## Requests\n\nOf `/v1/chat/completions` and `/v1/completions`; [what they mean](server.md#requests).\n"
    yield "Options of `serve` of the same name stand before these defaults.\n"
    yield "| field | of | default | wanted | |\n|---|---|---|---|---|"
    both = {name for name, kind in CHAT.fields.items() if COMPLETION.fields.get(name) == kind}
    for table, of in ((CHAT, "chat"), (COMPLETION, "completions")):
        for name, kind in table.fields.items():
            if of == "chat" or name not in both:
                yield from _field(name, "both" if name in both else of, kind)


def ranges() -> dict[str, str]:
    """What numbers after an option may be, by the option; in words."""
    words = {f"--{name}": limits for name, limits in sampling.LIMITS.items()}
    words["--temp"] = words.pop("--temperature")
    words |= {f"--spec-draft-{name}": limits for name, limits in drafts.LIMITS.items()}
    words |= {"--ctx-size": (Integral, 1, MAX_CONTEXT), "--batch-size": (Integral, 1, MAX_CHUNK)}
    words["--spec-draft-window"] = (Integral, 1, MAX_CONTEXT)
    return {flag.replace("_", "-"): range_in_words(*limits) for flag, limits in words.items()}


def _options(command: str, parser: Parser) -> Iterator[str]:
    yield f"\n## vkprefill {command}\n\n{' '.join((parser.description or '').split())}\n"
    yield "| option | default | range | |\n|---|---|---|---|"
    numbers = ranges()
    for action in parser._actions:
        if action.dest.startswith("specprefill_") or action.help == argparse.SUPPRESS:
            continue
        metavar = f" {action.metavar}" if isinstance(action.metavar, str) and action.nargs != 0 else ""
        name = ", ".join(_code(flag + metavar) for flag in action.option_strings) or _code(
            action.metavar or action.dest
        )
        if command in WITH_VARIABLES and (variable := variables.variable_of(action)):
            name += f", {_code(variable)}"
        text = (action.help or "").replace("%%", "%")
        found = DEFAULT.search(text)
        default = found[1] if found else _default(action)
        wanted = next((numbers[flag] for flag in action.option_strings if flag in numbers), "")
        wanted = ", ".join(map(str, action.choices)) if action.choices else wanted
        yield _row(name, default, wanted, DEFAULT.sub("", text, count=1))
    if any(action.dest.startswith("specprefill_") for action in parser._actions):
        yield "\nAnd `--specprefill-...`: [speculative prefill](#speculative-prefill)."


def _default(action: argparse.Action) -> str:
    """What stands in the help text is found there; of other options, what they are without."""
    if action.nargs == 0 or not action.option_strings or action.default in (None, argparse.SUPPRESS, []):
        return ""
    return f"{action.default:g}" if isinstance(action.default, float) else str(action.default)


def _field(name: str, of: str, kind: Kind) -> Iterator[str]:
    """A field; what other servers have and is refused here is left out."""
    if isinstance(kind, Neutral):
        return
    text = ""
    while isinstance(kind, Noted | Named):
        text, kind = (kind.label if isinstance(kind, Noted) else text), kind.kind
    yield _row(_code(name), of, DEFAULTS.get(name, ""), kind.wanted, text)


def _code(text: str) -> str:
    return text and f"`{text}`"


def _row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '&#124;').replace('<', '&lt;') for cell in cells)} |"
