"""tools/check_figures.py: what it takes for the same figure, and that it notices a wrong one in any table."""

import dataclasses
import re

import pytest

from benchmarks import draft_cost
from tools import check_figures
from tools.amd import executed
from tools.check_figures import differences
from tools.figures import compare, drafts, evaluations, shaders
from tools.figures.compare import agrees, tables

TABLES = [
    pytest.param(table, id=f"{table.document}:{table.line}")
    for path in check_figures.DOCUMENTS
    for table in tables(path.read_text(), path.name)
    if table.header in check_figures.TABLES or evaluations.is_evaluation(table)
]


@pytest.mark.parametrize(
    ("cell", "value", "same"),
    [
        ("20.8", 20.798, True),
        ("20.8", 20.85, True),
        ("20.8", 20.851, False),
        ("2,486", 2485.6, True),
        ("2,486", 2486.6, False),
        ("57.7 %", 57.68, True),
        ("0.357 CPU-s", 0.35706, True),
        ("-0.7 %", -0.694, True),
        ("0.7 %", -0.694, False),
        ("20 (one window)", 20, True),
        ("", 0, False),
        ("none", 0, False),
    ],
)
def test_agrees(cell, value, same):
    assert agrees(cell, value) == same


def test_round_numbers_of_sentences():
    assert agrees("5,200", 5176, round_numbers=True) and not agrees("5,200", 5176)
    assert not agrees("5,200", 5251, round_numbers=True)


def test_tables_of_a_text():
    text = "\n    command\n\n| | a | b |\n|---|---:|---|\n| x | 1 | |\n\nand\n| c | d |\n|---|---|\n"
    found = list(tables(text, "t.md"))
    assert [(t.line, t.header, t.rows, t.command) for t in found] == [
        (4, ("", "a", "b"), (("x", "1", ""),), "command"),
        (9, ("c", "d"), (), "command"),
    ]


@pytest.mark.parametrize("table", TABLES)
def test_a_wrong_figure_is_noticed(table):
    """Any cell with a record, the first digit of its number changed."""
    assert list(differences(table)) == []
    for at, row in enumerate(table.rows):
        known = check_figures.TABLES[table.header](row) if table.header in check_figures.TABLES else row[1:]
        for column, value in enumerate(known, 1):
            wrong = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), row[column], count=1)
            if value is None or wrong == row[column]:
                continue
            rows = (*table.rows[:at], (*row[:column], wrong, *row[column + 1 :]), *table.rows[at + 1 :])
            assert len(list(differences(dataclasses.replace(table, rows=rows)))) == 1, (row[0], column)


def test_unknown_tables_are_named():
    (table,) = tables("| kernel | ms |\n|---|---|\n| a | 1.5 |\n", "t.md")
    assert list(differences(table)) == ["t.md:1: tools/check_figures.py does not know the table | kernel | ms |"]


def test_sentences():
    values = [8, 0.51]
    pattern = r"at (\d+) waves, ([\d.]+) each"
    assert list(compare.said({"a.md": "at 8 waves,\n0.51 each"}, "a.md", pattern, values)) == []
    (found,) = compare.said({"a.md": "at 9 waves, 0.51 each"}, "a.md", pattern, values)
    assert found.startswith("a.md:") and found.endswith("found 9, the record has 8")
    (found,) = compare.said({"a.md": "nothing"}, "a.md", pattern, values)
    assert found == f"a.md: does not say: {pattern}"


def test_counts_of_other_sources_or_out_of_bounds_are_named(monkeypatch):
    rows = [{"shader": "swiglu", "outside": 0}, {"shader": "copy", "outside": 3}]
    record = {"sources": {"swiglu": executed.source_digest("swiglu"), "copy": "another"}, "models": {"tiny": rows}}
    monkeypatch.setattr(executed, "load_record", lambda: record)
    assert list(shaders.executed_differences({})) == [
        "executed_780m.json: other sources than now: copy; run: python -m tools.amd_execute --update",
        "executed_780m.json, tiny: copy: 3 accesses out of bounds",
    ]


def test_old_costs_of_drafts_are_named(monkeypatch, tmp_path):
    """The document as it was before a program or a record changed, and sentences with other numbers."""
    (tmp_path / "old.md").write_text(draft_cost.DOCUMENT.read_text().replace("0.8B", "0.9B", 1))
    monkeypatch.setattr(draft_cost, "DOCUMENT", tmp_path / "old.md")
    text = (check_figures.BENCHMARKS / "README.md").read_text()
    wrong = re.sub(r"([\d.]+)( and [\d.]+ on the 0\.8B)", r"9.99\2", text)
    document, sentence = drafts.draft_differences({"benchmarks/README.md": wrong})
    assert document.startswith("DRAFTS_780M.md: ") and "benchmarks.draft_cost --write" in document
    assert "found 9.99" in sentence


def test_an_answer_unlike_llama_cpp_s_is_named(monkeypatch):
    (row,) = (r for r in compare.data("peers_drafts.json")["rows"] if (r["model"], r["drafts"]) == ("mtp-a-f32", 3))
    monkeypatch.setitem(row, "same", 4)
    with pytest.raises(ValueError, match="4 answers of 5 are the same"):
        drafts.drafts_beside(("mtp-a-f32", "3"))
