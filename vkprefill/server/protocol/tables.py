"""The fields of each endpoint's requests, with what they may hold. Requests are checked by these tables, and the
description of the API is made from them.

A field that would change the answer is done, or stands in NEUTRAL: then any value that asks for something is refused.
All others (user, metadata, store, a cache key, ...) are ignored, as clients send many.
"""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral

from vkprefill.drafting.settings import SPELLINGS
from vkprefill.generation.prompt import SWITCH
from vkprefill.generation.sampling import LIMITS
from vkprefill.grammar.grammars import MAX_CHARACTERS
from vkprefill.server.protocol.kinds import (
    Boolean,
    Choice,
    Either,
    Items,
    Kind,
    Named,
    Neutral,
    Noted,
    Number,
    Record,
    Text,
    Untouched,
    Whole,
    Wrong,
)
from vkprefill.specprefill import setting_types
from vkprefill.specprefill.settings import SpecPrefillConfig

MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_LOGPROBS = 20
MAX_PROMPTS = 64
MAX_ANSWERS = 16
MAX_TOKENS = 2**31 - 1
ROLES = ("system", "developer", "user", "assistant", "tool")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

NOTHING: tuple[object, ...] = ()
OFF, ON, ZERO, ONE, EMPTY = (False,), (True,), (0,), (1,), ("", [], {})
OF_FORM = "; use response_format or grammar"

# Fields of other servers that would change the answer and are not done here: the values that ask for nothing.
NEUTRAL: dict[str, tuple[object, ...]] = {
    # how many answers, and what comes with them
    "best_of": ONE,
    "use_beam_search": OFF,
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": ({},),
    "verbosity": ("medium",),
    "web_search_options": NOTHING,
    "prompt_logprobs": (0, False),
    "post_sampling_probs": OFF,
    "return_tokens": OFF,
    "return_token_ids": OFF,
    "return_tokens_as_token_ids": OFF,
    # which tokens are likely
    "dry_multiplier": ZERO,
    "xtc_probability": ZERO,
    "typical_p": ONE,
    "tfs_z": ONE,
    "top_a": ZERO,
    "top_n_sigma": (-1, 0),
    "dynatemp_range": ZERO,
    "mirostat": ZERO,
    "mirostat_mode": ZERO,
    "smoothing_factor": ZERO,
    "min_keep": (0, 1),
    "samplers": NOTHING,
    "logits_processors": ([],),
    "allowed_token_ids": NOTHING,
    "bad_words": ([],),
    "lora": ([],),
    # what the model computes: never by a file that a request names
    "steer": ("", []),
    "control_vectors": ([],),
    "edits": ([],),
    # where the answer ends
    "include_stop_str_in_output": OFF,
    "skip_special_tokens": ON,
    "t_max_predict_ms": (0, -1),
    "n_indent": ZERO,
    "truncate_prompt_tokens": (-1,),
    # its form
    "guided_json": NOTHING,
    "guided_regex": EMPTY,
    "guided_choice": EMPTY,
    "guided_grammar": EMPTY,
    "structured_outputs": EMPTY,
    "structural_tag": EMPTY,
    "regex": EMPTY,
    "ebnf": EMPTY,
}
NEUTRAL_IN_CHAT: dict[str, tuple[object, ...]] = {
    "echo": OFF,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parse_tool_calls": ON,
    "chat_template": NOTHING,
    "documents": ([],),
    "add_special_tokens": OFF,
    "include_reasoning": ON,
    "separate_reasoning": ON,
    "reasoning": ({},),
    "think": NOTHING,
    "thinking": NOTHING,
}
STEERED = "; a server is steered by the files of its --steer"
HINTS = {
    "steer": STEERED,
    "control_vectors": STEERED,
    "functions": "; use tools",
    "reasoning": "; use reasoning_effort",
    "think": "; use enable_thinking",
    "thinking": "; use enable_thinking",
    "documents": "; use chat_template_kwargs",
    **{name: OF_FORM for name, values in NEUTRAL.items() if values == EMPTY},
    "guided_json": OF_FORM,
}


def _neutral(table: dict[str, tuple[object, ...]]) -> dict[str, Kind]:
    return {name: Neutral(values, HINTS.get(name, "")) for name, values in table.items()}


def _sampling() -> dict[str, Kind]:
    """As SamplingConfig has it, and -1 as llama.cpp and vLLM use it."""
    kinds = {name: (Whole if kind is Integral else Number)(least, most) for name, (kind, least, most) in LIMITS.items()}
    kinds["top_k"] = Noted("-1 and 0: all tokens", Whole(-1, kinds["top_k"].most))
    kinds["repetition_penalty"] = Noted("repeat_penalty over all tokens of prompt and answer", kinds["repeat_penalty"])
    kinds["seed"] = Noted("-1: a new one each time", Whole(-1, kinds["seed"].most))
    return kinds


def _setting(kind: setting_types.Kind) -> Kind:
    """A setting of speculative prefill."""
    match kind:
        case setting_types.Whole(least, greatest):
            return Noted(kind.wanted, Whole(least, greatest))
        case setting_types.Number(least, greatest):
            return Noted(kind.wanted, Number(least, greatest))
        case setting_types.Choice(words):
            return Choice(words)
        case setting_types.Switch():
            return Boolean()
        case setting_types.OrWord(word, other):  # OrNone too: null is a field that is left out
            return Either((Choice((word,)), _setting(other)))
        case setting_types.WholeSet(least, greatest):
            return Items(Whole(least, greatest), least=1)
        case setting_types.Ranges(greatest):
            return Items(Items(Whole(0, greatest), 2, 2))
    return Noted(kind.wanted, Kind())


BIAS_OF_ONE = Either((Number(-100, 100), Choice(OFF)), "a number from -100 to 100 or false")
BIAS = Either((Record(), Items(Items(Kind(), 2, 2))), "an object of numbers by token id, or a list of pairs of these")
BUDGETS = ("thinking_budget", "thinking_budget_tokens", "thinking_token_budget", "reasoning_budget")
LIMIT = Noted(
    "-1: until the end of the answer or of the context; 0: no token", Either((Choice((-1,)), Whole(0, MAX_TOKENS)))
)
STOP = Text(0, MAX_STOP_CHARS)
KEEP = Noted("a share up to 1, or a percentage above it", Number(0, 100, above=True))
RANGES = Items(Items(Whole(0, MAX_TOKENS), 2, 2))
SPECPREFILL = Named(
    "SpecPrefill",
    Either(
        (
            Boolean(),
            Record(
                {
                    **{setting.name: _setting(setting.metadata["kind"]) for setting in fields(SpecPrefillConfig)},
                    "kept_ranges": RANGES,
                }
            ),
        ),
        "true, false or an object of settings",
    ),
)
SCHEMA = Noted("a JSON schema that the answer is to follow", Either((Record(), Choice(ON))))
RESPONSE_FORMAT = Named(
    "ResponseFormat",
    Record(
        {
            "type": Choice(("text", "json_object", "json_schema")),
            "json_schema": Record({"name": Text(), "description": Text(), "schema": SCHEMA, "strict": Boolean()}),
            "schema": Noted("the same, as llama-server has it", SCHEMA),
        },
        ("type",),
    ),
)
DRAFTS: dict[str, Kind] = {
    "type": Choice(SPELLINGS),
    "n_max": Noted("0: none", Whole(0)),
    "n_min": Whole(0),
    "p_min": Number(0, 1),
    "types": Noted("the same as type, as /props names it", Choice(SPELLINGS)),
}
OF_DRAFTS = "speculative."  # how llama-server's names of them begin
COMMON: dict[str, Kind] = {
    "model": Text(),
    "n": Noted("answers to each prompt, one after another", Whole(1, MAX_ANSWERS)),
    **_sampling(),
    "max_tokens": LIMIT,
    "max_completion_tokens": LIMIT,
    "n_predict": LIMIT,
    "stop": Either((STOP, Items(STOP, 0, MAX_STOPS)), f"text or up to {MAX_STOPS} texts of {STOP.most} characters"),
    "logit_bias": Noted("by token id: what is added to its logit; false: never drawn", BIAS),
    "ignore_eos": Noted("true: none of the tokens that end an answer is drawn", Boolean()),
    "min_tokens": Whole(0, MAX_TOKENS),
    "stop_token_ids": Items(Whole(0, MAX_TOKENS), 0, MAX_STOPS),
    **{name: Noted("tokens of the reasoning at most; -1: any number", Whole(-1, MAX_TOKENS)) for name in BUDGETS},
    "stream": Boolean(),
    "stream_options": Record({"include_usage": Boolean()}),
    "n_probs": Whole(0, MAX_LOGPROBS),
    "return_progress": Boolean(),
    "cache_prompt": Boolean(),
    "speculative": Record(DRAFTS, closed=""),
    **{OF_DRAFTS + name: kind for name, kind in DRAFTS.items()},
    "response_format": RESPONSE_FORMAT,
    "json_schema": SCHEMA,
    "grammar": Noted("in GBNF, its first rule named root; empty: none", Text(0, MAX_CHARACTERS)),
    "specprefill": SPECPREFILL,
    "specprefill_details": Boolean(),
    "layer_map": Noted("true: what the prompt's last token reads in every layer comes with the answer", Boolean()),
    "specprefill_keep_pct": KEEP,
    "speculative_prefill_keep_pct": KEEP,
    **_neutral(NEUTRAL),
}

PARTS = Items(
    Record({"type": Choice(("text",), ": only parts of type text are understood"), "text": Text()}, ("type", "text"))
)
FUNCTION_CALL = Record({"name": Text(), "arguments": Either((Text(), Record()))}, ("name",))


class MessageRecord(Record):
    """Only an assistant's message may lack its content."""

    def read(self, value: object) -> dict[str, object]:
        done = super().read(value)
        if "content" not in value and done["role"] != "assistant":
            raise Wrong(f"missing, wanted {self.fields['content'].wanted}", ".content")
        return done


MESSAGE = Named(
    "Message",
    MessageRecord(
        {
            "role": Choice(ROLES),
            "content": Either((Text(), PARTS), "text or a list of text parts"),
            "reasoning_content": Text(),
            "name": Text(),
            "tool_call_id": Text(),
            "function_call": Neutral((), "; use tool_calls"),
            "tool_calls": Items(
                Record({"id": Text(), "type": Choice(("function",)), "function": FUNCTION_CALL}, ("function",))
            ),
        },
        ("role",),
        {"if": {"properties": {"role": {"const": "assistant"}}}, "else": {"required": ["content"]}},
    ),
)
TOOL = Named(
    "Tool",
    Record(
        {
            "type": Choice(("function",)),
            "function": Record(
                {
                    "name": Text(1),
                    "description": Text(),
                    "parameters": Record(),
                    "strict": Noted("true: arguments are those that the parameters describe", Boolean()),
                },
                ("name",),
            ),
        },
        ("function",),
    ),
)
NAMED_TOOL = Record(
    {"type": Choice(("function",)), "function": Record({"name": Text(1)}, ("name",))}, ("type", "function")
)
THINKING = Choice((True, False, 0, 1, *SWITCH))
TEMPLATE: dict[str, Kind] = {
    "messages": Items(MESSAGE, least=1),
    "tools": Items(Untouched("as the chat template is to see it", TOOL)),
    "tool_choice": Either((Choice(("auto", "none", "required")), NAMED_TOOL), "auto, none, required or a function"),
    "parallel_tool_calls": Noted("false: at most one call", Boolean()),
    "chat_template_kwargs": Record({"enable_thinking": THINKING}),
    "enable_thinking": THINKING,
    "reasoning_effort": Noted("none: without thinking; all others: with it", Choice(EFFORTS)),
    "add_generation_prompt": Boolean(),
    "continue_final_message": Noted("true: go on in the last message, the assistant's; the default for one", Boolean()),
}
TOKEN_ID = Whole(0)
PROMPT = Items(TOKEN_ID, least=1)

CHAT = Record(
    {
        **TEMPLATE,
        "reasoning_format": Noted("none: reasoning stays in the content", Choice(("auto", "deepseek", "none"))),
        "logprobs": Boolean(),
        "top_logprobs": Noted("above 0 only with logprobs", Whole(0, MAX_LOGPROBS)),
        **COMMON,
        **_neutral(NEUTRAL_IN_CHAT),
    },
    ("messages",),
    closed=OF_DRAFTS,
)
# Of these, what protocols that are mapped to chat take too, under the same names: all that they have no word of their
# own for and that their answers can hold.
OWN_WORDS = ("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n_predict", "response_format")
BESIDE: dict[str, Kind] = {
    **{name: kind for name, kind in COMMON.items() if name not in OWN_WORDS},
    **{name: TEMPLATE[name] for name in ("chat_template_kwargs", "enable_thinking")},
    **_neutral(NEUTRAL_IN_CHAT),
    **_neutral({"n": ONE, "n_probs": ZERO, "logprobs": OFF, "return_progress": OFF, "layer_map": OFF}),
}
COMPLETION = Record(
    {
        "prompt": Either(
            (Text(), PROMPT, Items(Text(), 1, MAX_PROMPTS), Items(PROMPT, 1, MAX_PROMPTS)),
            f"text, a list of token ids, or a list of 1 to {MAX_PROMPTS} such prompts",
        ),
        "echo": Noted(
            "true: the prompt comes before the answer, with its log-probabilities if these are wanted", Boolean()
        ),
        "logprobs": Either((Whole(0, MAX_LOGPROBS), Choice(OFF))),
        **COMMON,
        **_neutral({"add_special_tokens": ON}),
    },
    ("prompt",),
    closed=OF_DRAFTS,
)
SAME_AS_CONTENT = Noted("the same as content, as vLLM names it", Text())
TOKENIZE = Record(
    {
        "content": Text(),
        "prompt": SAME_AS_CONTENT,
        "add_special": Boolean(),
        "add_special_tokens": Noted("the same as add_special, as vLLM names it", Boolean()),
        "parse_special": Boolean(),
        "with_pieces": Boolean(),
    },
    more={"oneOf": [{"properties": {name: {"type": "string"}}, "required": [name]} for name in ("content", "prompt")]},
)
DETOKENIZE = Record({"tokens": Items(TOKEN_ID)}, ("tokens",))
APPLY_TEMPLATE = Record(TEMPLATE, ("messages",))
