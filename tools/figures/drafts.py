"""What documents say of drafts, against DRAFTS_780M.md's programs and the records of drafts beside others'."""

from __future__ import annotations

from collections.abc import Iterator

from tools.figures.compare import data, said


def draft_differences(documents: dict[str, str]) -> Iterator[str]:
    """DRAFTS_780M.md against the programs as they are recorded now, benchmarks/README.md against it and the record of
    drafts that do not pay.
    """
    from benchmarks import draft_cost

    costs = draft_cost.all_costs()
    if draft_cost.DOCUMENT.read_text() != draft_cost.document(costs):
        yield "DRAFTS_780M.md: not what programs and records give; run: python -m benchmarks.draft_cost --write"
    rate, drafts, _ = draft_cost.TARGET
    tokens = draft_cost.tokens_at_rate(rate, drafts)
    cut, whole = (
        [up for shape in ("0.8B", "4B") for up in costs[shape].speed_ups(head, drafts, tokens)]
        for head in draft_cost.HEADS
    )
    yield from said(
        documents,
        "benchmarks/README.md",
        r"([\d.]+) and ([\d.]+) on the 0.8B and ([\d.]+) and ([\d.]+) on the 4B where drafts come from the first",
        cut,
    )
    yield from said(
        documents,
        "benchmarks/README.md",
        r"and ([\d.]+) and ([\d.]+), ([\d.]+) and ([\d.]+) where they come from all of them",
        whole,
    )
    unpaid = {figure["name"]: figure["values"] for figure in data("drafts_unpaid.json")["figures"]}
    dispatches = [*unpaid["dispatches, with it"], unpaid["dispatches, without the block"][0]]
    yield from said(
        documents,
        "benchmarks/README.md",
        r"([\d.]+) and ([\d.]+) times the CPU time that they take without the block, with (\d+) and (\d+) rounds of "
        r"drafts and ([\d.]+) and ([\d.]+) dispatches a token instead of ([\d.]+)\.",
        [*unpaid["with / without"], *unpaid["rounds with drafts"], *dispatches],
    )


# benchmarks/README.md's table of answers beside llama.cpp's.
PEERS = ("model", "drafts", "same answers", "tokens", "drafted", "accepted", "by llama.cpp: drafted", "accepted")


def drafts_beside(row: tuple[str, ...]) -> list[float | str | None]:
    """Of peers_drafts.json. ValueError where an answer differs."""
    (found,) = (r for r in data("peers_drafts.json")["rows"] if (r["model"], str(r["drafts"])) == row[:2])
    if found["same"] != found["prompts"]:
        raise ValueError(f"peers_drafts.json: {found['same']} answers of {found['prompts']} are the same, wanted all")
    counts = (found[name] for name in ("tokens", "drafted", "accepted", "llama_drafted", "llama_accepted"))
    return [None, found["same"], *counts]
