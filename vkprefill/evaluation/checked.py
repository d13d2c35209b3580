"""A task's sparse answer that is checked: what the dense model says otherwise is revised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vkprefill.drafting.settings import SpecDecodeConfig
from vkprefill.engine.model import Model
from vkprefill.generation.generate import generate
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.specprefill.plan import tokens_to_ranges
from vkprefill.specprefill.settings import SpecPrefillConfig

GREEDY = SamplingConfig(temperature=0.0, presence_penalty=0.0)


@dataclass(frozen=True)
class CheckedRun:
    """An answer and its check: status "equal" or "revised", milliseconds of the sparse prefill and of the check (the
    dense prefill, and the comparison).
    """

    answer: str
    status: str
    prefill_ms: float
    check_ms: float


def run_checked(
    model: Model, token_ids: Sequence[int], kept: Sequence[int], config: SpecPrefillConfig, max_tokens: int
) -> CheckedRun:
    """The greedy answer to a prompt of which these tokens are run, by the scoring layer's rule where config names one.
    RequestError where there is no room for a dense cache beside the sparse one.
    """
    config = replace(config, check="wait", on_mismatch="revise", tool_guard=False)
    result = generate(
        model,
        list(token_ids),
        spec=config,
        kept_ranges=tokens_to_ranges(kept),
        max_tokens=max_tokens,
        sampling=GREEDY,
        decode=SpecDecodeConfig(type="none"),
    )
    report = result.specprefill
    return CheckedRun(
        model.tokenizer.decode(result.token_ids, special=False),
        report.check["status"],
        report.sparse_prefill_ms,
        report.check["dense_ms"] + report.check["verify_ms"],
    )
