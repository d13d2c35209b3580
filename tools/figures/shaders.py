"""What documents say of compiled and executed shaders, against amd_compile.json, executed_780m.json and the bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.amd.compiler import FAMILY
from tools.figures.compare import data, said, tables

# By version of Mesa that issues in pairs. 26 pairs less in the form that the profile does not take.
FEW_INSTRUCTIONS = {
    "25": r"matmul_(hybrid_)?(q4_k|q5_k|q6_k|q8_0)",
    "26": r"matmul_hybrid_(q4_k|q5_k|q6_k|q8_0)",
}
MOST_VALU = {32: 0.65, 64: 1.15}  # by wave: pairs count once, and only waves of 32 have them


def compiled_differences(documents: dict[str, str]) -> Iterator[str]:
    """amd_compile.json against what docs/hardware.md says of it, and what holds for every stored table."""
    stored = data("amd_compile.json")["tables"]
    newest = max((t["mesa"] for t in stored), key=lambda mesa: [int(n) for n in mesa.split(".")])
    for mesa, family, p in ((t["mesa"], t["family"], p) for t in stored for p in t["pipelines"]):
        name = f"amd_compile.json, Mesa {mesa}, {family}: {p['shader']} {p['constants']}"
        if p["vgpr_spills"]:
            yield f"{name}: {p['vgpr_spills']} vector registers spilled, wanted none"
        if p["shader"].startswith("matmul_") and (p["sgpr_spills"] or p["seconds"] > 2):
            yield f"{name}: {p['sgpr_spills']} scalar registers spilled, {p['seconds']} s; wanted none, at most 2 s"
        valu = p.get("loops", {}).get("loop", {}).get("valu", 0.0)
        few = FEW_INSTRUCTIONS.get(mesa.partition(".")[0], "")
        if re.fullmatch(few, p["shader"]) and valu > MOST_VALU[p["wave"]]:
            yield f"{name}: {valu} vector instructions a multiply-add, wanted at most {MOST_VALU[p['wave']]}"
    of_780m = [p for t in stored if (t["mesa"], t["family"]) == (newest, FAMILY) for p in t["pipelines"]]
    latest = [p for p in of_780m if p["shader"].startswith("matmul_hybrid_") and p["wave"] == 32 and "loops" in p]
    # Without products by conversion, which this driver has no need of, and experts' smaller tiles.
    latest = [p for p in latest if "_half_" not in p["shader"] and "_experts_" not in p["shader"]]
    dot2 = [p for p in latest if "_dot2_" in p["shader"]]
    latest = [p for p in latest if p not in dot2]
    valu, valu2 = ([p["loops"]["loop"]["valu"] for p in some] for some in (latest, dot2))
    yield from said(
        documents,
        "docs/hardware.md",
        r"by the instruction for products of halves (\d+) waves, ([\d.]+) to ([\d.]+)\.",
        [min(p["waves"] for p in dot2), min(valu2), max(valu2)],
    )
    yield from said(
        documents,
        "docs/hardware.md",
        r"no spills, (\d+) waves or more for the matmuls \(8 but for IQ2 and IQ3\), "
        r"([\d.]+) to ([\d.]+) vector instructions per multiply-add",
        [min(p["waves"] for p in latest), min(valu), max(valu)],
    )


def executed_differences(documents: dict[str, str]) -> Iterator[str]:
    """executed_780m.json against the shaders, and accesses out of bounds in it."""
    from tools.amd import executed

    record = executed.load_record()
    if old := executed.stale(record):
        yield f"executed_780m.json: other sources than now: {', '.join(old)}; run: python -m tools.amd_execute --update"
    for model, kernels in record["models"].items():
        for row in kernels:
            if row["outside"]:
                yield f"executed_780m.json, {model}: {row['shader']}: {row['outside']} accesses out of bounds"


def bound_differences(documents: dict[str, str]) -> Iterator[str]:
    """BOUND_780M.md against amd_compile.json and executed_780m.json, docs/hardware.md against BOUND_780M.md."""
    from benchmarks import bound_780m

    text = bound_780m.DOCUMENT.read_text()
    begin, end = bound_780m.MARKS
    if text.partition(begin)[2].partition(end)[0].strip() != bound_780m.tables().strip():
        yield "BOUND_780M.md: not the tables of its records; run: python -m benchmarks.bound_780m --write"
    summaries = [table for table in tables(text, "BOUND_780M.md") if table.header == bound_780m.SUMMARY]
    speed, half = ({(r[0], r[1].split()[0]): r[-1] for r in table.rows if r[2] == "0"} for table in summaries)
    yield from said(
        documents,
        "docs/hardware.md",
        r"With products of halves ([\d,]+) and ([\d,]+) of prefill",
        [float(half[model, "prefill"].replace(",", "")) for model in ("0.8B", "4B")],
    )
    yield from said(
        documents,
        "docs/hardware.md",
        r"([\d,]+) tokens/s of prefill and (\d+) of decode for the 0.8B, (\d+) and (\d+) for the\s+4B",
        [float(speed[model, phase].replace(",", "")) for model in ("0.8B", "4B") for phase in ("prefill", "step")],
    )
