"""Figures of the server in Prometheus' text format, under llama-server's names where it has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from vkprefill.server.engine.jobs import Done
from vkprefill.server.http.histograms import SECONDS, TOKENS_PER_SECOND, Histogram
from vkprefill.server.http.request_log import RequestRecord
from vkprefill.specprefill.guards import STATUSES
from vkprefill.specprefill.plan import CHECK_DIFFERS, CHECK_EQUAL, CHECK_STATUSES

PREFIX = "vkprefill:"


class Metrics:
    """What has been served since the start."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._specprefill: Counter[str] = Counter({status: 0 for status in STATUSES})
        self._checks: Counter[str] = Counter({status: 0 for status in CHECK_STATUSES})
        self._late_checks: Counter[str] = Counter({status: 0 for status in (CHECK_EQUAL, CHECK_DIFFERS)})
        self._requests: Counter[int] = Counter()
        self._memory: dict[str, int] = {}
        self._cache: dict[str, int] = {}  # after the last answer
        self._decoded = 0  # predicted tokens after the first of each answer: those that the decode time is of
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}

    def answered(self, done: Done) -> None:
        timings, report = done.timings, done.specprefill
        self._totals["prompt_tokens_total"] += timings["prompt_n"]
        self._totals["prompt_seconds_total"] += timings["prompt_ms"] / 1e3
        self._totals["tokens_predicted_total"] += timings["predicted_n"]
        self._totals["tokens_predicted_seconds_total"] += timings["predicted_ms"] / 1e3
        self._totals["draft_tokens_total"] += timings["draft_n"]
        self._totals["draft_tokens_accepted_total"] += timings["draft_n_accepted"]
        self._totals["cached_tokens_total"] += timings["cache_n"]
        self._totals["specprefill_score_seconds_total"] += (
            report["score_ms"] + report["lookahead_ms"] + report["select_ms"]
        ) / 1e3
        self._totals["specprefill_skipped_tokens_total"] += report["prompt_n"] - report["cached_n"] - report["kept_n"]
        self._specprefill[report["status"]] += 1
        self._checks[report["check"]["status"]] += 1
        self._totals["specprefill_check_seconds_total"] += (
            report["check"]["dense_ms"] + report["check"]["verify_ms"]
        ) / 1e3
        self._late_checks.update(Counter(done.late_checks) - self._late_checks)
        self._memory, self._cache = done.memory, done.cache
        self._decoded += max(0, timings["predicted_n"] - 1)
        self._histograms["wait_seconds"].observe(timings["wait_ms"] / 1e3)
        for part in ("prompt", "predicted"):
            if timings[f"{part}_per_second"]:
                self._histograms[f"{part}_tokens_per_second"].observe(timings[f"{part}_per_second"])

    def waited(self, seconds: float) -> None:
        """A prompt was in the queue for so long."""
        self._histograms["queue_seconds"].observe(seconds)

    def responded(self, record: RequestRecord) -> None:
        """A completion request ended."""
        self._requests[record.status] += 1
        self._histograms["request_duration_seconds"].observe(record.duration_s)
        if record.first_token_s is not None:
            self._histograms["time_to_first_token_seconds"].observe(record.first_token_s)

    def text(self, now: Mapping[str, float]) -> str:
        """now: what is so at this moment, by the names of NOW."""
        lines: list[str] = []
        totals = self._totals
        speeds = {
            "prompt_tokens_seconds": _speed(totals["prompt_tokens_total"], totals["prompt_seconds_total"]),
            "predicted_tokens_seconds": _speed(self._decoded, totals["tokens_predicted_seconds_total"]),
        }

        def add(name: str, kind: str, help: str, values: Mapping[str, float]) -> None:
            lines.extend(metric_lines(name, kind, help, values))

        for name, help in TOTALS.items():
            add(name, "counter", help, {"": self._totals[name]})
        add(
            "specprefill_requests_total",
            "counter",
            "Answers by status of speculative prefill.",
            labelled("status", self._specprefill),
        )
        add(
            "specprefill_checks_total",
            "counter",
            "Answers by status of their check against the dense model.",
            labelled("status", self._checks),
        )
        add(
            "specprefill_late_checks_total",
            "counter",
            "Of those that were pending, what came out while nobody asked.",
            labelled("status", self._late_checks),
        )
        add("requests_total", "counter", "Completion requests by HTTP status.", labelled("code", self._requests))
        for name, help in SPEEDS.items():
            add(name, "gauge", help, {"": speeds[name]})
        for name, help in NOW.items():
            add(name, "gauge", help, {"": now[name]})
        for name, (help, _) in HISTOGRAMS.items():
            add(name, "histogram", help, dict(self._histograms[name].samples()))
        add(
            "device_memory_bytes",
            "gauge",
            "Memory on the device after the last answer.",
            labelled("kind", self._memory),
        )
        for name, (kind, help) in CACHE.items():
            add(f"prompt_cache_{name}", kind, help, {"": self._cache.get(name.removesuffix("_total"), 0)})
        return "\n".join(lines) + "\n"


TOTALS = {
    "prompt_tokens_total": "Prompt tokens that the model ran.",
    "prompt_seconds_total": "Time of that.",
    "tokens_predicted_total": "Generated tokens.",
    "tokens_predicted_seconds_total": "Time of that.",
    "draft_tokens_total": "Drafted tokens.",
    "draft_tokens_accepted_total": "Of them, those that became generated tokens.",
    "cached_tokens_total": "Prompt tokens that were in the cache.",
    "specprefill_score_seconds_total": "Time the draft took to score prompts and to choose.",
    "specprefill_check_seconds_total": "Time that checks took before their answers ended.",
    "specprefill_skipped_tokens_total": "Prompt tokens that sparse prefills left out.",
}
NOW = {
    "requests_processing": "Requests in work.",
    "requests_deferred": "Requests in the queue.",
    "context_tokens": "Tokens of the context, which the conversations share; 0 while there is no engine.",
    "ready": "1 where requests are taken, 0 while the model is loaded and after the device was lost.",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": ("From a request's headers to the first text of its answer.", SECONDS),
    "queue_seconds": ("That prompts were in the queue.", SECONDS),
    "wait_seconds": ("That prompts were in the queue, and their answers waited while others had the device.", SECONDS),
    "request_duration_seconds": ("From a completion request's headers to the end of its answer.", SECONDS),
    "prompt_tokens_per_second": ("Prefill speed of each answer.", TOKENS_PER_SECOND),
    "predicted_tokens_per_second": ("Decode speed of each answer.", TOKENS_PER_SECOND),
}
CACHE = {  # figures of the prompt cache
    "conversations": ("gauge", "Conversations that are remembered."),
    "marks": ("gauge", "Points that prompts can go on from."),
    "tokens": ("gauge", "Tokens that are remembered."),
    "device_bytes": ("gauge", "Memory of that on the device."),
    "host_bytes": ("gauge", "Memory of that on the host."),
    "evictions_total": ("counter", "Conversations forgotten for want of memory."),
}
SPEEDS = {
    "prompt_tokens_seconds": "Average prefill speed since the start, tokens per second.",
    "predicted_tokens_seconds": "Average decode speed since the start, tokens per second.",
}


def _speed(tokens: float, seconds: float) -> float:
    return tokens / seconds if seconds else 0.0


def metric_lines(name: str, kind: str, help: str, values: Mapping[str, float]) -> list[str]:
    """A metric in the text format; values: by what stands after its name."""
    head = [f"# HELP {PREFIX}{name} {help}", f"# TYPE {PREFIX}{name} {kind}"]
    return head + [f"{PREFIX}{name}{after} {value}" for after, value in values.items()]


def labelled(label: str, values: Mapping) -> dict[str, float]:
    return {f'{{{label}="{key}"}}': value for key, value in sorted(values.items())}
