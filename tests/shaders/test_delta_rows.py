"""delta_inputs, delta_rows and commit: the delta net of a few rows, of which the first are accepted later."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from tests.reference import activations, conv, norm
from tests.reference import delta_rule as reference
from tests.shaders.run_kernel import ELEMENTWISE, PROFILES, REDUCTION, KernelRun, check, using_profile
from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import StateOffsets
from vkprefill.engine.kept_rows import KEPT, kept_layer_size
from vkprefill.engine.step import StepWord

EPS = 1e-6
OTHER = 7.0  # what stands in a buffer around a layer's part, and in rows that nothing has been kept in
BEFORE, AFTER = 24, 12  # floats around it


@dataclass(frozen=True)
class Shape:
    hk: int
    hv: int
    dim: int

    @property
    def heads(self) -> kernels.DeltaHeads:
        return kernels.DeltaHeads(self.hk, self.hv, self.dim, self.dim)

    @property
    def channels(self) -> int:
        return (2 * self.hk + self.hv) * self.dim

    @property
    def kept(self) -> int:
        return kept_layer_size(self.channels, self.hv)


SHAPES = [Shape(2, 2, 16), Shape(1, 3, 32), Shape(2, 6, 64), Shape(1, 2, 128), Shape(1, 1, 256)]


@dataclass
class Kept:
    """A layer's kept rows: raw [KEPT, C], qkv [2 KEPT, C], gates [2 KEPT, Hv, 2]."""

    raw: np.ndarray
    qkv: np.ndarray
    gates: np.ndarray

    @classmethod
    def of(cls, shape: Shape, values: np.ndarray | None = None) -> "Kept":
        """values: float32 of the layer's part of the buffer."""
        values = np.full(shape.kept, OTHER, np.float32) if values is None else values
        raw, qkv, gates = np.split(values, np.cumsum([KEPT * shape.channels, 2 * KEPT * shape.channels]))
        return cls(
            raw.reshape(KEPT, -1).copy(), qkv.reshape(2 * KEPT, -1).copy(), gates.reshape(2 * KEPT, -1, 2).copy()
        )

    @property
    def values(self) -> np.ndarray:
        return np.concatenate([a.reshape(-1) for a in (self.raw, self.qkv, self.gates)]).astype(np.float32)


def random_rows(seed: int, count: int, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """qkv [count, C] of unit queries and keys, gates [count, Hv, 2] with log decays down to -20."""
    rng = np.random.default_rng(seed)
    qk = rng.standard_normal((count, 2 * shape.hk, shape.dim))
    qk /= np.linalg.norm(qk, axis=-1, keepdims=True)
    v = rng.standard_normal((count, shape.hv * shape.dim))
    log_decay = -np.exp(rng.uniform(np.log(1e-4), np.log(20), (count, shape.hv)))
    gates = np.stack([log_decay, rng.uniform(0, 1, (count, shape.hv))], axis=-1)
    return np.concatenate([qk.reshape(count, 2 * shape.hk * shape.dim), v], axis=1).astype(np.float32), gates.astype(
        np.float32
    )


def expected_rows(qkv: np.ndarray, gates: np.ndarray, state: np.ndarray, shape: Shape):
    """Outputs [count, Hv, Dv] and state after the rows, in float64."""
    q, k, v = np.split(qkv.astype(float), np.array([1, 2]) * shape.hk * shape.dim, axis=1)
    q, k, v = (a.reshape(len(a), a.shape[1] // shape.dim, shape.dim) for a in (q, k, v))
    scale = reference.query_scale(shape.dim)
    log_decay, beta = np.moveaxis(gates.astype(float), -1, 0)
    return reference.recurrent(q / scale, k, v, log_decay, beta, state.astype(float))


def around(values: np.ndarray) -> np.ndarray:
    return np.concatenate([np.full(BEFORE, OTHER), np.ravel(values), np.full(AFTER, OTHER)]).astype(np.float32)


def inside(whole: np.ndarray) -> np.ndarray:
    assert (whole[:BEFORE] == OTHER).all() and (whole[-AFTER:] == OTHER).all(), "wrote outside the layer's part"
    return whole[BEFORE:-AFTER]


def words(waiting: int, kept_row: int) -> dict[StepWord, int]:
    return {StepWord.WAITING: waiting, StepWord.KEPT_ROW: kept_row}


def run_rows(device, shape: Shape, kept: Kept, state, tokens: int, waiting: int, kept_row: int, num_rows=None):
    """delta_rows -> outputs [tokens, Hv, Dv], state."""
    run = KernelRun(device, tokens, num_rows, words=words(waiting, kept_row))
    kernels.delta_rows(
        run.program,
        run.input("kept", around(kept.values), by_row=False),
        run.in_out("state", around(state), by_row=False),
        run.output("o", shape.hv * shape.dim),
        StateOffsets(0, BEFORE, BEFORE),
        shape.heads,
    )
    out = run.finish()
    return out["o"].reshape(tokens, shape.hv, shape.dim), inside(out["state"]).reshape(state.shape)


def random_state(shape: Shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((shape.hv, shape.dim, shape.dim)).astype(np.float32)


def check_rows(device, shape: Shape, tokens: int, waiting: int, kept_row: int) -> None:
    old, new, state = random_rows(1, waiting, shape), random_rows(2, tokens, shape), random_state(shape)
    kept, old_row = Kept.of(shape), KEPT - kept_row
    kept.qkv[old_row:][:waiting], kept.gates[old_row:][:waiting] = old
    kept.qkv[kept_row:][:tokens], kept.gates[kept_row:][:tokens] = new
    o, stored = run_rows(device, shape, kept, state, tokens, waiting, kept_row, KEPT)
    label = f"delta_rows {shape}, {tokens} rows after {waiting} that wait"
    _, committed = expected_rows(*old, state, shape)
    expected, _ = expected_rows(*new, committed, shape)
    check(f"{label}, outputs", o, expected, REDUCTION)
    check(f"{label}, state", stored, committed, REDUCTION)
    if not waiting:
        np.testing.assert_array_equal(stored, state)


@pytest.mark.parametrize(("tokens", "waiting"), [(1, 0), (1, 1), (2, 3), (4, 1), (5, 8), (8, 0), (8, 8)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows(device, shape, tokens, waiting):
    check_rows(device, shape, tokens, waiting, KEPT if tokens % 2 else 0)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dim", [16, 128])
def test_tiles_of_every_profile(device, profile, dim):
    with using_profile(device, profile):
        check_rows(device, Shape(2, 4, dim), 3, 2, 0)


def put(kept: Kept, at: int, rows: tuple[np.ndarray, np.ndarray]) -> None:
    kept.qkv[at:][: len(rows[0])], kept.gates[at:][: len(rows[0])] = rows


def one_by_one(device, shape: Shape, rows, state):
    """Outputs and states after each row, one row a run."""
    kept, outputs, states = Kept.of(shape), [], []
    for t in range(len(rows[0])):
        put(kept, KEPT * (t % 2), [a[t : t + 1] for a in rows])
        o, state = run_rows(device, shape, kept, state, 1, min(t, 1), KEPT * (t % 2))
        outputs.append(o[0])
        states.append(state)  # before row t
    return outputs, states


@pytest.mark.parametrize("profile", ["cpu", "amd", "unknown"])
def test_bits_do_not_depend_on_how_rows_run(device, profile):
    """Runs of 1 to 8 rows of which some are accepted, against one row a run."""
    shape, rng = Shape(1, 2, 64), np.random.default_rng(4)
    rows = random_rows(3, 40, shape)
    with using_profile(device, profile):
        outputs, states = one_by_one(device, shape, rows, random_state(shape))
        for _ in range(4):
            kept, state, done, waiting, at = Kept.of(shape), random_state(shape), 0, 0, 0
            while done < 30:
                count = int(rng.integers(1, KEPT + 1))
                put(kept, at, [a[done : done + count] for a in rows])
                o, state = run_rows(device, shape, kept, state, count, waiting, at)
                np.testing.assert_array_equal(o, outputs[done : done + count])
                np.testing.assert_array_equal(state, states[done])
                waiting = int(rng.integers(0, count + 1))
                done, at = done + waiting, KEPT - at


@pytest.mark.parametrize("waiting", [1, 2, 3, 8])
@pytest.mark.parametrize("profile", ["cpu", "amd"])
def test_commit_of_all_layers(device, profile, waiting):
    """The same bits as in a run; nothing between the layers' parts is touched."""
    shape, layers, gap = Shape(1, 3, 32), 3, 8
    rng = np.random.default_rng(waiting)
    kept, conv_states, states = [], [], []
    for layer in range(layers):
        one = Kept.of(shape)
        put(one, KEPT, random_rows(layer, KEPT, shape))
        one.raw[:] = rng.standard_normal(one.raw.shape)
        kept.append(one)
        conv_states.append(rng.standard_normal((3, shape.channels)).astype(np.float32))
        states.append(random_state(shape, layer))
    state_parts = [np.concatenate([np.ravel(c), np.ravel(s)]) for c, s in zip(conv_states, states, strict=True)]
    conv_at = [BEFORE + i * (state_parts[0].size + gap) for i in range(layers)]
    kept_at = [BEFORE + i * (shape.kept + gap) for i in range(layers)]
    places = [StateOffsets(c, c + conv_states[0].size, k) for c, k in zip(conv_at, kept_at, strict=True)]
    between = np.full(gap, OTHER, np.float32)
    with using_profile(device, profile):
        run = KernelRun(device, 1, words={StepWord.NUM_TOKENS: 0, **words(waiting, 0)})
        kernels.commit(
            run.program,
            run.input("kept", around(np.concatenate([np.append(k.values, between) for k in kept])), by_row=False),
            run.in_out("state", around(np.concatenate([np.append(s, between) for s in state_parts])), by_row=False),
            run.scratch("o", 1, shape.hv * shape.dim),
            places,
            shape.heads,
        )
        after = inside(run.finish()["state"]).reshape(layers, -1)
        assert (after[:, -gap:] == OTHER).all()
        for layer in range(layers):
            conv_state, state = np.split(after[layer, :-gap], [conv_states[0].size])
            want = conv.next_state(kept[layer].raw[:waiting], conv_states[layer])
            np.testing.assert_array_equal(conv_state.reshape(3, -1), want)
            _, want = run_rows(device, shape, kept[layer], states[layer], 1, waiting, 0)
            np.testing.assert_array_equal(state.reshape(want.shape), want)


# -- delta_inputs ------------------------------------------------------------------------------------------------------


def run_inputs(device, shape: Shape, projections, vectors, conv_state, kept: Kept, waiting: int, kept_row: int):
    """-> convolution state [3, C], Kept."""
    run = KernelRun(device, len(projections[0]), KEPT, words=words(waiting, kept_row))
    taps, dt, ssm_a = vectors
    kernels.delta_inputs(
        run.program,
        tuple(run.input(name, values) for name, values in zip(("raw", "alpha", "beta"), projections, strict=True)),
        kernels.DeltaVectors(run.weight("taps", taps), run.weight("dt", dt), run.weight("ssm_a", ssm_a)),
        run.in_out("state", around(conv_state), by_row=False),
        run.in_out("kept", around(kept.values), by_row=False),
        StateOffsets(BEFORE, 0, BEFORE),
        shape.heads,
        eps=EPS,
    )
    out = run.finish()
    return inside(out["state"]).reshape(3, -1), Kept.of(shape, inside(out["kept"]))


def random_projections(seed: int, count: int, shape: Shape) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    size = np.exp(rng.uniform(-8, 2, (count, shape.channels // shape.dim, 1)))  # heads from below sqrt(eps) up
    raw = rng.standard_normal((count, shape.channels // shape.dim, shape.dim)) * size
    alpha, beta = rng.standard_normal((2, count, shape.hv)) * 3
    return tuple(a.astype(np.float32) for a in (raw.reshape(count, shape.channels), alpha, beta))


def random_vectors(shape: Shape) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(shape.channels)
    taps, dt = rng.standard_normal((shape.channels, 4)), rng.uniform(-7, 3, shape.hv)
    return tuple(a.astype(np.float32) for a in (taps, dt, -np.exp(rng.uniform(-7, 3, shape.hv))))


@pytest.mark.parametrize(("tokens", "waiting"), [(1, 0), (1, 1), (2, 2), (3, 3), (4, 8), (7, 5), (8, 0), (8, 8)])
@pytest.mark.parametrize("shape", [*SHAPES, Shape(3, 1, 36), Shape(1, 1, 4)], ids=str)
def test_inputs(device, shape, tokens, waiting):
    old, new, (taps, dt, ssm_a) = (
        random_projections(1, waiting, shape)[0],
        random_projections(2, tokens, shape),
        random_vectors(shape),
    )
    before = np.random.default_rng(3).standard_normal((3, shape.channels)).astype(np.float32)
    kept, kept_row = Kept.of(shape), KEPT * (tokens % 2)
    kept.raw[:waiting] = old
    state, after = run_inputs(device, shape, new, (taps, dt, ssm_a), before, kept, waiting, kept_row)
    committed = conv.next_state(old, before)
    np.testing.assert_array_equal(state, committed)

    raw, alpha, beta = (a.astype(float) for a in new)
    active = conv.activate(conv.causal_conv(raw, taps.astype(float), committed.astype(float)))
    qk, v = np.split(active, [2 * shape.hk * shape.dim], axis=1)
    qk = norm.l2_norm(qk.reshape(tokens, -1, shape.dim), EPS)
    label, mine = f"delta_inputs {shape}, {tokens} rows after {waiting}", slice(kept_row, kept_row + tokens)
    got = after.qkv[mine].reshape(tokens, -1, shape.dim)
    check(f"{label}, q", got[:, : shape.hk] * np.sqrt(shape.dim), qk[:, : shape.hk], ELEMENTWISE)
    check(f"{label}, k", got[:, shape.hk : 2 * shape.hk], qk[:, shape.hk :], ELEMENTWISE)
    check(f"{label}, v", got[:, 2 * shape.hk :].reshape(v.shape), v, ELEMENTWISE)
    decay = reference.log_decay(reference.softplus_alpha(alpha, dt.astype(float)), ssm_a.astype(float))
    check(f"{label}, log decay", after.gates[mine][..., 0], decay, ELEMENTWISE)
    check(f"{label}, beta", after.gates[mine][..., 1], activations.sigmoid(beta), ELEMENTWISE)
    np.testing.assert_array_equal(after.raw[:tokens], new[0])

    kept.raw[:tokens], kept.qkv[mine], kept.gates[mine] = after.raw[:tokens], after.qkv[mine], after.gates[mine]
    np.testing.assert_array_equal(after.values, kept.values, "other rows stay")


@pytest.mark.parametrize("profile", ["cpu", "amd"])
def test_bits_of_inputs_do_not_depend_on_how_rows_run(device, profile):
    """All ways to cut six rows into runs, each accepted in full after a longer run was accepted in part."""
    shape = Shape(1, 2, 32)
    rows, vectors, start = random_projections(5, 6, shape), random_vectors(shape), np.ones((3, shape.channels))
    with using_profile(device, profile):
        _, whole = run_inputs(device, shape, rows, vectors, start, Kept.of(shape), 0, 0)
        for cuts in itertools.product([False, True], repeat=5):
            state, kept, waiting, done, at = start, Kept.of(shape), 0, 0, 0
            for end in [*(i + 1 for i in range(5) if cuts[i]), 6]:
                part = [a[done:] for a in rows]  # all that is left: only the first are accepted
                state, kept = run_inputs(device, shape, part, vectors, state, kept, waiting, at)
                np.testing.assert_array_equal(kept.qkv[at:][: 6 - done], whole.qkv[done:6])
                np.testing.assert_array_equal(kept.gates[at:][: 6 - done], whole.gates[done:6])
                waiting, done, at = end - done, end, KEPT - at
