"""Instructions in the loops of a shader's assembly, counted by kind.

Vector instructions (valu), dual-issue pairs among them (vopd, a pair counted once) and instructions that read or write
shared memory (lds), buffers (vmem), scalars (smem).
"""

import re

import numpy as np

from vkprefill.gguf.quants import LAYOUTS, Layout

KINDS = {  # what the names of a kind of instruction start with
    "valu": r"v_",
    "vopd": r"v_dual_",
    "lds": r"ds_",
    "vmem": r"(buffer|global)_(load|store)",
    "smem": r"s_(buffer_)?load",
}


class Loops:
    """The loops of a shader's assembly: basic blocks, and (first, last) block of each loop in the order of the text."""

    def __init__(self, assembly: str) -> None:
        blocks: list[tuple[str, list[str]]] = []
        for line in assembly.splitlines():
            if m := re.match(r"(BB\d+):", line):
                blocks.append((m[1], []))
            elif blocks and (m := re.match(r"\s+([a-z_0-9]+[^;]*)", line)):
                blocks[-1][1].append(m[1].strip())
        index = {name: i for i, (name, _) in enumerate(blocks)}
        last: dict[int, int] = {}  # two branches back to one block are one loop
        for i, (_, code) in enumerate(blocks):
            for instruction in code:
                m = re.match(r"s_c?branch\S*\s+(BB\d+)", instruction)
                if m and index.get(m[1], len(blocks)) <= i:
                    last[index[m[1]]] = i
        self.code = [code for _, code in blocks]
        self.loops = sorted(last.items())

    def inner(self, loop: tuple[int, int]) -> list[tuple[int, int]]:
        return [(a, b) for a, b in self.loops if (a, b) != loop and loop[0] <= a and b <= loop[1]]

    def own(self, loop: tuple[int, int]) -> dict[str, int]:
        """Instructions of one pass by kind, without the loops in it; fma: multiply-adds, two in some pairs."""
        inner = self.inner(loop)
        code = [
            instruction
            for i in range(loop[0], loop[1] + 1)
            if not any(a <= i <= b for a, b in inner)
            for instruction in self.code[i]
        ]
        total = {kind: sum(bool(re.match(start, c)) for c in code) for kind, start in KINDS.items()}
        fma = r"\bv_(?:dual_)?(?:fma|fmac|fmaak|fmamk|fma_mix)_f32"
        return total | {"fma": sum(len(re.findall(fma, c)) for c in code)}


def count_loop(assembly: str, trips: list[int]) -> dict[str, int] | None:
    """Instructions of one pass of the outermost loop; those of the loops in it count `trips` times, from outside in."""
    found = Loops(assembly)
    if not found.loops:
        return None
    outer = max(found.loops, key=lambda loop: loop[1] - loop[0])
    total = dict.fromkeys((*KINDS, "fma"), 0)
    for loop in [outer, *found.inner(outer)]:
        depth = sum(a <= loop[0] and loop[1] <= b for a, b in found.inner(outer))
        if depth > len(trips):
            return None
        for kind, count in found.own(loop).items():
            total[kind] += count * int(np.prod(trips[:depth]))
    return total


def weight_layout(shader: str) -> Layout:
    """Of the weights that a matmul or matvec shader reads."""
    return LAYOUTS[re.fullmatch(r"mat(?:mul|vec)_(?:hybrid_)?(\w+)", shader)[1]]


def inner_loops(shader: str, constants: dict, assembly: str) -> dict[str, dict[str, float]]:
    """Instructions by kind for each multiply-add (matvec: weight; delta_rule: element of the state; softmax: score) and
    lane. Empty where the loops are not those of the source.
    """
    c = constants
    parts: dict[str, tuple[int, dict[str, int] | None]] = {}
    if shader in ("attention_f16", "attention_f32"):
        found = Loops(assembly)
        scores, sums = c["TQ"] * c["KP"], c["TQ"] * c["DV"]
        products = [loop for loop in found.loops if found.own(loop)["fma"] >= 4 * min(scores, sums)]
        around = [loop for loop in found.loops if set(products) < {loop, *found.inner(loop)}]
        if len(products) == 2 and len(around) == 1:
            qk, pv = map(found.own, products)
            parts = {"qk": (4 * scores, qk), "pv": (16 * sums, pv), "softmax": (scores, found.own(around[0]))}
    elif shader.startswith("matmul_"):
        layout = weight_layout(shader)
        # Of the four turns that the hybrid form counts through, a wave computes in one; in the others it jumps.
        trips = [layout.unit_weights // 32, *([1] if "hybrid" in shader else []), 4]
        parts["loop"] = layout.unit_weights * c["TM"] * c.get("TN", 1), count_loop(assembly, trips)
    elif shader.startswith("matvec_"):
        layout = weight_layout(shader)
        parts["loop"] = c["TN"] * layout.unit_weights, count_loop(assembly, [layout.unit_weights // 32, 4])
    elif shader == "delta_rule":
        parts["loop"] = c["ROWS"] * c["Dk"] // c["LANES"], count_loop(assembly, [])
    return {
        name: {kind: round(counts[kind] / per_pass, 4) for kind in KINDS}
        for name, (per_pass, counts) in parts.items()
        if counts and (name == "softmax" or per_pass <= counts["fma"] < 4 * per_pass)
    }
