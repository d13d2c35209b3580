"""What each slot does: an object for each, in llama-server's form, and gauges. Nothing of a prompt's text."""

from __future__ import annotations

from collections.abc import Callable

from vkprefill.server.engine.client import EngineClient, Run
from vkprefill.server.engine.jobs import Standing
from vkprefill.server.http.metrics import labelled, metric_lines
from vkprefill.server.http.model_info import params

GAUGES: dict[str, tuple[str, Callable[[Standing], float]]] = {
    "slot_place": ("Place of a busy slot in the order of turns, 0 is the next.", lambda s: s.place),
    "slot_share": ("Share of the device's time since its request began.", lambda s: s.share),
    "slot_own_seconds": ("Time that its request had the device.", lambda s: s.own_ms / 1e3),
    "slot_wait_seconds": (
        "Time that its request was in the queue, or others had the device.",
        lambda s: s.wait_ms / 1e3,
    ),
}


def slot_objects(client: EngineClient) -> list[dict[str, object]]:
    context = client.ready.max_context if client.ready else None
    return [_slot_object(slot, run, context) for slot, run in enumerate(client.slots)]


def _slot_object(slot: int, run: Run | None, context: int | None) -> dict[str, object]:
    """context: tokens, which all slots share."""
    if run is None:
        return {"id": slot, "n_ctx": context, "speculative": False, "is_processing": False}
    job, options, standing = run.job, run.job.options, run.standing
    decoded, most = standing.predicted_n if standing else 0, options.max_tokens
    found: dict[str, object] = {
        "id": slot,
        "id_task": job.job_id,
        "n_ctx": context,
        "speculative": bool(options.decode.sources),
        "is_processing": True,
        "params": {**params(options.sampling, options.decode, most), "stream": not options.whole},
        "next_token": {
            "has_next_token": True,
            "n_remain": -1 if most is None else max(0, most - decoded),
            "n_decoded": decoded,
        },
        "n_prompt_tokens": len(job.token_ids),
        "specprefill": options.sparse.enabled,
    }
    if standing is not None:
        names = ("stage", "done", "total", "place", "share", "own_ms", "wait_ms", "slices")
        found |= {name: getattr(standing, name) for name in names}
    return found


def slot_metrics(client: EngineClient) -> str:
    """In Prometheus' text format."""
    runs = client.slots
    changes = "Times that the device went from one request to another."
    busy = {slot: int(run is not None) for slot, run in enumerate(runs)}
    known = {slot: run.standing for slot, run in enumerate(runs) if run is not None and run.standing}
    lines = metric_lines("slots", "gauge", "Requests that are answered in turns, at most.", {"": len(runs)})
    lines += metric_lines("turn_changes_total", "counter", changes, {"": client.changes})
    lines += metric_lines("slot_busy", "gauge", "1 where a slot has a request.", labelled("slot", busy))
    for name, (help, value) in GAUGES.items():
        values = {slot: value(standing) for slot, standing in known.items()}
        lines += metric_lines(name, "gauge", help, labelled("slot", values))
    return "\n".join(lines) + "\n"
