"""What the tests of speculative prefill share: prompts, settings, and the judge of a report."""

import json
from pathlib import Path

import numpy as np

from tests.reference.fixtures import rms
from tests.reference.forward import ReferenceModel
from tests.reference.split import forward_split
from vkprefill import SamplingConfig, SpecPrefillConfig
from vkprefill.specprefill import guards
from vkprefill.specprefill.plan import SpecPrefillReport

GREEDY = SamplingConfig(temperature=0.0)
PROMPTS = [json.loads(line) for line in (Path(__file__).parent.parent / "data" / "demo_prompts.jsonl").open()]
SPARSE = SpecPrefillConfig(break_even=False, lookahead=2, select_mode="chunk", keep_ratio=0.3)
FIELDS = [
    "status",
    "reason",
    "prompt_n",
    "cached_n",
    "cached_ranges",
    "kept_n",
    "kept_ranges",
    "settings",
    "unused",
    "score_ms",
    "lookahead_ms",
] + ["select_ms", "sparse_prefill_ms", "ttft_ms", "dense_estimate_ms", "check"]


def assert_split_logits(result, model, token_ids) -> None:
    """Of a prompt that layer 1 of its own model scored, against the two parts on numpy."""
    reference = ReferenceModel(model.path)
    out = forward_split(reference, token_ids, range(len(token_ids)), result.kept, 1, reference.new_state())
    want = out["result_output"][-1]
    assert np.abs(result.logits - want).max() <= 1e-4 * rms(want)


def dense(model, token_ids) -> np.ndarray:
    return model.prefill(token_ids)


def check_report(report: SpecPrefillReport, status: str, num_tokens: int, config: SpecPrefillConfig | None) -> None:
    """All fields of a result are there and fit together."""
    found = json.loads(json.dumps(report.as_dict()))
    assert sorted(found) == sorted(FIELDS)
    assert found["status"] == status and status in guards.STATUSES
    assert found["prompt_n"] == num_tokens and len(found["reason"]) > 5
    assert found["kept_n"] == sum(end - start for start, end in found["kept_ranges"])
    ends = [n for pair in found["kept_ranges"] for n in pair]
    assert ends == sorted(set(ends)) and ends[-1] == num_tokens and ends[0] >= found["cached_n"]
    if config is None:
        assert found["settings"] == {}
    else:
        assert SpecPrefillConfig.from_dict(found["settings"]) == config
    new = num_tokens - found["cached_n"]
    assert (found["kept_n"] < new) == (status == guards.ACTIVE)
    parts = [found[name] for name in ("score_ms", "lookahead_ms", "select_ms", "sparse_prefill_ms")]
    assert min(parts) >= 0 and parts[3] > 0 and found["ttft_ms"] >= sum(parts)
    assert found["dense_estimate_ms"] is None or found["dense_estimate_ms"] > 0
