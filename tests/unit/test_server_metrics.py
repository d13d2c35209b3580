"""The counters as Prometheus reads them."""

import re
from dataclasses import replace

import pytest

from vkprefill.generation.generate import Timings
from vkprefill.server.engine.jobs import Done
from vkprefill.server.http.metrics import Metrics
from vkprefill.specprefill.plan import SpecPrefillReport


def answer(prompt_n: int, prompt_ms: float, predicted_n: int, predicted_ms: float) -> Done:
    timings = Timings(prompt_n=prompt_n, prompt_ms=prompt_ms, predicted_n=predicted_n, predicted_ms=predicted_ms)
    return Done(
        1,
        "stop",
        timings.as_dict(),
        SpecPrefillReport("disabled", "no draft model", prompt_n).as_dict(),
        memory={"weights": 5},
    )


def values(metrics: Metrics) -> dict[str, float]:
    lines = metrics.text(running=0, waiting=0).splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_speeds_are_averages():
    """Of all tokens in all their time, neither of answers nor of the last one; decoding starts at the first token."""
    metrics = Metrics()
    assert (
        values(metrics)["vkprefill:prompt_tokens_seconds"] == values(metrics)["vkprefill:predicted_tokens_seconds"] == 0
    )
    metrics.answered(answer(1000, 500, 11, 100))
    assert values(metrics)["vkprefill:prompt_tokens_seconds"] == pytest.approx(2000)
    assert values(metrics)["vkprefill:predicted_tokens_seconds"] == pytest.approx(100)
    metrics.answered(answer(10, 510, 1, 0))
    metrics.answered(answer(0, 0, 31, 300))
    found = values(metrics)
    assert found["vkprefill:prompt_tokens_seconds"] == pytest.approx(1000)
    assert found["vkprefill:predicted_tokens_seconds"] == pytest.approx(100)
    assert found["vkprefill:prompt_tokens_total"] == 1010 and found["vkprefill:tokens_predicted_total"] == 43


def test_drafts():
    metrics = Metrics()
    for drafted, accepted in ((8, 5), (4, 0)):
        done = answer(10, 1, 12, 1)
        metrics.answered(replace(done, timings=done.timings | {"draft_n": drafted, "draft_n_accepted": accepted}))
    found = values(metrics)
    assert (found["vkprefill:draft_tokens_total"], found["vkprefill:draft_tokens_accepted_total"]) == (12, 5)


def test_types():
    """What only grows, and it alone, is a counter; each name has one help and one type before its values."""
    metrics = Metrics()
    metrics.answered(answer(3, 1, 5, 2))
    metrics.responded(200)
    text = metrics.text(running=1, waiting=2)
    types = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M))
    names = {re.split(r"[ {]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    assert names == set(types) == set(re.findall(r"^# HELP (\S+) \S", text, re.M))
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in types.items())
