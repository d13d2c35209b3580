"""The built-in pair from its files to a known answer: densely and by speculative prefill, in each precision."""

from __future__ import annotations

from importlib.resources import files

from vkprefill.engine.model import load
from vkprefill.errors import VkPrefillError
from vkprefill.generation.generate import generate
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.selftest.trial import Check, Trial
from vkprefill.specprefill.settings import SpecPrefillConfig

NAME = "built-in pair"
BEFORE = "The bridge of the library was early, quiet and rather new. Last week a train left for Vienna. "
BETWEEN = "We walked quietly from the harbour to the market. There were 67 chairs in the narrow school. "
FACTS = (
    "Fiona keeps a pet donkey. Niels works in room number 194. ",
    "The pet of Philip is a dog. The access code of Vera is 3517. Paula keeps a pet ferret. ",
)
TEXT = f"{BEFORE}{FACTS[0]}{BEFORE}{BETWEEN}{FACTS[1]}{BETWEEN}{BEFORE}"
PROMPT = [{"role": "user", "content": f"{TEXT}\nIn which room does Niels work?"}]
ANSWER = "194"  # of the questions tried the one that a mistake in one kernel, or the draft alone, answers wrong
CONTEXT = 512  # tokens
# Of so short a message, which would be protected whole, tokens are dropped all the same.
SETTINGS = SpecPrefillConfig(select_mode="chunk", keep_ratio=0.5, protect_question=False, break_even=False)


class WrongAnswer(VkPrefillError):
    """What was answered, how, and what was wanted."""


def built_in_check() -> Check:
    return Check(NAME, _ask)


def _ask(trial: Trial) -> None:
    """Raises WrongAnswer."""
    folder = files("vkprefill") / "data"
    for precision in ("full", "half"):
        with (
            load(str(folder / "target.gguf"), trial.device, CONTEXT, precision=precision, mtp=None) as target,
            load(str(folder / "draft.gguf"), trial.device, CONTEXT, precision=precision, mtp=None) as draft,
        ):
            for way, options, status in (
                ("densely", {}, "disabled"),
                ("by speculative prefill", {"draft": draft, "spec": SETTINGS}, "active"),
            ):
                result = generate(target, PROMPT, sampling=SamplingConfig(temperature=0.0), max_tokens=8, **options)
                if (result.text, result.specprefill.status) != (ANSWER, status):
                    raise WrongAnswer(
                        f"{way}, precision {precision}: answered {result.text!r} (speculative prefill "
                        f"{result.specprefill.status}), wanted {ANSWER!r} ({status})"
                    )
