"""Counts of executed kernels: of dispatches of another grid, and as a table.

What a workgroup does depends on its kernel, the constants, the width of the matrix and, for some kernels, on how many
tokens or keys there are. So a dispatch's counts are a sum of few terms (`work_of`), each so many times what the
executed dispatches say of it.
"""

import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from vkprefill.benchmark.record import markdown_table

ATTENTION, PAIRS_OF_SLOTS = r"attention_(f16|f32|half|dot2)", "kv_store_f16"
OF_DEPTH = rf"{ATTENTION}|{PAIRS_OF_SLOTS}"  # kernels whose work depends on how many keys were there before
COUNTS = ("waves", "issue", "valu", "pairs", "salu", "smem", "vmem", "lds", "lds_passes", "lds_least", "lines")
COUNTS += ("vmem_bytes", "smem_bytes", "branches")
KEYS_OF_LINE = 16  # whose same word of four values lies in 128 bytes of a half-precision cache
MOST_ROWS = 128  # of a matrix, that a workgroup takes
MOST_OFF = 5e-3  # between what was executed and what is worked out: how ties fall, where a row begins in a line


def work_of(row: Mapping) -> tuple[float, ...]:
    """What a dispatch's counts are sums of: so many times what a workgroup does, a token, a tile of keys."""
    shader, (x, y, z), tokens = row["shader"], row["grid"], row["tokens"]
    groups = x * y * z
    if re.fullmatch(ATTENTION, shader):
        return groups, *_attention_work(row["constants"], tokens, row["depth"])
    if shader == "delta_rule":  # a workgroup takes all tokens
        return groups, groups * tokens
    if shader == PAIRS_OF_SLOTS:  # the first and the last one may hold one token of this call
        first, last = row["depth"] % 2, (row["depth"] + tokens) % 2
        return groups, x * tokens, x * (first + tokens + last) // 2, x * first, x * last
    if shader == "causal_conv":  # those of the first tokens see to the state
        return x, groups, x * tokens
    return (groups,)


def _attention_work(constants: dict, tokens: int, depth: int) -> tuple[int, int, int]:
    """Tiles of keys; of the weighted sums, groups of keys that are loaded together; lines of keys, which a tile that is
    not full touches fewer of. See attention.comp.

    What a workgroup does beside its tiles counts with them: one without a tile ends at once.
    """
    c, heads = constants, constants["H"] // constants["G"]
    tile, together = c["LOCAL_SIZE"] * c["KP"], c["VALUE_KEYS"]
    tiles = groups = lines = 0
    for first in range(0, tokens * heads, c["TQ"]):
        skip = 0 if c["TQ"] % heads == 0 else first % heads
        keys = depth + min(first // heads + (skip + c["TQ"] - 1) // heads + 1, tokens)
        tiles += math.ceil(keys / tile)
        groups += keys // tile * (tile // together) + math.ceil(keys % tile / together)
        lines += math.ceil(keys / KEYS_OF_LINE)
    return tiles * c["G"], groups * c["G"], lines * c["G"]


def kernel_of(row: dict) -> tuple:
    """What a workgroup's counts depend on. A matrix with fewer rows than a workgroup takes counts apart, and so does a
    product that is added to what is there.
    """
    push = row["push"]
    sizes = push.get("K"), min(push.get("rows", 0), MOST_ROWS), push.get("add", 0)
    return row["shader"], *row["constants"].items(), *sizes


class Counts:
    """The counts of executed kernels, for dispatches of any grid."""

    def __init__(self, rows: Iterable[dict]) -> None:
        self._rows: dict[tuple, list[dict]] = {}
        for row in rows:
            self._rows.setdefault(kernel_of(row), []).append(row)

    def of(self, dispatch: Mapping, tokens: int, depth: int) -> dict[str, float] | None:
        """Those of COUNTS, and `wave`, the size of a wave. None where its kernel was not executed.

        dispatch: shader, constants, push, grid. Raises ValueError where the counts of the executed grids do not follow
        from their work.
        """
        rows = self._rows.get(kernel_of(dispatch))
        if not rows:
            return None
        done = np.array([work_of(row) for row in rows], float)
        counts = np.array([[row[name] / row["dispatches"] for name in COUNTS] for row in rows])
        scale = done[:, :1]  # workgroups: a small grid weighs as much as a large one
        each, *_ = np.linalg.lstsq(done / scale, counts / scale, rcond=None)
        off = np.abs(done @ each - counts) / np.maximum(counts, 1)
        if off.max() > MOST_OFF:
            raise ValueError(
                f"{dispatch['shader']} {dispatch['constants']}: {COUNTS[off.max(0).argmax()]} executed is "
                f"{off.max():.1%} off what follows from other grids"
            )
        found = np.array(work_of({**dispatch, "tokens": tokens, "depth": depth})) @ each
        return dict(zip(COUNTS, map(float, found), strict=True)) | {"wave": rows[0]["wave"]}


TABLE = ("program", "kernel", "dispatches", "vector", "pairs", "scalar", "LDS", "conflicts", "KiB", "memory KiB")
TABLE += ("outside",)


def counts_table(rows: list[dict]) -> str:
    """A line for each kernel of each program, summed over its grids; instructions and passes in millions.

    vector: instructions that vector units issue, of waves, a pair counted once; pairs: their share. LDS: passes of 128
    bytes; conflicts: how many more they are than without conflicts of banks. KiB: lines of 128 bytes that vector loads
    and stores touch, once for each instruction; memory KiB: once for each dispatch, scalar loads too. outside: accesses
    that a descriptor's range refused.
    """
    kernels: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        if not row.get("narrow"):
            sums = kernels.setdefault((row["program"], row["shader"]), {})
            for name in ("dispatches", *COUNTS, "lines_read", "lines_written", "outside"):
                sums[name] = sums.get(name, 0) + row[name]
    return markdown_table(TABLE, [(*key, *_cells(sums)) for key, sums in kernels.items()])


def _cells(sums: dict[str, int]) -> tuple[str, ...]:
    vector = sums["valu"] + sums["pairs"]
    more = sums["lds_passes"] / sums["lds_least"] - 1 if sums["lds_least"] else 0.0
    return (
        f"{sums['dispatches']}",
        f"{vector / 1e6:,.3f}",
        f"{sums['pairs'] / vector:.0%}",
        f"{sums['salu'] / 1e6:,.3f}",
        f"{sums['lds_passes'] / 1e6:,.3f}" if sums["lds_passes"] else "-",
        f"{more:.0%}" if sums["lds_passes"] else "-",
        f"{sums['lines'] / 8:,.0f}",
        f"{(sums['lines_read'] + sums['lines_written']) / 8:,.0f}",
        f"{sums['outside']}",
    )
