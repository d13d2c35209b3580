"""Tables of what `vkprefill eval` found, looked up in eval_builtin.json and eval_choosing.json."""

from __future__ import annotations

from collections.abc import Iterator

from tools.figures.compare import Table, data
from vkprefill.evaluation.report import COLUMNS, OPTIONAL, Cell, columns, rows

Row = tuple[str, ...]


def is_evaluation(table: Table) -> bool:
    """Whether `vkprefill eval` wrote it."""
    return {*COLUMNS} - {*OPTIONAL} <= {*table.header}


def evaluation_differences(table: Table) -> Iterator[str]:
    """Of a table that `vkprefill eval` wrote, with its command before it."""
    where = f"{table.document}:{table.line}"
    runs = [run for run in data("eval_builtin.json")["runs"] if run["command"] == table.command]
    if len(runs) != 1:
        yield f"{where}: eval_builtin.json has {len(runs)} runs of: {table.command}"
        return
    cells = [Cell(**cell) for cell in runs[0]["cells"]]
    if (columns(cells), rows(cells)) != (table.header, list(table.rows)):
        yield f"{where}: is not the table of eval_builtin.json's run of: {table.command}"


def answers_kept(row: Row) -> list[float]:
    """docs/specprefill.md's summary of the first run of eval_builtin.json: right with 20 % kept."""
    right = {way: cell["right"] for way, cell in _cells("eval_builtin.json", 0, row[0], ("", "20 %")).items()}
    names = [("dense", ""), ("draft", ""), ("random", ""), ("ends", ""), ("dense-state", ""), ("draft", "window=512")]
    return [float(right[name]) for name in names]


# docs/choosing.md: a length, a budget, the answers right densely, those of them kept by each way
EARLY = ("prompt tokens", "kept", "right densely", "by all layers", "by layer 3 of 12", "by layer 7 of 12")
OWN = ("prompt tokens", "kept", "right densely", "chosen by the draft", "by layer 3 of the model itself")
LINKS = ("kind", "tasks", "draft: same first token", "same text", "layer 3: same first token", "same text")
CHECKED = (
    "tokens kept",
    "chosen by",
    "right densely",
    "answers kept",
    "with `rows=nope`",
    "dense text, checked",
    "of these revised",
    "first token, s",
    "check, s",
)
EARLY_RUN, OWN_RUN, LINKS_RUN, _, CHECKED_RUN = range(5)  # of eval_choosing.json


def early_layers(row: Row) -> list[float | None]:
    return _kept(row, EARLY_RUN, [("draft", ""), ("draft", "score_depth=0.33"), ("draft", "score_depth=0.66")])


def own_layers(row: Row) -> list[float | None]:
    return _kept(row, OWN_RUN, [("draft", ""), ("self", "layer 3")])


def checked(row: Row) -> list[float | None]:
    """Answers kept of those right densely, by rows of attention and those before the rotary; the checked answers that
    have the dense text, how many were revised; medians in seconds.
    """
    cells = _cells("eval_choosing.json", CHECKED_RUN, "512", ("", row[0]))
    way, layer = ("self", "layer 3") if row[1].startswith("layer") else ("draft", "")
    found, nope = cells["checked", layer], cells[way, f"{layer} rows=nope".strip()]
    kept = [float(cell["kept_right"]) for cell in (cells[way, layer], nope)]
    times = [found[name] / 1e3 for name in ("ttft_ms", "check_ms")]
    return [
        None,
        float(cells["dense", ""]["right"]),
        *kept,
        found["same_answer"] * found["n"],
        float(found["revised"]),
        *times,
    ]


def links(row: Row) -> list[float]:
    """Of a kind of task: how many, and by each way how many first tokens and whole answers are the dense run's."""
    kind = row[0].strip("`")
    found = [o for o in data("eval_choosing.json")["runs"][LINKS_RUN]["outcomes"] if o["kind"].endswith(kind)]
    same = [
        float(sum(o[name] for o in found if o["method"] == way))
        for way in ("draft", "self")
        for name in ("same_first", "same_answer")
    ]
    return [float(sum(o["method"] == "dense" for o in found)), *same]


def _cells(record: str, run: int, length: str, budgets: tuple[str, ...]) -> dict[tuple[str, str], dict]:
    """By method and variant."""
    tokens = int(length.replace(",", ""))
    cells = data(record)["runs"][run]["cells"]
    return {(c["method"], c["variant"]): c for c in cells if c["length"] == tokens and c["budget"] in budgets}


def _kept(row: Row, run: int, ways: list[tuple[str, str]]) -> list[float | None]:
    cells = _cells("eval_choosing.json", run, row[0], ("", row[1]))
    return [None, float(cells["dense", ""]["right"]), *(float(cells[way]["kept_right"]) for way in ways)]
