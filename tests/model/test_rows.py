"""Rows that run together, of which the first are accepted: what the cache holds then has the bits of plain decoding."""

import itertools

import numpy as np
import pytest

import vkprefill
from tests.reference.fixtures import model_path
from tests.shaders.run_kernel import PROFILES
from vkprefill.engine.cache import Cache
from vkprefill.engine.capture import AttentionCapture
from vkprefill.engine.kept_rows import KEPT
from vkprefill.engine.model import Model
from vkprefill.engine.step_input import Best

START = 20  # tokens of the prompt before
TEXT = [5, 77, 130, 9, 9, 201, 44, 3, 118, 60, 2, 250, 31, 8, 99, 17, 180]
WRONG = [0, 1, 4, 6, 7, 10, 11, 12]  # drafts that are never in TEXT


@pytest.fixture(params=["tiny-b-f32", "tiny-c-q4km", "tiny-d-mixed", "mtp-b-q4km", "built-in"])
def model(request, load_model):
    kv_type = "f16" if request.param == "built-in" else "f32"
    return load_model(request.param, kv_type=kv_type, max_context=4096)


def holds(cache: Cache) -> list[np.ndarray]:
    """All that a cache remembers: tokens, positions, keys and values of each layer, states."""
    pool, length = cache.pool, len(cache)
    found = [np.array(cache.token_ids), np.array(cache.positions), np.array([cache.next_position])]
    for layer in pool.kv.values():
        for buffer, keys in (layer.keys, True), (layer.values, False):
            found.append(np.concatenate([pool._read_page(buffer, page, keys) for page in cache.pages])[:length])
    snapshot = cache.snapshot(on_host=True)
    return [*found, snapshot.state]


def assert_same(got: Cache, want: Cache) -> None:
    for one, other in zip(holds(got), holds(want), strict=True):
        assert np.array_equal(one, other)


def run(model: Model, cache: Cache, token_ids: list[int]) -> np.ndarray:
    """Logits [rows, V] of rows that are still to be decided on."""
    runner = model.runner
    return runner.run_rows(token_ids, cache, lambda: np.stack([runner.logits(i) for i in range(len(token_ids))]))


def after(model: Model, prompt: list[int], positions=None) -> Cache:
    cache = model.new_cache()
    model.extend(prompt, cache, positions=positions)
    return cache


def decoded(model: Model, cache: Cache, token_ids: list[int]) -> np.ndarray:
    return np.stack([model.decode(token_id, cache) for token_id in token_ids])


def run_round(model: Model, cache: Cache, done: int, num_drafts: int, accepted: int) -> np.ndarray:
    """A token and drafts of which so many are right; logits of the rows accepted."""
    rows = [*TEXT[done : done + accepted], *WRONG[: 1 + num_drafts - accepted]]
    logits = run(model, cache, rows)
    model.runner.accept(cache, accepted)
    return logits[:accepted]


def assert_goes_on(model: Model, cache: Cache, plain: Cache, done: int, want: np.ndarray) -> None:
    """A round further, of which two rows are accepted, the cache is `plain`, whose logits were `want`. Closes both."""
    assert np.array_equal(run_round(model, cache, done, 2, 2), want[done:])
    assert_same(cache, plain)
    for one in (plain, cache):
        one.close()


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 4])
def test_every_pattern(model, prompt, num_drafts):
    """Of two rounds: 0 to all rows accepted; then a token decoded plainly, and a prefill."""
    plain = [after(model, prompt[:START]) for _ in range(2 * num_drafts + 3)]
    rows = decoded(model, plain[-1], TEXT[: 2 * num_drafts + 3])
    for count, cache in enumerate(plain[:-1]):
        decoded(model, cache, TEXT[: count + 1])
    for pattern in itertools.product(range(num_drafts + 2), repeat=2):
        cache, done = after(model, prompt[:START]), 0
        for accepted in pattern:
            got = run_round(model, cache, done, num_drafts, accepted)
            assert np.array_equal(got, rows[done : done + accepted]), pattern
            done += accepted
            assert len(cache) == START + done
        assert np.array_equal(model.decode(TEXT[done], cache), rows[done]), pattern
        assert_same(cache, plain[done])
        cache.close()
    for cache in plain:
        cache.close()


@pytest.mark.parametrize("count", range(1, KEPT + 1))
def test_bits_of_each_row(model, prompt, count):
    """Any number of rows, twice, over a past with gaps; the candidates too."""
    positions = [3 * i for i in range(START)]  # as sparse prefill leaves them
    plain, cache = (after(model, prompt[:START], positions) for _ in range(2))
    want = decoded(model, plain, TEXT[:count])
    assert np.array_equal(run(model, cache, TEXT[:count]), want)
    model.runner.accept(cache, count)
    assert_same(cache, plain)
    best, ids, runner = Best(5, 0.5, [3, 4]), TEXT[count : 2 * count], model.runner

    def read() -> np.ndarray:
        return np.stack([runner.candidates(best, row) for row in range(len(ids))])

    got = runner.run_rows(ids, cache, read, best=best)
    for row, token_id in enumerate(ids):
        one = Best(best.count, best.penalty, [*best.penalised, *ids[1 : row + 1]])
        assert np.array_equal(got[row], model.decode_candidates(token_id, plain, one))
    for one in (plain, cache):
        one.close()


@pytest.mark.parametrize("profile", ["amd", "nvidia", "unknown"])
def test_bits_with_the_kernels_of_gpus(prompt, monkeypatch, profile):
    """Their forms and tiles, keys in several parts."""
    monkeypatch.setattr("vkprefill.vulkan.device.profile_for", lambda info: PROFILES[profile])
    with vkprefill.load(model_path("tiny-c-q4km"), max_context=2048, kv_type="f16") as model:
        plain, cache = (after(model, prompt) for _ in range(2))
        want = decoded(model, plain, TEXT[:15])
        done = 0
        for count, accepted in ((1, 1), (2, 1), (3, 3), (4, 0), (5, 2), (8, 8)):
            assert np.array_equal(run(model, cache, TEXT[done : done + count]), want[done : done + count]), count
            model.runner.accept(cache, accepted)
            done += accepted
        assert_same(cache, plain)
        for one in (plain, cache):
            one.close()


def random_use(model: Model, prompt: list[int], seed: int, few: bool) -> list[list[np.ndarray]]:
    """What two caches hold after each of many uses. few: rows are run together; otherwise decoded one by one."""
    rng, caches, seen = np.random.default_rng(seed), [model.new_cache(), model.new_cache()], []
    snapshots = [cache.snapshot() for cache in caches]
    for _ in range(30):
        which = int(rng.integers(2))
        cache, use = caches[which], rng.choice(["rows", "rows", "rows", "decode", "prefill", "snapshot", "restore"])
        count, accepted, ids = (
            int(rng.integers(1, KEPT + 1)),
            int(rng.integers(0, 3)),
            rng.integers(0, 250, 40).tolist(),
        )
        accepted = min(accepted, count)
        if use == "rows" and few:
            run(model, cache, ids[:count])
            if rng.random() < 0.8:
                model.runner.accept(cache, accepted)
        elif use == "rows":
            if rng.random() < 0.8:
                for token_id in ids[:accepted]:
                    model.decode(token_id, cache)
        elif use == "decode":
            model.decode(ids[0], cache, AttentionCapture() if count > 4 else None)
        elif use == "prefill":
            first = cache.next_position + accepted
            model.extend(ids[:count], cache, positions=range(first, first + 2 * count, 2))
        elif use == "snapshot":
            snapshots[which] = cache.snapshot()
        elif not snapshots[which].stale:
            cache.restore(snapshots[which])
        seen.append([len(cache), *(holds(cache) if rng.random() < 0.3 and len(cache) else [])])
    seen += [holds(cache) for cache in caches if len(cache)]
    for cache in caches:
        cache.close()
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_among_other_uses_of_two_caches(model, prompt, seed):
    got, want = (random_use(model, prompt, seed, few) for few in (True, False))
    for one, other in zip(got, want, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def drop_by_snapshot(model: Model, cache: Cache, prompt: list[int]) -> None:
    cache.snapshot().free()


def drop_by_another_cache(model: Model, cache: Cache, prompt: list[int]) -> None:
    model.prefill(prompt[:10])


def drop_by_a_prefill_undone(model: Model, cache: Cache, prompt: list[int]) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.prefill(prompt, cache=cache, progress=stop)


def drop_by_copy(model: Model, cache: Cache, prompt: list[int]) -> None:
    cache.copy_rows([0, 1]).close()


DROPS = [drop_by_snapshot, drop_by_another_cache, drop_by_a_prefill_undone, drop_by_copy]


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("accepted", [0, 2])
def test_any_other_use_drops_rows_that_are_not_accepted(tiny, prompt, drop, accepted):
    """Those of a round before stay."""
    plain, cache = (after(tiny, prompt[:START]) for _ in range(2))
    want = np.stack([tiny.decode(token_id, plain) for token_id in TEXT[: accepted + 2]])
    if accepted:
        run_round(tiny, cache, 0, 3, accepted)
    run(tiny, cache, WRONG[:3])
    drop(tiny, cache, prompt)
    with pytest.raises(vkprefill.RequestError, match="accept: 1 rows, of this cache 0 have run"):
        tiny.runner.accept(cache, 1)
    assert len(cache) == START + accepted
    assert_goes_on(tiny, cache, plain, accepted, want)


def test_what_cannot_be_accepted(tiny, prompt):
    cache, other = (after(tiny, prompt[:START]) for _ in range(2))
    runner = tiny.runner
    with pytest.raises(vkprefill.RequestError, match=f"token_ids: 9 rows, wanted at most {KEPT}"):
        run(tiny, cache, TEXT[: KEPT + 1])
    run(tiny, cache, TEXT[:3])
    for whose, count in ((cache, 4), (cache, -1), (other, 1)):
        with pytest.raises(vkprefill.RequestError, match="^accept: "):
            runner.accept(whose, count)
    runner.accept(cache, 3)
    with pytest.raises(vkprefill.RequestError, match="accept: 1 rows, of this cache 0 have run"):
        runner.accept(cache, 1)
    for one in (cache, other):
        one.close()


def test_pages_of_rows_not_accepted_go_back(tiny, prompt):
    """When the next thing runs: until then they might be accepted."""
    cache = after(tiny, (prompt * 2)[:254])
    run(tiny, cache, TEXT[:4])
    assert len(cache.pages) == 2
    tiny.runner.accept(cache, 2)
    assert len(cache.pages) == 2
    tiny.logits([1])
    assert len(cache.pages) == 1
    cache.close()


@pytest.mark.parametrize("parts", [(1, 1, 1), (2, 3), (1, 0, 4), (8,), (5, 3), (1, 1, 1, 1, 1, 1, 1, 1)])
def test_accepted_in_parts(tiny, prompt, parts):
    """After each part the cache is that of plain decoding; a look at it decides that no more rows are accepted."""
    for looked_at in range(len(parts)):
        plain, cache = (after(tiny, prompt[:START]) for _ in range(2))
        run(tiny, cache, TEXT[:KEPT])
        for part in parts[: looked_at + 1]:
            tiny.runner.accept(cache, part)
        decoded(tiny, plain, TEXT[: sum(parts[: looked_at + 1])])
        assert_same(cache, plain)
        with pytest.raises(vkprefill.RequestError, match="accept: 1 rows, of this cache 0 have run"):
            tiny.runner.accept(cache, 1)
        for one in (cache, plain):
            one.close()


def test_pages_over_a_boundary_accepted_in_parts(tiny, prompt):
    tokens = (prompt * 2)[:254]
    plain, cache = (after(tiny, tokens) for _ in range(2))
    run(tiny, cache, TEXT[:6])
    for _ in range(6):
        tiny.runner.accept(cache, 1)
    decoded(tiny, plain, TEXT[:6])
    assert_same(cache, plain)
    assert np.array_equal(run_round(tiny, cache, 6, 2, 2), decoded(tiny, plain, TEXT[6:8]))
    for one in (cache, plain):
        one.close()


def test_one_load_and_one_store_of_the_states(tiny):
    """A round has as many dispatches as a step of decode, of which one for each layer binds the recurrent state."""
    runner, layers = tiny.runner, len(tiny.config.linear_layers)
    for rows in (1, 2, 4, 8):
        program = runner.rows_program(rows)
        shaders = [shader for shader, _ in program.dispatches]
        assert sum(shader.startswith("delta_rows") for shader in shaders) == layers
        assert not {"copy", "delta_rule"} & set(shaders)
        if tiny.device.has_barrier:
            assert program.num_submissions == 1
