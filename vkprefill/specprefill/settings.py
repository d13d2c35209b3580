"""SpecPrefillConfig: the settings of speculative prefill, each with its default, range, variable and help in one place.

Speculative prefill: Liu, Chen, Zhang, "Speculative Prefill", arXiv 2502.02789. A draft model scores the prompt's
tokens, the target model prefills only those that matter. The command line's flags are made from the fields here.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.specprefill.setting_types import (
    Choice,
    Kind,
    Number,
    OrNone,
    OrWord,
    Ranges,
    Switch,
    Whole,
    WholeSet,
    check,
    read,
)

log = logging.getLogger("vkprefill")

MAX_TOKENS = 2**31 - 1  # positions are int32
MAX_LAYER = 1023
TOKENS = Whole(0, MAX_TOKENS)
SPEED = Number(0, 1e9)
FACTOR = Number(0, 1000)
SHARE = Number(0, 1, " (a share: 0.3 is 30 %)")

AUTO, DRAFT, SELF = "auto", "draft", "self"  # who scores
ROPE, NOPE = "rope", "nope"  # rows that score: with positions in them, or without
AUTO_SCORE_DEPTH = 1 / 3  # of the draft: the earliest depth that lost no answer where it was measured, docs/choosing.md
AUTO_MAX_KEEP = 2000  # in mode "mass", whose share is not known before; a share that was asked for has no limit

# Window "auto", the fork's rule: this much memory for attention weights, 32 bytes for each query and position.
AUTO_WINDOW_BYTES = 500 * 2**20
AUTO_WINDOW_BYTES_PER_WEIGHT = 32
LEAST_WINDOW = 32  # tokens: below, a prompt would cost more runs of the draft than it has pieces worth comparing

PRESETS: dict[str, dict[str, object]] = {
    "fork": {  # the llama.cpp fork that this pipeline follows; all else are the defaults
        "lookahead": 2,
        "pool_size": 1,
        "score_depth": 1.0,
        "max_keep": AUTO_MAX_KEEP,
        "protect_question": False,
        "chunk_align": "tokens",
        "window": "auto",
        "draft_context": 8192,
        "draft_tokens_per_s": 600.0,
        "target_tokens_per_s": 270.0,
        "tool_match": "substrings",
    },
}


def _setting(
    default: object,
    kind: Kind,
    help: str,
    variable: str | None = None,
    *,
    guard: bool = False,
    bare: str | None = None,
) -> Field:
    """guard: it says whether tokens are chosen, not which; bare: the text that its flag alone stands for."""
    metadata = {"kind": kind, "help": help, "variable": variable, "guard": guard, "bare": bare}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SpecPrefillConfig:
    """How the draft scores the prompt and which tokens the target then prefills.

    Lists become tuples and whole numbers floats where a setting has those: equal settings are equal and hash alike.
    `given` has the names of the settings that were asked for, which is not part of what makes settings equal: a report
    says which of them had no part.

    Raises:
        RequestError: a value of the wrong type or out of its range; the message names all three.

    Attributes:
    """

    # selection
    chunk_size: int = _setting(32, Whole(1, MAX_TOKENS), "tokens of a chunk, kept or dropped as a whole", "SP_CHUNK")
    chunk_align: str = _setting(
        "lines",
        Choice(("tokens", "lines")),
        "lines: borders of chunks stand at line ends, at sentences in lines longer than a chunk, never in a character; "
        "tokens: every chunk_size tokens, as in the fork",
    )
    select_mode: str = _setting(
        "mass", Choice(("mass", "chunk")), "keep chunks up to cumulative_mass, or keep_ratio of them", "SP_SELECT_MODE"
    )
    cumulative_mass: float = _setting(
        0.85, SHARE, "mode mass: share of the whole importance that is kept", "SP_CUMULATIVE_MASS"
    )
    keep_ratio: float = _setting(
        0.3,
        SHARE,
        "mode chunk: share that is kept, protected tokens included; at least a tenth is, but 4 to 128 tokens; 1 keeps "
        "every token in both modes",
        "SP_KEEP_PCT",
    )
    max_keep: int | str = _setting(
        "auto",
        OrWord("auto", TOKENS),
        f"keep at most this many tokens, unless more are kept in any case; 0: no limit; auto: {AUTO_MAX_KEEP} in mode "
        "mass, no limit in mode chunk",
        "SP_MAX_KEEP",
    )
    protect_question: bool = _setting(
        True, Switch(), "keep where the last user message asks: its first and last line, its questions, all if short"
    )
    tail: int = _setting(0, TOKENS, "last tokens of the prompt that are kept in any case")
    protect: tuple[tuple[int, int], ...] = _setting(
        (), Ranges(MAX_TOKENS), "ranges of tokens that are kept in any case, ends not included"
    )

    # importance
    scorer: str = _setting(
        "auto",
        Choice((AUTO, DRAFT, SELF)),
        "who scores: the draft model, or the model itself in its early layers, which read all; auto: the draft where "
        "there is one",
        "SP_SCORER",
    )
    score_layer: int | None = _setting(
        None,
        OrNone("auto", Whole(0, MAX_LAYER)),
        "scorer self: the full-attention layer that scores, by index; later ones run what is kept; auto: the one "
        "nearest to a third of the layers",
    )
    rows: str = _setting(
        ROPE,
        Choice((ROPE, NOPE)),
        "rope: rows that score are those of attention; nope: those that it would have without positions, of queries "
        "and keys before their rotary",
    )
    lookahead: int = _setting(
        8, Whole(0, 256), "tokens that the draft decodes; their attention counts too", "SP_LOOKAHEAD"
    )
    pool_size: int = _setting(13, Whole(1, 1023, odd=True), "width in tokens of the mean over neighbours; 1: none")
    score_layers: str | tuple[int, ...] = _setting(
        "all", OrWord("all", WholeSet(0, MAX_LAYER)), "the draft's attention layers that count, by index in the model"
    )
    score_depth: float | str = _setting(
        "auto",
        OrWord("auto", SHARE),
        "the draft stops at its first attention layer at or after this share of its layers, which scores alone; 1: it "
        "does not; auto: a third, the earliest that lost no answer where it was measured, unless score_layers names "
        "layers",
    )
    tail_queries: int = _setting(
        0,
        Whole(0, 4096),
        "score with the queries of this many last prompt tokens in place of lookahead; 0: lookahead, or, with an "
        "early stop or scorer self, 32, or all of a question at the end up to 64",
    )
    window: int | str = _setting(
        0,
        OrWord("auto", TOKENS),
        "tokens of the prompt that the draft reads at once; 0: all; auto: by draft_context",
        "SP_WINDOW",
    )
    draft_context: int = _setting(
        0, TOKENS, "context of the draft in tokens; 0: as long as the prompt needs", "SP_SPEC_CTX"
    )
    normalize: str = _setting(
        "minmax", Choice(("minmax", "percentile", "zscore")), "how importance is scaled before chunks are compared"
    )
    boost_first_mult: float = _setting(
        1.5, FACTOR, "factor on the importance of the first tokens", "SP_BOOST_FIRST_MULT"
    )
    boost_first_n: int = _setting(64, TOKENS, "how many first tokens get boost_first_mult", "SP_BOOST_FIRST_N")
    boost_last_mult: float = _setting(1.3, FACTOR, "factor on the importance of the last tokens", "SP_BOOST_LAST_MULT")
    boost_last_n: int = _setting(128, TOKENS, "how many last tokens get boost_last_mult", "SP_BOOST_LAST_N")

    # guards
    min_tokens: int = _setting(0, TOKENS, "prefill densely when fewer tokens are new to the cache", guard=True)
    tool_guard: bool = _setting(
        True,
        Switch(),
        'prefill densely when the prompt defines tools: by a field, a role, or "function", "tool", "tools", '
        "<tool_call>, get_, set_, search_ in its first 256 tokens",
        guard=True,
    )
    tool_match: str = _setting(
        "words",
        Choice(("words", "substrings")),
        "words: tool words count where they begin a word (get_time, not target_time); substrings: anywhere",
        guard=True,
    )
    break_even: bool = _setting(
        True, Switch(), "prefill densely when scoring would cost more than it saves", "SP_BREAK_EVEN", guard=True
    )
    break_even_safety: float = _setting(
        1.2, FACTOR, "the saving must be above this many times the scoring time", "SP_BREAK_EVEN_SAFETY", guard=True
    )
    draft_tokens_per_s: float = _setting(
        0.0,
        SPEED,
        "prefill speed of the draft for the break-even guard; 0: measured",
        "SP_SPEC_THROUGHPUT",
        guard=True,
    )
    target_tokens_per_s: float = _setting(
        0.0, SPEED, "prefill speed of the target for the break-even guard; 0: measured", guard=True
    )
    on_error: str = _setting(
        "dense", Choice(("dense", "error")), "when scoring fails: prefill densely, or fail", guard=True
    )

    # whether the answer is compared with the dense one
    check: str = _setting(
        "off",
        Choice(("off", "on", "wait")),
        "check sparse answers against the dense model's, meanwhile; wait: an answer ends only when it is checked",
        guard=True,
        bare="on",
    )
    on_mismatch: str = _setting(
        "auto",
        Choice(("auto", "revise", "report", "stop")),
        "where a checked answer differs: revise it, report where, or stop; auto: revise what can be replaced",
        guard=True,
    )
    check_share: float = _setting(0.5, SHARE, "share of the time between decode steps that a check takes", guard=True)
    check_idle: bool = _setting(
        True, Switch(), "a check that the answer ended before goes on while nobody asks", guard=True
    )

    def __new__(cls, *values: object, **settings: object) -> "SpecPrefillConfig":
        made = super().__new__(cls)
        names = [setting.name for setting in fields(cls)][: len(values)]
        object.__setattr__(made, "given", frozenset(settings).union(names))
        return made

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = check(setting.name, setting.metadata["kind"], getattr(self, setting.name))
            object.__setattr__(self, setting.name, value)
        if self.score_layers != "all" and self.score_depth not in ("auto", 1):
            raise RequestError(
                f"score_depth: found {self.score_depth:g} with score_layers {','.join(map(str, self.score_layers))}, "
                "wanted one of the two"
            )
        least = max(LEAST_WINDOW, self.chunk_size)
        if self.window not in (0, "auto") and self.window < least:
            raise RequestError(
                f"window: found {self.window} with chunk_size {self.chunk_size}, wanted 0, auto, or at least {least} "
                f"tokens: {LEAST_WINDOW}, and a chunk"
            )

    @classmethod
    def preset(cls, name: str) -> "SpecPrefillConfig":
        """The settings of a preset: "fork". RequestError for another name."""
        if name not in PRESETS:
            raise RequestError(f"preset: found {printable(name)}, wanted {' or '.join(PRESETS)}")
        return cls().having(PRESETS[name])

    @classmethod
    def from_environment(
        cls, env: Mapping[str, str] = os.environ, base: "SpecPrefillConfig | None" = None, **overrides: object
    ) -> "SpecPrefillConfig":
        """Overrides before the SP_* variables before `base` (the defaults).

        SP_KEEP_PCT is a share, as keep_ratio: 0.3 keeps 30 %. A variable that an override beats is checked too.

        Raises:
            RequestError: a variable whose text is no value of its setting (an empty text is none), or a bad override.
        """
        for variable in unknown_variables(env):
            _tell_of_unknown(variable)
        found = {
            setting.name: read(variable, setting.metadata["kind"], env[variable])
            for setting in fields(cls)
            if (variable := setting.metadata["variable"]) is not None and variable in env
        }
        return (base or cls()).having({**found, **overrides}, given={*found, *overrides})

    @classmethod
    def from_dict(cls, settings: object, base: "SpecPrefillConfig | None" = None) -> "SpecPrefillConfig":
        """The settings of a JSON object, such as a request's; those it lacks come from `base` (the defaults), but for
        one that does not go with those of the object, which gives way.

        Raises:
            RequestError: not a mapping, an unknown name, a bad value.
        """
        if not isinstance(settings, Mapping):
            raise RequestError(f"specprefill: found {printable(settings)}, wanted an object of settings")
        names = [setting.name for setting in fields(cls)]
        for name in settings:
            if name not in names:
                raise RequestError(f"specprefill: found setting {printable(name)}, wanted some of {', '.join(names)}")
        base = base or cls()
        return base.having({**base._giving_way(settings), **settings}, given=settings)

    def _giving_way(self, settings: Mapping[str, object]) -> dict[str, object]:
        """What becomes of settings of ours that cannot stand beside these."""
        changes: dict[str, object] = {}
        if settings.get("score_depth", "auto") not in ("auto", 1):
            changes["score_layers"] = "all"
        if settings.get("score_layers", "all") != "all" and self.score_depth not in ("auto", 1):
            changes["score_depth"] = "auto"
        if "chunk_size" in settings and self.window not in (0, "auto"):
            changes["window"] = max(self.window, check("chunk_size", Whole(1, MAX_TOKENS), settings["chunk_size"]))
        return changes

    def having(self, settings: Mapping[str, object], given: Iterable[str] | None = None) -> "SpecPrefillConfig":
        """With other values of these settings. given: the names of those that were asked for (None: as before)."""
        made = replace(self, **settings)
        object.__setattr__(made, "given", self.given if given is None else frozenset(given))
        return made

    def as_dict(self) -> dict[str, object]:
        """Every setting by name, as JSON has it: lists for tuples. `from_dict` reads it back."""
        return {setting.name: _plain(getattr(self, setting.name)) for setting in fields(self)}

    @property
    def most_kept(self) -> int:
        """max_keep in tokens, 0 for no limit."""
        if self.max_keep != "auto":
            return self.max_keep
        return AUTO_MAX_KEEP if self.select_mode == "mass" else 0

    @property
    def choice(self) -> "SpecPrefillConfig":
        """With the guards as they are by default: equal for settings that choose the same tokens of a prompt."""
        return replace(self, **{setting.name: setting.default for setting in fields(self) if setting.metadata["guard"]})

    def window_size(self, context: int) -> int:
        """Tokens of one window; 0 for the whole prompt.

        "auto" is the fork's rule, 500 MiB / (draft_context x 32): 2000 at a context of 8192; at least LEAST_WINDOW and
        a chunk. Where draft_context is 0, `context` stands for it: tokens that the draft's cache holds, at least 1.
        """
        if self.window != "auto":
            return self.window
        size = AUTO_WINDOW_BYTES // ((self.draft_context or context) * AUTO_WINDOW_BYTES_PER_WEIGHT)
        return max(size, LEAST_WINDOW, self.chunk_size)


VARIABLES = {setting.metadata["variable"]: setting.name for setting in fields(SpecPrefillConfig)}
del VARIABLES[None]


def variable_of(name: str) -> str | None:
    """The environment variable of a setting."""
    return next((variable for variable, setting in VARIABLES.items() if setting == name), None)


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """Names like those of variables, of which none is one."""
    return sorted(name for name in env if name.startswith("SP_") and name not in VARIABLES)


@cache
def _tell_of_unknown(name: str) -> None:
    near = get_close_matches(name, VARIABLES, n=1, cutoff=0)
    log.warning("%s: not used, no variable has this name; the nearest is %s", printable(name), near[0])


def _plain(value: object) -> object:
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _describe(setting: Field) -> str:
    kind, variable = setting.metadata["kind"], setting.metadata["variable"]
    source = f"; {variable}" if variable else ""
    head = f"    {setting.name} ({kind.wanted}; default {kind.text(setting.default)}{source}):"
    return f"{head}\n            {setting.metadata['help']}"


if SpecPrefillConfig.__doc__:  # python -OO has none
    SpecPrefillConfig.__doc__ = "\n    ".join(
        [SpecPrefillConfig.__doc__.rstrip(), *(_describe(setting) for setting in fields(SpecPrefillConfig)), ""]
    )
