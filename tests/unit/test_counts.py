"""tools/amd/counts.py and executed.py: counts of other grids, by hand; when a stored count is out of date."""

import pytest

from tools.amd import compiler, executed
from tools.amd.counts import COUNTS, Counts, counts_table, work_of
from tools.amd.table import load_table

ATTENTION = {"LOCAL_SIZE": 32, "H": 4, "G": 2, "Dh": 64, "SPLITS": 1, "TQ": 4, "KP": 2, "VALUE_KEYS": 4}


def row(shader: str, grid: tuple[int, int, int], value: float, dispatches: int = 1, **more) -> dict:
    """All counts of each dispatch are `value`."""
    place = {"constants": {}, "push": {}, "program": "prefill", "tokens": 64, "wave": 32, "outside": 0}
    sums = dict.fromkeys((*COUNTS, "lines_read", "lines_written"), value * dispatches)
    return {"shader": shader, "grid": grid, **place, "dispatches": dispatches, **sums, **more}


def ask(shader: str, grid: tuple[int, int, int], constants: dict | None = None, **push: int) -> dict:
    return {"shader": shader, "constants": constants or {}, "push": push, "grid": grid}


def test_a_workgroup_does_the_same_in_every_grid():
    counts = Counts([row("swiglu", (2, 64, 1), 256, dispatches=3)])
    assert counts.of(ask("swiglu", (2, 512, 1)), 512, 0)["issue"] == pytest.approx(2048)
    assert counts.of(ask("rms_norm", (2, 512, 1)), 512, 0) is None


def test_width_constants_and_adding_make_another_kernel():
    counts = Counts([row("matmul_f32", (1, 4, 1), 40, push={"K": 64, "rows": 512, "add": 0}, constants={"TM": 64})])

    def found(constants: dict | None = None, grid: tuple[int, int, int] = (8, 2, 1), **push: int) -> dict | None:
        asked = {"K": 64, "rows": 256, "add": 0} | push
        return counts.of(ask("matmul_f32", grid, constants or {"TM": 64}, **asked), 512, 0)

    assert found()["lds"] == pytest.approx(160)
    assert found({"TM": 32}) is found(K=128) is found(add=1) is None
    assert found(grid=(8, 1, 1), rows=16) is None  # whose stores are fewer than a tile's


def test_tokens_of_a_workgroup():
    """The delta rule: 10 for a workgroup and 3 for each of its tokens; the convolution: 5 more for the first ones."""
    rule = Counts([row("delta_rule", (4, 2, 1), 8 * (10 + 3 * t), tokens=t) for t in (1, 64)])
    assert rule.of(ask("delta_rule", (4, 2, 1)), 512, 0)["issue"] == pytest.approx(8 * (10 + 3 * 512))
    grids = {1: (4, 1, 1), 64: (4, 2, 1), 96: (4, 3, 1)}
    rows = [row("causal_conv", g, 4 * (5 + 7 * g[1] + 2 * t), tokens=t) for t, g in grids.items()]
    found = Counts(rows).of(ask("causal_conv", (4, 16, 1)), 512, 0)
    assert found["issue"] == pytest.approx(4 * (5 + 7 * 16 + 2 * 512))


def test_work_of_pairs_of_slots():
    """4 tokens after 2 fill two pairs; after 3 three, of which the first and the last hold one of them each."""
    grid = (2, 3, 1)
    assert work_of(row("kv_store_f16", grid, 0, tokens=4, depth=2)) == (6, 8, 4, 0, 0)
    assert work_of(row("kv_store_f16", grid, 0, tokens=4, depth=3)) == (6, 8, 6, 2, 2)
    assert work_of(row("kv_store_f16", (2, 1, 1), 0, tokens=1, depth=2)) == (2, 2, 2, 0, 2)


def test_work_of_attention():
    """4 tokens after 62, two heads of a group: tiles of two tokens, which see 64 and 66 keys in tiles of 64. In how
    many parts the keys are makes no difference.
    """
    whole = row("attention_f16", (2, 2, 1), 0, tokens=4, depth=62, constants=ATTENTION)
    assert work_of(whole) == (4, 2 * (1 + 2), 2 * (16 + 16 + 1), 2 * (4 + 5))
    split = row("attention_f16", (2, 2, 3), 0, tokens=4, depth=62, constants=ATTENTION | {"SPLITS": 3})
    assert work_of(split) == (12, 2 * (1 + 2), 2 * (16 + 16 + 1), 2 * (4 + 5))
    long = row("attention_f16", (1, 2, 3), 0, tokens=1, depth=255, constants=ATTENTION | {"SPLITS": 3})
    assert work_of(long) == (6, 2 * 4, 2 * 64, 2 * 16)
    eights = row("attention_f16", (2, 2, 1), 0, tokens=4, depth=62, constants=ATTENTION | {"VALUE_KEYS": 8})
    assert work_of(eights) == (4, 2 * (1 + 2), 2 * (8 + 8 + 1), 2 * (4 + 5))


def test_counts_that_do_not_follow_are_refused():
    rows = [row("swiglu", (1, 64, 1), 640), row("swiglu", (2, 64, 1), 1300)]
    with pytest.raises(ValueError, match=r"swiglu \{\}: waves executed is 0.8% off"):
        Counts(rows).of(ask("swiglu", (1, 1, 1)), 1, 0)


def test_table_leaves_out_what_ran_for_the_depth_alone():
    rows = [row("swiglu", (1, 64, 1), 1_000_000), row("swiglu", (2, 64, 1), 1_000_000)]
    rows.append(row("swiglu", (1, 64, 1), 1_000_000, narrow=True))
    (line,) = [line for line in counts_table(rows).splitlines() if "swiglu" in line]
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        *("prefill", "swiglu", "2", "4.000", "50%", "2.000", "2.000", "0%", "250,000", "500,000", "0")
    ]


def test_a_changed_source_is_noticed(tmp_path, monkeypatch):
    """Of an included file too; comments are no change."""
    (tmp_path / "include").mkdir()
    part, main = tmp_path / "include" / "part.glsl", tmp_path / "swiglu.comp"
    part.write_text("float a;\n")
    main.write_text('#include "part.glsl"\nvoid main() {}\n')
    monkeypatch.setattr(executed, "SHADERS", tmp_path)
    record = {"sources": {"swiglu": executed.source_digest("swiglu")}}
    assert executed.stale(record) == []
    main.write_text('// what it does\n#include "part.glsl"\n\nvoid main() {}  // here\n')
    assert executed.stale(record) == []
    part.write_text("float b;\n")
    assert executed.stale(record) == ["swiglu"]
    main.unlink()
    assert executed.stale(record) == ["swiglu"]


def test_a_matrix_type_is_a_kernel_of_its_own():
    assert executed.source_digest("matvec_q4_k") != executed.source_digest("matvec_q6_k")
    assert executed.source_digest("no_such_shader") == ""


def test_without_the_emulated_device_nothing_is_run(monkeypatch):
    missing = executed.ROOT / "build" / "780m" / "no-such-python"
    monkeypatch.setattr(executed, "PYTHON_780M", missing)
    monkeypatch.setattr(compiler, "PYTHON_780M", missing)
    for run in (executed.execute, lambda: compiler.compile_all(None, "phoenix", [])):
        with pytest.raises(RuntimeError, match="^build/780m/no-such-python is missing; run: make setup-780m$"):
            run()


def test_what_was_executed_is_what_the_compiler_s_table_describes():
    """Registers, shared memory and size of the waves: from the registers of a dispatch, and from the driver's words."""
    record = executed.load_record()
    (table,) = [t for t in load_table() if (t["mesa"], t["family"]) == (record["mesa"], compiler.FAMILY)]
    known = {(p["shader"], *p["constants"].items()): p for p in table["pipelines"] if not p["wave64"]}
    compared = 0
    for found in (row for rows in record["models"].values() for row in rows):
        if compiled := known.get((found["shader"], *found["constants"].items())):
            names = found["vgprs"], found["lds_bytes"], found["wave"]
            assert names == (compiled["vgprs"], compiled["lds"], compiled["wave"]), found["shader"]
            compared += 1
    assert compared > 100
