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


# Of a loop's instructions, at least so many can be read: LLVM's disassembler takes a scalar load into registers that
# include VCC, as RADV's compiler makes them, for invalid, and may lose the instruction behind it too.
READABLE = 0.98

Loop = frozenset[int]  # numbers of its basic blocks, those of the loops in it among them


class Loops:
    """The loops of a shader's assembly: the code of its basic blocks, and the loops in the order of the text.

    A loop is all blocks from which one gets back to its head, a block that every way into it leads through, without
    passing the head. Compilers put a loop's last block where they like, also before its head.
    """

    def __init__(self, assembly: str) -> None:
        blocks: list[tuple[str, list[str]]] = []
        for line in assembly.splitlines():
            if m := re.match(r"(BB\d+):", line):
                blocks.append((m[1], []))
            elif blocks and (m := re.match(r"\s+([a-z_0-9]+[^;]*)", line)):
                blocks[-1][1].append(m[1].strip())
        self.code = [code for _, code in blocks]
        number = {name: i for i, (name, _) in enumerate(blocks)}
        before: list[set[int]] = [set() for _ in blocks]  # the blocks from which one gets to a block
        for i, (_, code) in enumerate(blocks):
            for to in _successors(i, code, number):
                before[to].add(i)
        self.loops = _find_loops(before)

    def inner(self, loop: Loop) -> list[Loop]:
        return [other for other in self.loops if other < loop]

    def own(self, loop: Loop) -> dict[str, int]:
        """Instructions of one pass by kind, without the loops in it; fma: multiply-adds, two in some pairs."""
        code = [c for i in loop.difference(*self.inner(loop)) for c in self.code[i]]
        total = {kind: sum(bool(re.match(start, c)) for c in code) for kind, start in KINDS.items()}
        fma = r"\bv_(?:dual_)?(?:fma|fmac|fmaak|fmamk|fma_mix)_f32"
        dot2 = r"\bv_(?:dual_)?dot2(?:acc|c)?_f32_f16"  # two of them
        return total | {"fma": sum(len(re.findall(fma, c)) + 2 * len(re.findall(dot2, c)) for c in code)}


def _successors(block: int, code: list[str], number: dict[str, int]) -> set[int]:
    to = {number[m[1]] for c in code if (m := re.match(r"s_c?branch\S*\s+(BB\d+)", c)) and m[1] in number}
    ends = any(re.match(r"s_(branch|endpgm)\b", c) for c in code)
    return to if ends or block + 1 == len(number) else to | {block + 1}


def _find_loops(before: list[set[int]]) -> list[Loop]:
    every = set(range(len(before)))
    # Of each block, those that every way to it from the first one leads through; itself among them.
    through = [{0}, *[set(every) for _ in before[1:]]]
    changed = True
    while changed:
        changed = False
        for i in range(1, len(before)):
            found = {i}.union(set.intersection(*[through[b] for b in before[i]]) if before[i] else set())
            changed |= found != through[i]
            through[i] = found
    bodies: dict[int, set[int]] = {}
    for head in every:
        for last in before[head]:
            if head in through[last]:
                body, todo = bodies.setdefault(head, {head}), [last]
                while todo:
                    if (i := todo.pop()) not in body:
                        body.add(i)
                        todo += before[i]
    return sorted(map(frozenset, bodies.values()), key=min)


def count_loop(assembly: str, trips: list[int]) -> dict[str, int] | None:
    """Instructions of one pass of the outermost loop; those of the loops in it count `trips` times, from outside in."""
    found = Loops(assembly)
    if not found.loops:
        return None
    outer = max(found.loops, key=len)
    total = dict.fromkeys((*KINDS, "fma"), 0)
    for loop in [outer, *found.inner(outer)]:
        depth = sum(loop <= other for other in found.inner(outer))
        if depth > len(trips):
            return None
        for kind, count in found.own(loop).items():
            total[kind] += count * int(np.prod(trips[:depth]))
    return total


def weight_layout(shader: str) -> Layout:
    """Of the weights that a matmul or matvec shader reads."""
    return LAYOUTS[re.fullmatch(r"mat(?:mul|vec)_(?:hybrid_)?(?:half_|dot2_)?(?:experts_)?(\w+)", shader)[1]]


def matvec_part(rows: int) -> int:
    """Sub-blocks whose weights matvec.comp loads together for so many rows of x: its PART."""
    return 8 if rows < 4 else 16 // rows


def inner_loops(shader: str, constants: dict, assembly: str) -> dict[str, dict[str, float]]:
    """Instructions by kind for each multiply-add (delta_rule: element of the state; softmax: score) and lane. Empty
    where the loops are not those of the source.
    """
    c = constants
    parts: dict[str, tuple[int, dict[str, int] | None]] = {}
    if shader in ("attention_f16", "attention_f32", "attention_half", "attention_dot2"):
        found = Loops(assembly)
        # Multiply-adds of one pass.
        scores, sums = 4 * c["TQ"] * c["KP"] * c["KEY_WORDS"], 4 * c["TQ"] * c["DV"] * c["VALUE_KEYS"]
        products = [loop for loop in found.loops if found.own(loop)["fma"] >= min(scores, sums)]
        around = [loop for loop in found.loops if set(products) < {loop, *found.inner(loop)}]
        if len(products) == 2 and len(around) == 1:
            qk, pv = map(found.own, products)
            parts = {"qk": (scores, qk), "pv": (sums, pv), "softmax": (c["TQ"] * c["KP"], found.own(around[0]))}
    elif shader.startswith("matmul_"):
        layout = weight_layout(shader)
        # Of the four turns that the hybrid form counts through, a wave computes in one; in the others it jumps.
        trips = [layout.unit_weights // 32, *([1] if "hybrid" in shader else []), 4]
        parts["loop"] = layout.unit_weights * c["TM"] * c.get("TN", 1), count_loop(assembly, trips)
    elif shader.startswith("matvec_") and not shader.startswith("matvec_rows_"):
        # The loop over the parts of a batch; others count slices and batches, and take what is less than a batch.
        found = Loops(assembly)
        counts = [found.own(loop) for loop in found.loops]
        parts["loop"] = (
            c["TM"] * c["TN"] * 32 * matvec_part(c["TM"]),
            max(counts, key=lambda own: own["fma"], default=None),
        )
    elif shader == "delta_rule":
        parts["loop"] = c["ROWS"] * c["Dk"] // c["LANES"], count_loop(assembly, [])
    return {
        name: {kind: round(counts[kind] / per_pass, 4) for kind in KINDS}
        for name, (per_pass, counts) in parts.items()
        if counts and (name == "softmax" or READABLE * per_pass <= counts["fma"] < 4 * per_pass)
    }
