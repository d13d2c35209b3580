"""The counters as Prometheus reads them."""

import re
from dataclasses import replace

import pytest
from prometheus_client import Metric, parser

from vkprefill.generation.generate import Timings
from vkprefill.server.engine.jobs import Done
from vkprefill.server.http.histograms import SECONDS
from vkprefill.server.http.metrics import NOW, Metrics
from vkprefill.server.http.request_log import RequestRecord
from vkprefill.specprefill.plan import SpecPrefillReport

PARTS = {"histogram": ("_bucket", "_sum", "_count")}


def answer(prompt_n: int, prompt_ms: float, predicted_n: int, predicted_ms: float) -> Done:
    timings = Timings(prompt_n=prompt_n, prompt_ms=prompt_ms, predicted_n=predicted_n, predicted_ms=predicted_ms)
    return Done(
        1,
        "stop",
        {**timings.as_dict(), "wait_ms": 2.0},
        SpecPrefillReport("disabled", "no draft model", prompt_n).as_dict(),
        memory={"weights": 5},
    )


def ended(status: int, first_token_s: float | None = None) -> RequestRecord:
    return RequestRecord("id", "POST", "/v1/chat/completions", status=status, first_token_s=first_token_s)


def values(metrics: Metrics) -> dict[str, float]:
    lines = metrics.text(dict.fromkeys(NOW, 0)).splitlines()
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
    metrics.responded(ended(200))
    text = metrics.text(dict.fromkeys(NOW, 1))
    types = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M))
    names = {re.split(r"[ {]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    parts = {f"{name}{part}" for name, kind in types.items() for part in PARTS.get(kind, ("",))}
    assert names == parts and set(types) == set(re.findall(r"^# HELP (\S+) \S", text, re.M))
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in types.items())


def families(metrics: Metrics) -> dict[str, Metric]:
    """As Prometheus' own library reads them."""
    found = list(parser.text_string_to_metric_families(metrics.text(dict.fromkeys(NOW, 0))))
    assert len(found) == len({family.name for family in found})
    return {family.name.removeprefix("vkprefill:"): family for family in found}


def counts(family: Metric) -> dict[str, float]:
    """Of a histogram: values at most so large, by bound."""
    return {one.labels["le"]: one.value for one in family.samples if one.name.endswith("_bucket")}


def test_histograms():
    metrics = Metrics()
    for seconds in (0.05, 0.06, 700):
        metrics.waited(seconds)
    metrics.responded(ended(200, first_token_s=2.0))
    metrics.responded(ended(400))
    metrics.answered(answer(1000, 500, 11, 100))
    metrics.answered(answer(0, 0, 1, 0))  # nothing to be fast at
    found = families(metrics)
    queue = found["queue_seconds"]
    assert queue.type == "histogram" and queue.documentation
    assert counts(queue) == {str(le): 0 if le < 0.05 else 1 if le < 0.1 else 2 for le in SECONDS} | {"+Inf": 3}
    rest = {one.name.rpartition("_")[2]: one.value for one in queue.samples if "le" not in one.labels}
    assert rest == {"sum": pytest.approx(700.11), "count": 3}
    first = counts(found["time_to_first_token_seconds"])
    assert (first["1"], first["2.5"], first["+Inf"]) == (0, 1, 1)
    assert counts(found["request_duration_seconds"])["+Inf"] == 2
    speeds = counts(found["prompt_tokens_per_second"])
    assert (speeds["1000"], speeds["2000"], speeds["+Inf"]) == (0, 1, 1)
    speeds = counts(found["predicted_tokens_per_second"])
    assert (speeds["50"], speeds["100"], speeds["200"], speeds["+Inf"]) == (0, 1, 1, 1)


def test_nothing_yet():
    for family in families(Metrics()).values():
        assert family.type in ("counter", "gauge", "histogram")
        assert family.type != "histogram" or set(counts(family).values()) == {0}
