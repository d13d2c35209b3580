"""One function for each shader: check shapes, choose constants and grid, append a dispatch to a program.

Each works on the program's `num_rows` tokens at most (the step buffer says how many are in use) and allocates nothing.
Shapes are written with the letters of ARCHITECTURE.md.
"""

from __future__ import annotations

from vkprefill.cache import KVLayer
from vkprefill.device import Buffer, Program
from vkprefill.errors import ShapeError
from vkprefill.memory import DELTA_CHUNK, PAGE, delta_chunks_shape
from vkprefill.profiles import SHUFFLE_SUBGROUPS
from vkprefill.vulkan_probe import MIN_SHARED_BYTES
from vkprefill.weights import Matrix

MAX_LOCAL_SIZE = 64
CONV_TOKENS = 32  # of an invocation: enough that the three before them, read again, do not count


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _lanes(words: int, most: int) -> int:
    """Invocations for `words` pieces of work: a power of two from 8 on."""
    lanes = 8
    while lanes < min(words, most):
        lanes *= 2
    return lanes


def _shuffle(p: Program) -> tuple[str, dict[str, int]]:
    """Suffix and further constants of the shaders that have a form with shuffles, where the profile wants it."""
    assert not p.device.profile.shuffle or p.device.info.subgroup_size in SHUFFLE_SUBGROUPS
    return ("_shuffle", {"SUBGROUP": p.device.info.subgroup_size}) if p.device.profile.shuffle else ("", {})


def _want(kernel: str, **shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Each keyword: (found shape without rows, wanted shape without rows)."""
    for name, (found, wanted) in shapes.items():
        if tuple(found) != tuple(wanted):
            raise ShapeError(f"{kernel}: {name} has shape {tuple(found)}, wanted {tuple(wanted)}")


def embedding(p: Program, token_ids: Buffer, matrix: Matrix, x: Buffer) -> None:
    """x[T, D] = rows token_ids[T] of matrix [V, D]."""
    _want("embedding", x=(x.shape[1:], (matrix.columns,)))
    local = min(32, p.device.profile.local_size)
    for part in matrix.parts:
        p.dispatch(
            f"embedding_{matrix.layout}",
            [p.step, token_ids, part.buffer, x],
            (p.num_rows, _ceil(matrix.columns // 32, local), 1),
            constants={"LOCAL_SIZE": local},
            push={
                "w_offset": part.buffer.offset // 4,
                "rows": part.rows,
                "D": matrix.columns,
                "first_row": part.first_row,
            },
        )


def rms_norm(p: Program, x: Buffer, weight: Buffer, y: Buffer, *, eps: float, last_row: bool = False) -> None:
    """y[T, D] = x / rms(x) * weight; last_row: y[0] from the last token in use only."""
    dim = x.shape[1]
    _want("rms_norm", weight=(weight.shape, (dim,)), y=(y.shape[1:], (dim,)))
    p.dispatch(
        "rms_norm",
        [p.step, x, weight, y],
        (1 if last_row else p.num_rows, 1, 1),
        constants={"LOCAL_SIZE": p.device.profile.local_size, "D": dim, "EPS": eps, "LAST_ROW": int(last_row)},
        push={"weight_offset": weight.offset},
    )


def linear(p: Program, x: Buffer, matrix: Matrix, y: Buffer, *, add: bool = False, one_row: bool = False) -> None:
    """y[T, N] = x[T, K] W^T, W [N, K]; add: y += it. One row (one token, or one_row) goes through matvec."""
    _want("linear", x=(x.shape[1:], (matrix.columns,)), y=(y.shape[-1:], (matrix.rows,)))
    single = one_row or p.num_rows == 1
    profile = p.device.profile
    form, shuffle = _shuffle(p)
    for part in matrix.parts:
        push = {
            "w_offset": part.buffer.offset // 4,
            "rows": part.rows,
            "K": matrix.columns,
            "first_row": part.first_row,
        }
        work = 2.0 * part.rows * matrix.columns
        if single:
            lanes, slices, tn = profile.matvec
            p.dispatch(
                f"matvec{form}_{matrix.layout}",
                [x, part.buffer, y],
                (_ceil(part.rows, lanes * tn), 1, 1),
                constants={"ROW_LANES": lanes, "TN": tn, "ADD": int(add)} | (shuffle or {"SLICES": slices}),
                push=push,
                work=work,
                label=f"matvec {matrix.name}",
            )
        else:
            local, tm, tn = profile.matmul
            tile = {"LOCAL_SIZE": local, "TM": tm} | ({} if profile.hybrid else {"TN": tn})
            p.dispatch(
                f"matmul{'_hybrid' if profile.hybrid else form}_{matrix.layout}",
                [p.step, x, part.buffer, y],
                (_ceil(p.num_rows, tm), _ceil(part.rows, local * tn), 1),
                constants=tile | {"ADD": int(add)} | shuffle,
                push={**push, "N": matrix.rows},
                work=work * p.num_rows,
                label=f"matmul {matrix.name}",
            )


def head_norm_rope(p: Program, x: Buffer, weight: Buffer, rope: Buffer, y: Buffer, *, heads: int, eps: float) -> None:
    """y[T, heads, Dh] = rotary(rms_norm(x per head)); x [T, heads * n], each head's Dh values at the start of its n."""
    (head_dim,) = weight.shape
    _want("head_norm_rope", y=(y.shape[1:], (heads * head_dim,)))
    if x.shape[1] % heads or x.shape[1] // heads < head_dim:
        raise ShapeError(f"head_norm_rope: rows of {x.shape[1]} do not hold {heads} heads of {head_dim}")
    p.dispatch(
        "head_norm_rope",
        [p.step, x, weight, rope, y],
        (heads, p.num_rows, 1),
        constants={
            "LOCAL_SIZE": 32,
            "HEADS": heads,
            "Dh": head_dim,
            "R": 2 * rope.shape[1],
            "STRIDE": x.shape[1],
            "HEAD_STRIDE": x.shape[1] // heads,
            "EPS": eps,
        },
        push={"weight_offset": weight.offset},
    )


def kv_store(p: Program, k: Buffer, v: Buffer, pages: Buffer, cache: KVLayer, *, kv_heads: int, kv_type: str) -> None:
    """Append k, v [T, G, Dh] to the cache's pages at slots cache_len + t."""
    _want("kv_store", v=(v.shape[1:], k.shape[1:]))
    words = k.shape[1] // 4
    local = min(words, MAX_LOCAL_SIZE)
    p.dispatch(
        f"kv_store_{kv_type}",
        [p.step, k, v, pages, cache.keys, cache.values],
        (_ceil(words, local), p.num_rows, 1),
        constants={"LOCAL_SIZE": local, "G": kv_heads, "Dh": k.shape[1] // kv_heads},
    )


def attention(
    p: Program,
    q: Buffer,
    pages: Buffer,
    cache: KVLayer,
    y: Buffer,
    split_out: Buffer,
    split_sums: Buffer,
    *,
    heads: int,
    kv_heads: int,
    scale: float,
    kv_type: str,
) -> None:
    """y[T, H, Dh] = softmax attention of q[T', H, Dh] over all cached keys up to each token's own; T' = T rounded up to
    whole row tiles (memory.ROW_TILE).

    A program of one token splits the keys over workgroups and merges; split_out [splits, H Dh] and split_sums [splits,
    H, 2] hold the parts.
    """
    _want("attention", y=(y.shape[1:], q.shape[1:]))
    head_dim, group = q.shape[1] // heads, heads // kv_heads
    words = head_dim // 4
    form, shuffle = _shuffle(p)
    most, rows, kp = p.device.profile.attention
    local, tq = max(_lanes(words, most), shuffle.get("SUBGROUP", 1)), min(rows, p.num_rows * group)
    more = 1 << ((rows // tq).bit_length() - 1)  # fewer rows leave registers for more keys in flight
    kp = min(kp * more, PAGE // local)
    splits = split_out.shape[0] if p.num_rows == 1 else 1
    assert PAGE % (local * kp) == 0, "a tile of keys lies within a page"
    # How much work it is depends on the past, which a recorded program does not know: the model bounds it for one
    # layer, so that in prefill a submission must not hold two. The one query of a decode step is little work at any
    # length.
    work = p.device.profile.submission_flop if p.num_rows > 1 else 0.0
    p.dispatch(
        f"attention{form}_{kv_type}",
        [p.step, q, pages, cache.keys, cache.values, split_out if splits > 1 else y, split_sums],
        (_ceil(p.num_rows * group, tq), kv_heads, splits),
        constants={
            "LOCAL_SIZE": local,
            "H": heads,
            "G": kv_heads,
            "Dh": head_dim,
            "SCALE": scale,
            "SPLITS": splits,
            "TQ": tq,
            "KP": kp,
            "DV": _ceil(words, local),
            **shuffle,
        },
        work=work,
    )
    if splits > 1:
        p.dispatch(
            "attention_merge",
            [p.step, split_out, split_sums, y],
            (heads, p.num_rows, 1),
            constants={"LOCAL_SIZE": _lanes(words, 32), "H": heads, "Dh": head_dim, "SPLITS": splits},
        )


def attention_rows(
    p: Program,
    q: Buffer,
    chosen: Buffer,
    pages: Buffer,
    cache: KVLayer,
    part: Buffer,
    rows: Buffer,
    *,
    heads: int,
    kv_heads: int,
    scale: float,
    kv_type: str,
) -> None:
    """rows[j, H, keys] = softmax row of each chosen query of q[T, H, Dh] over the cached keys, zero after the query.

    chosen [Q, 2]: (token of this call, row of `rows`); the step buffer says how many of the Q are in use and how many
    keys a row has. rows may be a host buffer. part [splits, Q, H, 2] is scratch.
    """
    splits, most = part.shape[:2]
    stride = rows.shape[2]
    _want(
        "attention_rows",
        chosen=(chosen.shape, (most, 2)),
        part=(part.shape[2:], (heads, 2)),
        rows=(rows.shape[1:2], (heads,)),
    )
    local = p.device.profile.local_size
    p.dispatch(
        f"attention_scores_{kv_type}",
        [p.step, q, chosen, pages, cache.keys, rows, part],
        (splits, kv_heads, most),
        constants={
            "LOCAL_SIZE": local,
            "HEADS": heads // kv_heads,
            "G": kv_heads,
            "Dh": q.shape[1] // heads,
            "SCALE": scale,
            "SPLITS": splits,
        },
        push={"stride": stride},
        work=2.0 * most * stride * q.shape[1],
    )
    p.dispatch(
        "attention_rows",
        [p.step, chosen, part, rows],
        (splits, heads, most),
        constants={"LOCAL_SIZE": local, "H": heads, "SPLITS": splits},
        push={"stride": stride},
    )


def importance(p: Program, rows: Buffer, best: Buffer, *, pool_size: int, first: bool) -> None:
    """best[Q, keys] = max over heads of the pooled rows[Q, H, keys], and of what best holds unless first."""
    _want("importance", best=(best.shape, (rows.shape[0], rows.shape[2])))
    local = p.device.profile.local_size
    p.dispatch(
        "importance",
        [p.step, rows, best],
        (_ceil(rows.shape[2], local), rows.shape[0], 1),
        constants={"LOCAL_SIZE": local, "H": rows.shape[1], "POOL": pool_size, "FIRST": int(first)},
        push={"stride": rows.shape[2]},
    )


def importance_sum(p: Program, best: Buffer, total: Buffer) -> None:
    """total[keys] += sum over the queries in use of best[Q, keys]."""
    local = p.device.profile.local_size
    p.dispatch(
        "importance_sum",
        [p.step, best, total],
        (_ceil(best.shape[1], local), 1, 1),
        constants={"LOCAL_SIZE": local},
        push={"stride": best.shape[1]},
    )


def attention_gate(p: Program, query_gate: Buffer, y: Buffer, *, heads: int) -> None:
    """y[T, H, Dh] *= sigmoid of the gates in query_gate[T, H, 2, Dh]."""
    _want("attention_gate", query_gate=(query_gate.shape[1:], (2 * y.shape[1],)))
    local = p.device.profile.local_size
    p.dispatch(
        "attention_gate",
        [p.step, query_gate, y],
        (_ceil(y.shape[1], local), p.num_rows, 1),
        constants={"LOCAL_SIZE": local, "H": heads, "Dh": y.shape[1] // heads},
    )


def swiglu(p: Program, up: Buffer, gate: Buffer) -> None:
    """gate[T, F] = silu(gate) * up."""
    _want("swiglu", up=(up.shape[1:], gate.shape[1:]))
    local = p.device.profile.local_size
    p.dispatch(
        "swiglu",
        [p.step, up, gate],
        (_ceil(gate.shape[1] // 4, local), p.num_rows, 1),
        constants={"LOCAL_SIZE": local, "F": gate.shape[1]},
    )


def causal_conv(p: Program, x: Buffer, weight: Buffer, state: Buffer, y: Buffer, *, state_offset: int) -> None:
    """y[T, C] = silu(depthwise convolution of x[T, C] over 4 tokens); the state [3, C] at state_offset is read and
    advanced.
    """
    channels = x.shape[1]
    _want("causal_conv", weight=(weight.shape, (channels, 4)), y=(y.shape[1:], (channels,)))
    local = p.device.profile.local_size
    p.dispatch(
        "causal_conv",
        [p.step, x, weight, state, y],
        (_ceil(channels, local), _ceil(p.num_rows, CONV_TOKENS), 1),
        constants={"LOCAL_SIZE": local, "TOKENS": CONV_TOKENS, "C": channels},
        push={"weight_offset": weight.offset, "state_offset": state_offset},
    )


def l2_norm(p: Program, qkv: Buffer, *, key_heads: int, key_dim: int, eps: float) -> None:
    """Normalise the query and key heads of each row of qkv[T, C] in place; queries also by 1 / sqrt(Dk)."""
    p.dispatch(
        "l2_norm",
        [p.step, qkv],
        (2 * key_heads, p.num_rows, 1),
        constants={
            "LOCAL_SIZE": _lanes(key_dim // 4, 32),
            "C": qkv.shape[1],
            "Hk": key_heads,
            "Dk": key_dim,
            "EPS": eps,
        },
    )


def delta_gates(p: Program, alpha: Buffer, beta_logits: Buffer, dt: Buffer, ssm_a: Buffer, gates: Buffer) -> None:
    """gates[T, Hv] = (log_decay, beta)."""
    heads = alpha.shape[1]
    _want(
        "delta_gates",
        beta_logits=(beta_logits.shape[1:], (heads,)),
        dt=(dt.shape, (heads,)),
        ssm_a=(ssm_a.shape, (heads,)),
        gates=(gates.shape[1:], (heads, 2)),
    )
    local = min(heads, 32)
    p.dispatch(
        "delta_gates",
        [p.step, alpha, beta_logits, dt, ssm_a, gates],
        (_ceil(heads, local), p.num_rows, 1),
        constants={"LOCAL_SIZE": local, "Hv": heads},
        push={"dt_offset": dt.offset, "a_offset": ssm_a.offset},
    )


def delta_rule(
    p: Program,
    qkv: Buffer,
    gates: Buffer,
    state: Buffer,
    o: Buffer,
    chunks: Buffer | None = None,
    *,
    state_offset: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
) -> None:
    """o[T, Hv, Dv] of the gated delta rule over qkv[T, C]; the state [Hv, Dv, Dk] at state_offset advances.

    Given chunks (scratch, see memory.delta_chunks_shape), a program of several tokens takes DELTA_CHUNK together.
    """
    _want(
        "delta_rule",
        qkv=(qkv.shape[1:], (2 * key_heads * key_dim + value_heads * value_dim,)),
        gates=(gates.shape[1:], (value_heads, 2)),
        o=(o.shape[1:], (value_heads * value_dim,)),
    )
    heads = {"Hk": key_heads, "Hv": value_heads, "Dk": key_dim, "Dv": value_dim}
    if chunks is not None and p.num_rows > 1:
        _delta_chunks(p, qkv, gates, state, o, chunks, state_offset, heads)
        return
    local, lanes, rows = p.device.profile.delta_rule
    lanes = min(lanes, key_dim // 4, p.device.info.subgroup_size)
    while local // lanes * rows > value_dim:
        local, rows = (local, rows // 2) if rows > 1 else (local // 2, rows)
    form, shuffle = _shuffle(p)
    if key_dim % (4 * lanes) or value_dim % (local // lanes * rows):
        raise ShapeError(f"delta_rule: heads of {key_dim} and {value_dim} do not divide into the profile's tiles")
    p.dispatch(
        f"delta_rule{form}",
        [p.step, qkv, gates, state, o],
        (value_dim // (local // lanes * rows), value_heads, 1),
        constants={"LOCAL_SIZE": local, **(shuffle or {"LANES": lanes, "ROWS": rows}), **heads},
        push={"state_offset": state_offset},
        work=8.0 * value_heads * value_dim * key_dim * p.num_rows,
    )


def _delta_chunks(
    p: Program,
    qkv: Buffer,
    gates: Buffer,
    state: Buffer,
    o: Buffer,
    chunks: Buffer,
    state_offset: int,
    heads: dict[str, int],
) -> None:
    """What does not depend on the state for all chunks at once, then the state through the chunks in order."""
    value_heads, key_dim, value_dim = heads["Hv"], heads["Dk"], heads["Dv"]
    num_chunks, *of_chunk = delta_chunks_shape(p.num_rows, value_heads)
    _want("delta_rule", chunks=(chunks.shape[1:], tuple(of_chunk)))
    local, tt, tn = p.device.profile.delta_chunk
    p.dispatch(
        "delta_chunk",
        [p.step, qkv, gates, chunks],
        (num_chunks, value_heads, 1),
        constants=_delta_tile(p, local, tt, tn) | heads,
        work=2.0 * DELTA_CHUNK * key_dim * value_heads * p.num_rows,
    )
    # The columns of a workgroup keep their state and a chunk of updates in shared memory.
    most = min(value_dim, MIN_SHARED_BYTES // (4 * (key_dim + DELTA_CHUNK)))
    while local * tn > most:
        local, tn = (local, tn // 2) if tn > 1 else (local // 2, tn)
    if key_dim % tt or value_dim % (local * tn):
        raise ShapeError(f"delta_rule: heads of {key_dim} and {value_dim} do not divide into the profile's tiles")
    p.dispatch(
        "delta_walk",
        [p.step, qkv, gates, chunks, state, o],
        (value_dim // (local * tn), value_heads, 1),
        constants=_delta_tile(p, local, tt, tn) | heads,
        push={"state_offset": state_offset},
        work=2.0 * (3 * key_dim + DELTA_CHUNK) * value_dim * value_heads * p.num_rows,
    )


def _delta_tile(p: Program, local: int, tt: int, tn: int) -> dict[str, int]:
    share = min(p.device.info.subgroup_size, tt, local) if p.device.profile.shuffle else 1
    return {"LOCAL_SIZE": local, "TT": tt, "TN": tn, "SHARE": share, "CHUNK": DELTA_CHUNK}


def gated_norm(p: Program, z: Buffer, weight: Buffer, o: Buffer, *, eps: float) -> None:
    """o[T, Hv, Dv] = rms_norm(o per head) * weight * silu(z)."""
    (value_dim,) = weight.shape
    _want("gated_norm", z=(z.shape[1:], o.shape[1:]))
    p.dispatch(
        "gated_norm",
        [p.step, z, weight, o],
        (o.shape[1] // value_dim, p.num_rows, 1),
        constants={
            "LOCAL_SIZE": _lanes(value_dim // 4, 32),
            "Hv": o.shape[1] // value_dim,
            "Dv": value_dim,
            "EPS": eps,
        },
        push={"weight_offset": weight.offset},
    )


def top_k(p: Program, logits: Buffer, seen: Buffer, block_best: Buffer, candidates: Buffer) -> None:
    """The best k tokens of logits[V] (k, and the penalty on `seen`, from the step buffer) into candidates[.., 2]."""
    (vocab,) = logits.shape
    blocks = _ceil(vocab, 64)
    _want("top_k", seen=(seen.shape, (_ceil(vocab, 32),)), block_best=(block_best.shape, (blocks, 2)))
    local = p.device.profile.local_size
    constants = {"LOCAL_SIZE": local, "V": vocab}
    p.dispatch("top_k_blocks", [p.step, logits, seen, block_best], (_ceil(blocks, local), 1, 1), constants=constants)
    p.dispatch("top_k", [p.step, logits, seen, block_best, candidates], (1, 1, 1), constants=constants)
