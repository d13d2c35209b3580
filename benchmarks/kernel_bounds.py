"""How long a Radeon 780M's resources need for one dispatch, from instruction counts and bytes; nothing is measured.

For each dispatch the time that each resource needs is worked out, as if it were the only one; the longest binds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tools.amd.loops import weight_layout
from tools.amd.recording import Dispatch
from vkprefill.engine.memory import MIXTURE_CHUNK
from vkprefill.vulkan.shaders import load_shader

CHUNK = 512  # tokens of a prefill's run


CLOCK = 2.7e9  # Hz
COMPUTE_UNITS = 12
SIMDS = 24  # of them; each issues one instruction of a wave of 32 in a cycle, a wave of 64 takes two
LDS_BYTES = COMPUTE_UNITS * 128  # that shared memory gives in a cycle
CACHE_BYTES = COMPUTE_UNITS * 64  # that the first-level caches give vector loads in a cycle
MEMORY_BYTES = 90e9  # in a second, of two channels of DDR5-5600
L2_BYTES = 2 << 20  # activations of a dispatch that fit are taken to stay in it
LAUNCH_S = 3e-6  # from one dispatch to the next that depends on it
HALVES = r"matmul_hybrid_(half|dot2)_"  # shaders that read activations as halves
RESOURCES = ("issue", "lds", "cache", "memory")


@dataclass(frozen=True)
class Cost:
    """Seconds that each resource needs for a dispatch. issue: vector instructions; cache: vector loads; filled: part of
    `issue` that is left where every SIMD has the same number of waves.
    """

    issue: float = 0.0
    lds: float = 0.0
    cache: float = 0.0
    memory: float = 0.0
    filled: float = 1.0

    @property
    def bound(self) -> float:
        return max(getattr(self, name) for name in RESOURCES)


def issued(waves: int, instructions: float, wave_size: int) -> dict[str, float]:
    """`issue` and `filled` of equal waves that issue so many instructions each; a wave stays on its SIMD."""
    most = math.ceil(waves / SIMDS)
    return {"issue": most * instructions * (wave_size // 32) / CLOCK, "filled": waves / SIMDS / most}


def cost(dispatch: Dispatch, compiled: dict, num_tokens: int, depth: int) -> Cost:
    """compiled: the kernel's row in the table; num_tokens of this call, after `depth` in the cache."""
    kernel = next((kernel for name, kernel in _KERNELS.items() if re.fullmatch(name, dispatch.shader)), None)
    return kernel(dispatch, compiled, num_tokens, depth) if kernel else Cost(memory=_activations(dispatch, num_tokens))


def with_counts(static: Cost, counts: dict[str, float] | None) -> Cost:
    """A cost with what was executed in place of the estimates: vector issue, passes of shared memory, and vector loads
    and stores, which take a cycle for a line of 128 bytes, or for 64 bytes of their invocations if that is more.
    """
    if counts is None:
        return static
    return replace(
        static,
        **issued(round(counts["waves"]), counts["issue"] / counts["waves"], counts["wave"]),
        lds=128 * counts["lds_passes"] / LDS_BYTES / CLOCK,
        cache=max(counts["vmem_bytes"] / CACHE_BYTES, counts["lines"] / COMPUTE_UNITS) / CLOCK,
    )


def num_waves(dispatch: Dispatch, compiled: dict, local_size: int) -> int:
    return math.prod(dispatch.workgroups) * math.ceil(local_size / compiled["wave"])


def _activation_bytes(dispatch: Dispatch, num_tokens: int) -> int:
    """What a kernel reads and writes of them: the rows in use, once for reading and once for writing. Those of experts
    are several for each of MIXTURE_CHUNK tokens.
    """
    total = 0
    for buffer, binding in zip(dispatch.buffers, load_shader(dispatch.shader).bindings, strict=True):
        if buffer.kind == "activations":
            rows = buffer.shape[0]
            if rows >= CHUNK and len(buffer.shape) > 1:
                rows = num_tokens * max(1, rows // MIXTURE_CHUNK)
            total += (binding.read + binding.write) * rows * (buffer.num_bytes // buffer.shape[0])
    return total


def _activations(dispatch: Dispatch, num_tokens: int) -> float:
    num_bytes = _activation_bytes(dispatch, num_tokens)
    return num_bytes / MEMORY_BYTES if num_bytes > L2_BYTES else 0.0


def weight_bytes(dispatch: Dispatch) -> float:
    layout, push = weight_layout(dispatch.shader), dispatch.push
    return push["rows"] * push["K"] / layout.unit_weights * layout.unit_words * 4


def matmul(dispatch: Dispatch, compiled: dict, num_tokens: int, depth: int) -> Cost:
    """Tiles of tokens are neighbours, so that those in flight read the weights once from memory and once each from the
    cache. The activations come through the scalar cache; where they do not fit into L2, each round of workgroups reads
    them again.
    """
    tiles, blocks = math.ceil(num_tokens / dispatch.constants["TM"]), dispatch.workgroups[1]
    return _tiles(dispatch, compiled, num_tokens, (tiles, blocks), blocks, weight_bytes(dispatch))


def grouped(dispatch: Dispatch, compiled: dict, num_tokens: int, depth: int) -> Cost:
    """Rows of experts that tokens choose independently, of a whole chunk: the grid has a tile for each `TM` of them and
    one for each expert. So an expert's number of rows is about Poisson's, and its last tile is short. The workgroups of
    a tile are neighbours, which read its activations from memory once; tiles of an expert follow each other.
    """
    size, count = int(dispatch.constants["TM"]), dispatch.push["experts"]
    blocks, most = dispatch.workgroups[:2]
    num_rows = (most - count) * size
    mean, share, more, tiles = num_rows / count, math.exp(-num_rows / count), 1.0, 0.0
    for rows in range(10 * num_rows // count + 10 * size):  # share: of experts with so many; more: with as many or more
        tiles += count * more * (rows % size == 1)  # a tile begins with the 1st, the TM + 1st, ...
        more, share = more - share, share * mean / (rows + 1)
    used = count * (1 - math.exp(-mean))
    return _tiles(dispatch, compiled, num_rows, (round(tiles), blocks), 1, used * weight_bytes(dispatch))


def _tiles(
    dispatch: Dispatch, compiled: dict, num_rows: int, grid: tuple[int, int], passes: int, weights: float
) -> Cost:
    """grid: tiles of rows, blocks of the matrix; passes: over the activations, at most; weights: bytes of them; each
    tile reads those of one matrix.
    """
    c, k, (tiles, blocks) = dispatch.constants, dispatch.push["K"], grid
    waves = tiles * blocks * math.ceil(c["LOCAL_SIZE"] / compiled["wave"])
    rounds = min(passes, math.ceil(waves / (SIMDS * compiled["waves"])))
    item = 2 if re.match(HALVES, dispatch.shader) else 4
    x_bytes, y_bytes = (
        item * num_rows * k,
        4 * num_rows * dispatch.push["rows"] * (2 if dispatch.push["add"] else 1),
    )
    loop = compiled["loops"]["loop"]
    products = c["TM"] * c.get("TN", 1) * k  # multiply-adds of an invocation
    moved = weights + x_bytes * (rounds if x_bytes > L2_BYTES else 1) + y_bytes
    return Cost(
        **issued(waves, loop["valu"] * products, compiled["wave"]),
        lds=16 * loop["lds"] * products * c["LOCAL_SIZE"] * tiles * blocks / LDS_BYTES / CLOCK,
        cache=weight_bytes(dispatch) * tiles / CACHE_BYTES / CLOCK,
        memory=moved / MEMORY_BYTES,
    )


def matvec(dispatch: Dispatch, compiled: dict, num_tokens: int, depth: int) -> Cost:
    """Each weight once through the cache, from memory; the activations come through the scalar cache."""
    c, k = dispatch.constants, dispatch.push["K"]
    weights = weight_bytes(dispatch) * dispatch.workgroups[1] * dispatch.workgroups[2]  # of experts, each row's own
    per_lane = compiled["loops"]["loop"]["valu"] * k * c["TM"] * c["TN"] / c["SLICES"]
    return Cost(
        **issued(num_waves(dispatch, compiled, c["ROW_LANES"] * c["SLICES"]), per_lane, compiled["wave"]),
        cache=weights / CACHE_BYTES / CLOCK,
        memory=weights / MEMORY_BYTES,
    )


def attention(dispatch: Dispatch, compiled: dict, num_tokens: int, depth: int) -> Cost:
    """Whole tiles of keys up to the last that a tile of rows sees. Workgroups of one KV head are neighbours: those in
    flight read keys and values once from memory, unless they stay in L2 anyway.
    """
    c, loops = dispatch.constants, compiled["loops"]
    tile, item = c["LOCAL_SIZE"] * c["KP"], 4 if dispatch.shader.endswith("f32") else 2
    row_tiles, tokens_of = math.ceil(num_tokens * c["H"] / c["G"] / c["TQ"]), c["TQ"] * c["G"] / c["H"]
    key_tiles = [math.ceil((depth + min(num_tokens, (i + 1) * tokens_of)) / tile) for i in range(row_tiles)]
    products = c["TQ"] * c["KP"] * c["Dh"]  # multiply-adds of an invocation in a tile, for scores and for values
    per_tile = (loops["qk"]["valu"] + loops["pv"]["valu"]) * products + loops["softmax"]["valu"] * c["TQ"] * c["KP"]
    # Bytes of shared memory: probabilities are read four at a time.
    shared = 16 * loops["pv"]["lds"] * products + 4 * loops["softmax"]["lds"] * c["TQ"] * c["KP"]
    waves_of = math.ceil(c["LOCAL_SIZE"] / compiled["wave"])
    waves = row_tiles * c["G"] * c["SPLITS"] * waves_of
    tiles = sum(key_tiles) * c["G"]  # of all workgroups
    lanes = c["LOCAL_SIZE"] * tiles
    kv_bytes = 2 * item * c["Dh"] * (depth + num_tokens)  # of a KV head
    rounds = math.ceil(row_tiles * waves_of / (SIMDS * compiled["waves"])) if kv_bytes > L2_BYTES else 1
    moved = kv_bytes * c["G"] * rounds + 8 * num_tokens * c["H"] * c["Dh"]
    return Cost(
        **issued(waves, per_tile * tiles * waves_of / waves, compiled["wave"]),
        lds=lanes * shared / LDS_BYTES / CLOCK,
        cache=2 * item * c["Dh"] * tile * tiles / CACHE_BYTES / CLOCK,
        memory=moved / MEMORY_BYTES,
    )


def delta_rule(dispatch: Dispatch, compiled: dict, num_tokens: int, depth: int) -> Cost:
    """One token after another; the state stays in registers. Every invocation loads its part of k and q, so that those
    of one head load the same again and again.
    """
    c = dispatch.constants
    waves = num_waves(dispatch, compiled, c["LOCAL_SIZE"])
    elements = c["ROWS"] * c["Dk"] / c["LANES"]  # of an invocation
    lanes = math.prod(dispatch.workgroups) * c["LOCAL_SIZE"]
    loads = 4 * (2 * c["Dk"] / c["LANES"] + 2 + c["ROWS"])  # bytes of k, q, the gates and v
    return Cost(
        **issued(waves, compiled["loops"]["loop"]["valu"] * elements * num_tokens, compiled["wave"]),
        cache=loads * lanes * num_tokens / CACHE_BYTES / CLOCK,
        memory=_activations(dispatch, num_tokens) + 8 * c["Hv"] * c["Dv"] * c["Dk"] / MEMORY_BYTES,
    )


def delta_rows(dispatch: Dispatch, compiled: dict, num_tokens: int, depth: int) -> Cost:
    """A few rows: the state comes from memory once and goes back once."""
    c = dispatch.constants
    return Cost(memory=_activations(dispatch, num_tokens) + 8 * c["Hv"] * c["Dv"] * c["Dk"] / MEMORY_BYTES)


ATTENTION = r"attention_(f16|f32|half|dot2)"
_KERNELS = {
    r"matmul_(hybrid_)?((half|dot2)_)?experts_.*": grouped,
    r"matmul_.*": matmul,
    r"matvec_.*": matvec,
    ATTENTION: attention,
    r"delta_rule": delta_rule,
    r"delta_rows": delta_rows,
}


def num_launches(dispatches: Iterable[Dispatch]) -> int:
    """Dispatches that wait for one before, as Program.dispatch finds them."""
    count, written, read = 0, set(), set()
    for d in dispatches:
        bindings = load_shader(d.shader).bindings
        reads = {b.serial for b, binding in zip(d.buffers, bindings, strict=True) if binding.read}
        writes = {b.serial for b, binding in zip(d.buffers, bindings, strict=True) if binding.write}
        if (reads | writes) & written or writes & read:
            count, written, read = count + 1, set(), set()
        written |= writes
        read |= reads
    return count
