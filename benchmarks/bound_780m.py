#!/usr/bin/env python3
"""How fast prefill and decode can be on a Radeon 780M, from instruction counts and bytes; nothing is measured.

python -m benchmarks.bound_780m [--write]    print the tables, or put them into benchmarks/BOUND_780M.md

The programs of the product are recorded with every dispatch's grid; benchmarks/amd_compile.json (python -m
tools.amd_compile --newest --update) says what the GPU's compiler makes of each kernel, benchmarks/executed_780m.json
(python -m tools.amd_execute --update) what kernels did when they were executed on the emulated GPU. For each dispatch
the time that each resource needs is worked out, as if it were the only one; the longest binds. Dispatches follow each
other.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from benchmarks import expected_780m
from benchmarks.kernel_bounds import ATTENTION, CHUNK, LAUNCH_S, RESOURCES, Cost, num_launches
from benchmarks.phase_bounds import CHUNKS, SHAPES, Estimate, executed_counts, load_shape, phase, rows_of_table
from tools.amd.counts import counts_table
from tools.amd.executed import BUILT_IN, load_record
from vkprefill.benchmark.record import markdown_table

DOCUMENT = Path(__file__).parent / "BOUND_780M.md"
MARKS = "<!-- tables: python -m benchmarks.bound_780m --write -->\n", "<!-- end of tables -->\n"
DEPTHS = 0, 4096, 16384  # tokens in the cache before
SHOWN_S = 5e-6  # kernels below this are left out of the tables


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}" if seconds else "-"


def _row(name: str, costs: list[Cost], total: float) -> tuple[str, ...]:
    times = {resource: sum(getattr(c, resource) for c in costs) for resource in RESOURCES}
    bound = sum(c.bound for c in costs)
    binds = dict.fromkeys(RESOURCES, 0.0)
    for c in costs:
        binds[max(RESOURCES, key=lambda resource: getattr(c, resource))] += c.bound
    filled = sum(c.filled * c.issue for c in costs) / times["issue"] if times["issue"] else 0.0
    return (
        name,
        str(len(costs)),
        *map(_ms, times.values()),
        f"{filled:.0%}" if filled else "-",
        _ms(bound),
        f"{bound / total:.1%}",
        max(binds, key=binds.get),
    )


def _difference_row(name: str, estimates: list[Estimate]) -> tuple[str, ...]:
    """Static and executed times of a kernel, and how far the second is from the first."""
    cells = [name]
    for resource in ("issue", "lds", "cache"):
        static, executed = (sum(getattr(c, resource) for c in costs) for costs in _both(estimates))
        cells += [_ms(static), _ms(executed), f"{executed / static - 1:+.0%}" if static else "-"]
    passes, least = (sum(e.counts[name] for e in estimates) for name in ("lds_passes", "lds_least"))
    return (*cells, f"{passes / least:.2f}" if passes else "-")


def _both(estimates: list[Estimate]) -> tuple[list[Cost], list[Cost]]:
    return [e.static for e in estimates], [e.cost for e in estimates]


DIFFERENCE = ("kernel", "issue static", "executed", "by", "LDS static", "executed", "by")
DIFFERENCE += ("cache static", "executed", "by", "LDS passes by least")
HEAD = ("kernel", "dispatches", "issue", "LDS", "cache", "memory", "SIMDs filled", "bound", "share", "binds")
SUMMARY = ("model", "phase", "after", "kernels ms", "attention", "launches ms", "tokens/s")


HALF_HEAD = (
    "### Half precision\n\nPrefill's products of halves, by the instruction for them. A step of decode is the same."
)
BUILT_IN_HEAD = (
    f"### Built-in target\n\nA prefill of {CHUNK} tokens and a step of decode, executed; instructions in millions."
)


def tables() -> str:
    """For each precision a summary, then for each phase of each model a table, and one of what executed counts change;
    what can be expected of the GPU; last what the built-in target did.
    """
    (mesa, compiled), record = rows_of_table(), load_record()
    outside = sum(row["outside"] for rows in record["models"].values() for row in rows)
    return "\n\n".join(
        [
            f"Compiler: Mesa {mesa}; executed: Mesa {record['mesa']}, accesses out of bounds: {outside}.",
            *precision_tables("full", compiled, record["models"]),
            HALF_HEAD,
            *precision_tables("half", compiled, record["models"]),
            expected_780m.tables(),
            BUILT_IN_HEAD,
            counts_table(record["models"][BUILT_IN]) + "\n",
        ]
    )


def precision_tables(precision: str, compiled: dict, models: dict[str, list[dict]]) -> list[str]:
    """The summary first."""
    summary, parts = [], []
    for shape in SHAPES:
        executed, chunks = executed_counts(models, shape), CHUNKS.get(shape, (CHUNK,))
        forward = load_shape(shape, precision).runner.forward
        phases = [(f"prefill of {n:,} tokens", forward.record_trunk("prefill", n), n) for n in chunks]
        if precision == "full":
            phases.append(("step of decode", forward.record_rows("decode", 1), 1))
        for name, program, num_tokens in phases:
            launches, attended = num_launches(program.recorded) * LAUNCH_S, []
            for depth in DEPTHS:
                kernels = phase(program.recorded, compiled, executed, num_tokens, depth)
                total = sum(e.cost.bound for estimates in kernels.values() for e in estimates)
                attention_name = next(shader for shader in kernels if re.fullmatch(ATTENTION, shader))
                attended.append((f"{attention_name} after {depth:,}", kernels.pop(attention_name)))
                share = sum(e.cost.bound for e in attended[-1][1]) / total
                rate = num_tokens / (total + launches)
                summary.append((shape, name, f"{depth:,}", _ms(total), f"{share:.0%}", _ms(launches), f"{rate:,.0f}"))
            parts += phase_tables(f"{shape}, {name}", kernels, attended)
    return [markdown_table(SUMMARY, summary), *parts]


def phase_tables(title: str, kernels: dict[str, list[Estimate]], attended: list) -> list[str]:
    """What binds each kernel, and the estimates beside what was executed. attended: (name, estimates) of attention."""
    costs = {kernel: [e.cost for e in estimates] for kernel, estimates in kernels.items()}
    fixed = sum(c.bound for some in costs.values() for c in some)
    small = [kernel for kernel, some in costs.items() if sum(c.bound for c in some) < SHOWN_S]
    shown = [(kernel, estimates) for kernel, estimates in kernels.items() if kernel not in small] + attended
    rows = [_row(kernel, [e.cost for e in estimates], fixed) for kernel, estimates in shown]
    known = [row for row in shown if all(e.static.issue and e.counts for e in row[1])]
    parts = [
        f"{title}, ms; shares of all but attention. Below 5 us: {', '.join(sorted(small)) or '-'}.\n\n"
        + markdown_table(HEAD, rows)
    ]
    if known:
        parts.append(
            f"{title}: estimates from assembly and what was executed, ms.\n\n"
            + markdown_table(DIFFERENCE, [_difference_row(*row) for row in known])
        )
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DOCUMENT.name}")
    arguments = parser.parse_args()
    text = tables()
    if not arguments.write:
        return print(text)
    before, _, rest = DOCUMENT.read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    DOCUMENT.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
