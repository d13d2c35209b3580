"""Recording: every point against the float64 reference, bits that do not change, memory that comes back."""

import numpy as np
import pytest

from tests.reference import points
from tests.reference.fixtures import FIXTURES, INTERMEDIATE, LOGITS, SOFTMAX_ROWS, model_path, rms
from tests.reference.forward import ReferenceModel
from vkprefill import Edit, OutOfMemoryError, RequestError
from vkprefill.engine.microscope import record
from vkprefill.engine.microscope.names import short_name
from vkprefill.vulkan import host_memory

CHUNK = 32
MIXTURES = ("moe-a-f32", "moe-b-q4km")  # the second with a multi-token-prediction block
SCORES = 1e-3  # absolute: scores of a few units, each a sum of products of rotated values that are 5e-4 off


@pytest.fixture(scope="module", params=[*FIXTURES, *MIXTURES])
def chunked(request, load_model):
    """Chunks of 32 tokens."""
    return load_model(request.param, kv_type="f32", prefill_chunk=CHUNK, max_context=1024)


@pytest.fixture(scope="module")
def one(load_model):
    return load_model("tiny-c-q4km", kv_type="f32", prefill_chunk=CHUNK, max_context=1024)


def expected(model, cache, **options) -> dict[str, np.ndarray]:
    """Every point of the run that a cache was recorded of."""
    reference = ReferenceModel(model_path(model.path.stem))
    return points.run(reference, cache.token_ids, cache.num_prompt, **options)


def limit(name: str, want: np.ndarray) -> float:
    """Whole-model limits of tests/reference/fixtures.py."""
    kind = short_name(name)
    if kind in ("pattern", "attn_scores"):
        return SOFTMAX_ROWS if kind == "pattern" else SCORES
    return (LOGITS if kind == "logits" else INTERMEDIATE) * rms(want)


def check(name: str, got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == np.float32 and got.shape == want.shape, f"{name}: {got.dtype} {got.shape}, wanted {want.shape}"
    masked = np.isneginf(want)
    assert np.array_equal(np.isneginf(got), masked), f"{name}: what is masked"
    got, want = np.where(masked, 0, got), np.where(masked, 0, want)
    assert np.isfinite(got).all(), f"{name}: not finite"
    error = np.abs(got - want).max()
    assert error <= limit(name, want), f"{name}: {error:.2e}, limit {limit(name, want):.2e}"


def test_every_point_of_prefill_in_chunks_and_of_decode(chunked, prompt):
    names = [name for name in chunked.points if not name.endswith("ssm_state")]
    cache = chunked.record(prompt[:70], names, tokens="all", steps="both", max_tokens=3)
    want = expected(chunked, cache)
    assert list(cache) == names and 1 <= len(cache.generated_ids) <= 3  # tiny-d-mixed ends its answer
    assert cache.tokens.tolist() == list(range(70 + len(cache.generated_ids)))
    for name in names:
        check(name, cache[name], want[name])
    check("hook_logits", cache.logits, want["hook_logits"][-1])


def test_states_at_any_step(chunked, prompt):
    """After chosen tokens of the prompt, which end runs of their own, and after each that is decoded."""
    cache = chunked.record(prompt[:40], "ssm_state", tokens=slice(33, 36), steps="both", max_tokens=2)
    reference = ReferenceModel(model_path(chunked.path.stem))
    want = points.run(reference, cache.token_ids, 34)
    chosen = [0, 1, 2, *(40 - 34 + 1 + i for i in range(len(cache.generated_ids)))]
    for name in cache:
        check(name, cache[name], want[name][chosen])


def test_gaps_between_positions(one, prompt):
    positions = np.cumsum(np.arange(50) % 5 + 1).tolist()
    names = ["resid_post", "rot_k", "pattern", "recurrence_out"]
    cache = one.record(prompt[:50], names, tokens="all", positions=positions)
    want = expected(one, cache, positions=positions)
    assert cache.positions.tolist() == positions
    for name in cache:
        check(name, cache[name], want[name])


@pytest.mark.parametrize("tokens", ["last", slice(3, 60, 7), slice(-2, None)])
def test_chosen_tokens_are_rows_of_all(one, prompt, tokens):
    names = ["hook_embed", "beta", "z", "pattern", "mlp_out", "hook_logits"]
    every = one.record(prompt[:65], names, tokens="all")
    some = one.record(prompt[:65], names, tokens=tokens)
    chosen = [64] if tokens == "last" else list(range(65))[tokens]
    assert some.tokens.tolist() == chosen
    for name, rows in some.items():
        whole = every[name]
        assert np.array_equal(rows, whole[:, chosen] if rows.ndim == 3 and "pattern" in name else whole[chosen]), name


def test_nothing_changes_for_recording(chunked, prompt):
    """Logits are the same bits while all is recorded, in prefill and decode, and afterwards."""
    plain = chunked.new_cache()
    want = chunked.prefill(prompt[:65], cache=plain)
    recorded = chunked.record(prompt[:65], list(chunked.points), tokens="all")
    assert np.array_equal(recorded.logits, want)
    recorded = chunked.record(prompt[:65], list(chunked.points), steps="decode", max_tokens=2)
    for token in recorded.generated_ids:
        last = chunked.decode(token, plain)
    assert np.array_equal(recorded.logits, last)
    plain.close()
    assert np.array_equal(chunked.prefill(prompt[:65]), want)


def test_without_a_watch_programs_are_what_they_were(one):
    """A watch that wants nothing adds no dispatch, and none is left of one that wanted all."""

    class Nobody:
        full = False

        def wants(self, name):
            return False

    forward, rows = one.runner.forward, one.runner.sizes.rows
    own = [(p, p.labels, p.dispatches) for p in (one.runner.prefill_program, one.runner.decode_program)]
    one.record([1, 2, 3], list(one.points))
    assert own == [(p, p.labels, p.dispatches) for p in (one.runner.prefill_program, one.runner.decode_program)]
    for plain, watched in (
        (forward.record_trunk("a", rows), forward.record_trunk("a", rows, watch=Nobody())),
        (forward.record_rows("a", 1), forward.record_rows("a", 1, watch=Nobody())),
    ):
        assert plain.labels == watched.labels and plain.dispatches == watched.dispatches
        assert not plain.shaders & {"record_rows", "edit_rows", "add_rows"}
        assert plain.num_submissions == watched.num_submissions


def test_what_it_took_is_given_back(one, prompt):
    one.record(prompt[:5], "resid_post")
    before = one.device.allocated.total(), len(one.runner.pool.free_pages)
    one.record(prompt[:65], ["pattern", "resid_post"], tokens="all", steps="both", max_tokens=2)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.record(prompt[:65], ["pattern", "resid_post"], progress=stop)
    assert (one.device.allocated.total(), len(one.runner.pool.free_pages)) == before


def test_a_model_of_halves_is_recorded_in_full(load_model, prompt):
    """Products of prefill are float32 while points are looked at."""
    options = {"kv_type": "f32", "prefill_chunk": CHUNK, "max_context": 1024}
    half = load_model("tiny-c-q4km", precision="half", **options)
    full = load_model("tiny-c-q4km", **options)
    names = [name for name in full.points if not name.endswith("ssm_state")]
    for name, rows in half.record(prompt[:50], names, tokens="all").items():
        assert np.array_equal(rows, full.record(prompt[:50], name, tokens="all")[name]), name


# -- names and forms ---------------------------------------------------------------------------------------------------


def test_names_and_short_names(tiny, prompt):
    cache = tiny.record(prompt[:9], ["blocks.*.hook_resid_post", ("q", 3), "embed", "normalized"], tokens="all")
    assert [name for name in cache] == [
        "hook_embed",
        "blocks.0.hook_resid_post",
        "blocks.1.hook_resid_post",
        "blocks.2.hook_resid_post",
        "blocks.3.attn.hook_q",
        "blocks.3.hook_resid_post",
        "ln_final.hook_normalized",
    ]
    assert cache["resid_post", 3] is cache["blocks.3.hook_resid_post"]
    assert cache["q", 3, "attn"] is cache["q", 3] and cache["embed"] is cache["hook_embed"]
    assert ("resid_post", 3) in cache and ("k", 3) not in cache
    assert cache["resid_post", -1] is cache["resid_post", 3] and cache["resid_post", -4] is cache["resid_post", 0]
    with pytest.raises(KeyError, match="near it"):
        cache["resid_pots", 3]
    for key, message in (
        ("resid_post", "which names 4 points, wanted one of blocks.0.hook_resid_post, "),
        (("resid_post", -5), "which the model does not have"),
        (3, "found 3, wanted a name of a point"),
        ((), r"found \(\), wanted a name of a point"),
        (("q", "3"), "wanted a name of a point"),
        ("", "found '', wanted a name of a point"),
    ):
        assert key not in cache
        with pytest.raises(KeyError, match=message):
            cache[key]


@pytest.mark.parametrize(
    ("names", "near"),
    [
        ("blocks.3.hook_resid_pots", "blocks.3.hook_resid_post"),
        ("blocks.0.attn.hook_q", "blocks.3.attn.hook_q"),
        ([("patern", 3)], "blocks.3.attn.hook_pattern"),
        ("blocks.9.hook_mlp_out", "blocks.0.hook_mlp_out"),
        ("resid_poste", "resid_post"),
        ("nothing at all", "hook_embed"),
    ],
)
def test_a_wrong_name_lists_those_near(tiny, names, near):
    with pytest.raises(RequestError, match="which the model does not have; near it: .*" + near.replace(".", r"\.")):
        tiny.record([1], names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": []}, "names: none given"),
        ({"names": 7}, "names: found 7"),
        ({"tokens": "first"}, 'tokens: found \'first\', wanted "last", "all" or a slice'),
        ({"tokens": slice(5, 5)}, "is none of them"),
        ({"tokens": slice(None, None, -1)}, r"tokens: found slice\(None, None, -1\), wanted .* that rises"),
        ({"tokens": slice(0, 2, 0)}, "wanted a slice of whole numbers that rises"),
        ({"tokens": slice("a")}, "wanted a slice of whole numbers that rises"),
        ({"steps": "never"}, "steps: found 'never'"),
        ({"steps": "decode"}, "max_tokens 0, wanted at least 1"),
        ({"max_tokens": -1}, "max_tokens: found -1"),
        ({"prompt_or_ids": ""}, "token_ids: found none"),
        ({"prompt_or_ids": [10**6]}, "token_ids: found 1000000"),
    ],
)
def test_bad_wishes_are_one_line(tiny, options, message):
    options = {"prompt_or_ids": [1, 2], "names": "embed", **options}
    with pytest.raises(RequestError, match=message):
        tiny.record(options.pop("prompt_or_ids"), options.pop("names"), **options)


def test_memory_is_refused_with_the_numbers(tiny, prompt, monkeypatch):
    monkeypatch.setattr(host_memory, "free_ram_bytes", lambda: host_memory.RESERVE_BYTES + (1 << 20))
    before = tiny.device.allocated.total()
    message = r"recording 4 points of 300 tokens: needs \d+ MiB of the machine's memory, 1 MiB are free"
    with pytest.raises(OutOfMemoryError, match=message):
        tiny.record(prompt, "resid_post", tokens="all")
    assert tiny.device.allocated.total() == before


@pytest.mark.parametrize("names", ["resid_post", ["pattern", "beta"], "hook_logits"])
def test_the_bill_has_a_field_for_points(one, prompt, names, monkeypatch):
    """What the device takes while the recording runs, edits too; linear in the tokens of a run that are recorded."""
    most = []
    run = record.Recorder.program

    def program(*args, **options):
        most.append(one.device.allocated["points"])
        return run(*args, **options)

    monkeypatch.setattr(record.Recorder, "program", program)
    edits = [
        Edit("hook_embed", add=1.0),
        Edit(("mlp_out", 1), call=lambda rows, positions: None),
        Edit(("ssm_state", 1), scale=0.5),
        Edit(("mlp_out", 2), scale=1),
    ]
    options = {"tokens": "all", "steps": "both", "max_tokens": 1}
    for length, some in ((9, []), (70, []), (70, edits)):
        memory = one.record(prompt[:length], names, edits=some, **options).memory
        assert set(most) == {memory.points} and memory.total == one.memory.total + memory.points
        most.clear()
    last, two, every = (
        one.record(prompt[:32], "resid_post", tokens=t).memory.points for t in ("last", slice(0, 2), "all")
    )
    assert every - last == 31 * (two - last) == 31 * 4 * 4 * 256
    assert one.memory.points == one.device.allocated["points"] == 0


def test_forms_of_other_tools(tiny, prompt):
    names = ["embed", "resid_post", "pattern", "normalized", "hook_logits"]
    cache = tiny.record(prompt[:12], names, tokens="all")
    lens = cache.to_transformer_lens()
    assert lens["blocks.2.hook_resid_post"].shape == (1, 12, 256)
    assert lens["blocks.3.attn.hook_pattern"].shape == (1, 4, 12, 12)
    hidden, rows = (cache.to_hf()[name] for name in ("hidden_states", "attentions"))
    assert len(hidden) == 5 and np.array_equal(hidden[0][0], cache["embed"])
    assert np.array_equal(hidden[1][0], cache["resid_post", 0])
    assert np.array_equal(hidden[4][0], cache["normalized"])
    assert rows[:3] == (None, None, None) and np.array_equal(rows[3], cache.attention(3))
    assert cache.to_hf()["logits"].shape == (1, 12, tiny.config.vocab_size)
    assert tiny.record(prompt[:3], "q").to_hf()["hidden_states"] == (None,) * 5


def test_value_heads_of_transformer_lens(one, prompt):
    """Those of a key head one after another: ours are of key heads 0 1 0 1, its of 0 0 1 1."""
    names = [("v", 1, "linear_attn"), ("beta", 1), ("ssm_state", 1), ("q", 1)]
    assert one.points["blocks.1.linear_attn.hook_k"][0] == 2 and one.points["blocks.1.linear_attn.hook_v"][0] == 4
    cache = one.record(prompt[:5], names, tokens="all")
    for name, array in cache.to_transformer_lens().items():
        order = [0, 1] if name.endswith("hook_q") else [0, 2, 1, 3]
        assert np.array_equal(array, cache[name][None, :, order])
    last = one.record(prompt[:5], names).to_transformer_lens()["blocks.1.linear_attn.hook_ssm_state"]
    assert np.array_equal(last[0, 0], cache["ssm_state", 1][-1, [0, 2, 1, 3]])


def test_the_lens_of_the_last_layer_is_the_model(one, prompt):
    cache = one.record(prompt[:40], ["resid_post", "hook_logits"], tokens="all")
    lens = cache.lens()
    assert lens.shape == (one.config.num_hidden_layers, 40, one.config.vocab_size)
    assert np.abs(lens[-1] - cache["hook_logits"]).max() <= 1e-5 * rms(lens[-1])
    reference = ReferenceModel(model_path(one.path.stem))
    want = reference._head(reference._norm(cache["resid_post", 1].astype(np.float64), "output_norm"))
    assert np.abs(cache.lens([1])[0] - want).max() <= LOGITS * rms(want)
    assert np.array_equal(cache.lens(1), cache.lens([1])) and np.array_equal(cache.lens(-1), lens[-1:])
    with pytest.raises(RequestError, match="lens: layer 9: its hook_resid_post was not recorded"):
        cache.lens([9])
    with pytest.raises(RequestError, match="lens: found 'all', wanted layers"):
        cache.lens("all")
