"""Edits: runs that are changed on the way equal the float64 reference changed in the same way."""

import numpy as np
import pytest

from tests.model.test_record import check, one  # noqa: F401 (a fixture)
from tests.reference import points
from tests.reference.fixtures import model_path
from tests.reference.forward import ReferenceModel
from vkprefill import Edit, RequestError, SamplingConfig, Session
from vkprefill.generation.options import AnswerOptions

PROMPT, DECODED = 45, 2  # two chunks


def changed_both(model, prompt, edits, changes, *, names=("resid_post", "hook_logits"), state_change=None):
    """A run with edits against the reference with changes: all tokens, prefill and decode."""
    cache = model.record(prompt[:PROMPT], names, tokens="all", steps="both", max_tokens=DECODED, edits=edits)
    reference = ReferenceModel(model_path(model.path.stem))
    want = points.run(reference, cache.token_ids, cache.num_prompt, changes=changes, state_change=state_change)
    for name in cache:
        check(name, cache[name], want[name])
    check("hook_logits", cache.logits, want["hook_logits"][-1])
    plain = model.record(prompt[:PROMPT], names, tokens="all")
    last = names[-1]
    assert np.abs(plain[last][-1] - cache[last][PROMPT - 1]).max() > 1e-2, "the edit changes the result"


EDITABLE = [
    "hook_embed",
    "blocks.1.hook_resid_pre",
    "blocks.1.linear_attn.hook_in",
    "blocks.1.linear_attn.hook_q_pre_conv",
    "blocks.1.linear_attn.hook_k_pre_conv",
    "blocks.1.linear_attn.hook_v_pre_conv",
    "blocks.1.linear_attn.hook_gate_input",
    "blocks.1.linear_attn.hook_q",
    "blocks.1.linear_attn.hook_k",
    "blocks.1.linear_attn.hook_v",
    "blocks.1.linear_attn.hook_log_decay",
    "blocks.1.linear_attn.hook_beta",
    "blocks.1.linear_attn.hook_recurrence_out",
    "blocks.1.linear_attn.hook_out",
    "blocks.1.hook_attn_out",
    "blocks.3.attn.hook_q",
    "blocks.3.attn.hook_k",
    "blocks.3.attn.hook_v",
    "blocks.3.attn.hook_rot_q",
    "blocks.3.attn.hook_rot_k",
    "blocks.3.attn.hook_z",
    "blocks.3.hook_attn_out",
    "blocks.3.hook_resid_mid",
    "blocks.1.mlp.hook_pre",
    "blocks.1.mlp.hook_pre_linear",
    "blocks.1.mlp.hook_post",
    "blocks.1.hook_mlp_out",
    "blocks.3.hook_resid_post",
    "ln_final.hook_normalized",
]


@pytest.mark.parametrize("name", EDITABLE)
def test_each_point_can_be_changed(one, prompt, name):  # noqa: F811
    """Added to, at all tokens; then other numbers in their place, at some tokens of the prompt and of decode."""
    rng = np.random.default_rng(len(name))
    shape = one.points[name]
    # Keys much longer than 1, a beta beyond 2 and a decay above 0 would make the state grow without bound.
    small = name.endswith(("linear_attn.hook_k", "beta", "decay"))
    vector = ((0.05 if small else 1.0) * rng.standard_normal(shape)).astype(np.float32)
    vector = -np.abs(vector) if "decay" in name else vector
    rows = vector + (0 if small else rng.standard_normal((3, *shape)).astype(np.float32))
    where = [4, PROMPT - 1, PROMPT]

    def change(found, tokens):
        found = found + vector
        for row, token in zip(np.broadcast_to(rows, (3, *shape)), where, strict=True):
            found[tokens == token] = row
        return found

    edits = [Edit(name, add=vector), Edit(name, set=np.broadcast_to(rows, (3, *shape)), positions=where)]
    changed_both(one, prompt, edits, {name: change})


def test_heads_channels_and_steps(one, prompt):  # noqa: F811
    """A head silenced, channels silenced, a scale in the prompt only, an addition in decode only."""
    q, mlp, resid, v = (
        "blocks.3.attn.hook_z",
        "blocks.0.mlp.hook_post",
        "blocks.2.hook_resid_pre",
        "blocks.0.hook_attn_out",
    )

    def silenced(found, tokens):
        found[:, [0, 2]] = 0
        return found

    def fewer(found, tokens):
        found[..., [3, 250]] = 0
        return found

    edits = [
        Edit(q, zero=True, heads=[0, 2]),
        Edit(mlp, zero=[3, 250]),
        Edit(resid, scale=1.5, steps="prefill"),
        Edit(("attn_out", 0), add=2.0, steps="decode"),
    ]
    changes = {
        q: silenced,
        mlp: fewer,
        resid: lambda found, tokens: np.where(tokens[:, None] < PROMPT, 1.5 * found, found),
        v: lambda found, tokens: np.where(tokens[:, None] < PROMPT, found, found + 2),
    }
    changed_both(one, prompt, edits, changes)


def test_patching_with_what_was_recorded(one, prompt):  # noqa: F811
    """A run's own rows in their place change no bit; those of another prompt make the later layers those of it."""
    names = ["blocks.1.hook_resid_post", "blocks.3.hook_resid_post"]
    own = one.record(prompt[:40], names, tokens="all")
    other = one.record(prompt[40:80], names, tokens="all")
    same = one.record(prompt[:40], names, tokens="all", edits=[Edit(names[0], set=own[names[0]])])
    assert np.array_equal(same.logits, own.logits)
    patched = one.record(prompt[:40], names, tokens="all", edits=[Edit(names[0], set=other[names[0]])])
    assert np.array_equal(patched.logits, other.logits)


def test_edits_of_nothing_are_nothing(one, prompt):  # noqa: F811
    """Bit for bit."""
    model = one
    names = ["resid_post", "hook_logits"]
    plain = model.record(prompt[:40], names, steps="both", max_tokens=2, tokens="all")
    nothing = [
        Edit("hook_embed", add=0.0),
        Edit("blocks.1.hook_resid_mid", scale=1),
        Edit(("q", 3), add=np.zeros((4, 64)), positions=[3]),
        Edit(("mlp_out", 2), call=lambda rows, positions: None),
        Edit(("q", 1), call=lambda rows, positions: rows),
    ]
    edited = model.record(prompt[:40], names, steps="both", max_tokens=2, tokens="all", edits=nothing)
    for name in plain:
        assert np.array_equal(plain[name], edited[name]), name
    assert edited.generated_ids == plain.generated_ids


def test_a_function_at_a_point(one, prompt):  # noqa: F811
    """It sees the rows with their places in the order of the run, and what it gives back goes on."""
    seen = []

    def turn(rows, positions):
        seen.extend(positions.tolist())
        assert rows.dtype == np.float32 and rows.shape[1:] == (2, 64)
        return rows[:, ::-1] * np.where(positions % 2, 1, 2)[:, None, None]

    def change(found, tokens):
        turned = found[:, ::-1] * np.where(tokens % 2, 1, 2)[:, None, None]
        return np.where((tokens >= 10)[:, None, None], turned, found)

    name = "blocks.1.linear_attn.hook_q"
    edit = Edit(name, call=turn, positions=list(range(10, PROMPT + DECODED)))
    changed_both(one, prompt, [edit], {name: change})
    assert seen == list(range(10, PROMPT + DECODED))


@pytest.mark.filterwarnings("error")
def test_what_a_function_may_not_return(one, prompt):  # noqa: F811
    before = one.device.allocated.total(), len(one.runner.pool.free_pages)
    huge = np.full((9, 256), 1e200)
    for wrong, message in (
        (np.zeros(3), r"returned float64 of shape \[3\]"),
        ("text", "returned <U4"),
        ([[1], [1, 2]], "returned object of shape"),
        (huge, "returned numbers that are not all finite float32"),
    ):
        with pytest.raises(RequestError, match=message):
            one.record(prompt[:9], "embed", edits=[Edit("hook_embed", call=lambda *_, wrong=wrong: wrong)])
    with pytest.raises(ZeroDivisionError):
        one.record(prompt[:9], "embed", edits=[Edit("hook_embed", call=lambda *_: 1 / 0)])
    assert (one.device.allocated.total(), len(one.runner.pool.free_pages)) == before


def test_states_are_changed_between_tokens(one, prompt):  # noqa: F811
    """At a token of the prompt, and after one that was decoded."""
    name, rng = "blocks.1.linear_attn.hook_ssm_state", np.random.default_rng(3)
    patch = rng.standard_normal(one.points[name]).astype(np.float32)
    edits = [Edit(name, set=patch, positions=[20]), Edit(name, zero=True, heads=1, positions=[PROMPT])]

    def change(state, token):
        if token == PROMPT:
            state[1].memory[1] = 0

    # The reference takes the prompt in one call; the change inside it is made by a first call up to there.
    cache = one.record(prompt[:PROMPT], "resid_post", tokens="all", steps="both", max_tokens=DECODED, edits=edits)
    reference = ReferenceModel(model_path(one.path.stem))
    state = reference.new_state()
    first = reference.forward(cache.token_ids[:21], np.arange(21), state)
    state[1].memory = patch.transpose(0, 2, 1).astype(np.float64)
    want = [first["l_out-3"], reference.forward(cache.token_ids[21:PROMPT], np.arange(21, PROMPT), state)["l_out-3"]]
    for token in range(PROMPT, len(cache.token_ids)):
        want.append(
            reference.forward(cache.token_ids[token : token + 1], np.arange(token, token + 1), state)["l_out-3"]
        )
        change(state, token)
    check("resid_post", cache["resid_post", 3], np.concatenate(want))


@pytest.mark.filterwarnings("error")
def test_states_of_a_cache_are_read_and_set(one, prompt):  # noqa: F811
    """What is read and set again changes no bit; another cache's state makes the answer that cache's."""
    one.logits([1])
    first, second = one.new_cache(), one.new_cache()
    for cache in (first, second):
        one.prefill(prompt[:20], cache=cache)
    state = first.recurrent_state(1)
    assert state.shape == (4, 64, 64)
    want = one.decode(7, second)
    first.set_recurrent_state(1, state)
    assert np.array_equal(one.decode(7, first), want)
    waiting = first.recurrent_state(1)  # the row that waits is part of it
    assert not np.array_equal(waiting, state)
    first.set_recurrent_state(1, np.zeros_like(state))
    assert not first.recurrent_state(1).any()
    assert not np.array_equal(one.decode(8, first), one.decode(8, second))
    wanted = "wanted finite float32 of"
    for layer, bad, message in (
        (3, state, "layer 3 has none"),
        (1, state[0], wanted),
        (1, np.nan * state, wanted),
        (1, np.full(state.shape, 1e200), wanted),  # finite in float64 alone
    ):
        with pytest.raises(RequestError, match=message):
            first.set_recurrent_state(layer, bad)
    with pytest.raises(RequestError, match="state is set between tokens"):
        one.new_cache().set_recurrent_state(1, state)
    first.close()
    second.close()


def test_an_unedited_cache_never_sees_an_edit(one, prompt):  # noqa: F811
    """A cache that is in use meanwhile goes on as if there had been no edited run."""
    cache, alone = one.new_cache(), one.new_cache()
    one.prefill(prompt[:30], cache=cache)
    one.decode(3, cache)
    one.record(prompt[:30], "embed", steps="both", max_tokens=2, edits=[Edit("hook_embed", add=5.0)])
    got = one.decode(4, cache)
    one.prefill(prompt[:30], cache=alone)
    one.decode(3, alone)
    assert np.array_equal(one.decode(4, alone), got)
    cache.close()
    alone.close()


def test_a_prompt_cache_never_sees_an_edit(one, prompt):  # noqa: F811
    """A conversation goes on from its own tokens; the same prompt was run with edits in between."""
    greedy = AnswerOptions(2, SamplingConfig(temperature=0.0))

    def answer(session, ids):
        parts = list(session.stream_ids(ids, greedy))
        return [part.token_id for part in parts], parts[-1].timings.cache_n

    session, alone = Session(one), Session(one)
    try:
        answer(session, prompt[:30])
        one.record(prompt[:35], "embed", steps="both", max_tokens=2, edits=[Edit("hook_embed", add=5.0)])
        got, cached = answer(session, prompt[:35])
        assert cached > 0 and got == answer(alone, prompt[:35])[0]
    finally:
        session.close()
        alone.close()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda: Edit("embed"), "edit: found nothing to do, wanted exactly one of add, scale, set, zero, call"),
        (lambda: Edit("embed", add=1, scale=2), "edit: found add, scale, wanted exactly one"),
        (lambda: Edit("embed", add=1, steps="some"), "edit: steps: found 'some'"),
        (lambda: Edit("embed", call=3), "edit: call: found 3, wanted a function"),
        (lambda: Edit(("pattern", 3), scale=2), "hook_pattern can be read only"),
        (lambda: Edit("hook_logits", add=1), "hook_logits can be read only"),
        (
            lambda: Edit("resid_post", add=1),
            "found resid_post, which names 4 points, wanted one of blocks.0.hook_resid_p",
        ),
        (
            lambda: Edit("blocks.*.hook_resid_post", add=1),
            "which names 4 points, wanted one of blocks.0.hook_resid_post",
        ),
        (lambda: Edit("resid_pots", add=1), "found resid_pots, which the model does not have; near it: "),
        (lambda: Edit("embed", add=[1, 2]), r"edit: add: of hook_embed: found shape \[2\], wanted \[256\]"),
        (lambda: Edit("embed", add=np.nan), "wanted finite numbers"),
        (lambda: Edit("embed", add="much"), "wanted finite numbers"),
        (lambda: Edit("embed", add=1, heads=0), "edit: heads: hook_embed has none"),
        (lambda: Edit(("q", 3), add=1, heads=9), "edit: heads: found 9, wanted some of 0 to 3"),
        (lambda: Edit("embed", zero=[256]), r"edit: zero: found \[256\], wanted some of 0 to 255"),
        (lambda: Edit("embed", add=1, positions=[-9]), r"positions: found \[-9\], wanted each token once, from -3"),
        (lambda: Edit("embed", add=1, positions=[1, 1]), "wanted each token once"),
        (lambda: Edit("embed", add=1, positions=1.5), "positions: found 1.5"),
        (lambda: Edit("embed", add=np.ones((2, 256)), positions=[0, 1, 2]), "2 rows, wanted 1 or 3"),
        (lambda: "embed", "edits: found str, wanted vkprefill.Edit"),
        (lambda: Edit(("q", 3), set=np.ones((2, 64)), heads=[1, 1]), r"heads: found \[1, 1\], .* 0 to 3, each once"),
        (lambda: Edit("embed", add=1e60), "wanted finite numbers of float32"),
        (lambda: Edit("embed", add=[10**400]), "wanted finite numbers of float32"),
        (lambda: Edit("embed", add=1j), "wanted finite numbers of float32"),
        (
            lambda: Edit("embed", add=1, positions=3),
            "positions: found token 3, wanted 0 to 2: the prompt has 3",
        ),
        (lambda: Edit("embed", add=1, positions=[0, 99]), "positions: found token 99, wanted 0 to 2"),
        (lambda: Edit("embed", add=1, positions=slice(5, 9)), r"positions: found slice\(5, 9, None\), wanted tokens"),
        (lambda: Edit("embed", add=1, positions=slice(0, 3, 0)), r"positions: found slice\(0, 3, 0\), wanted tokens"),
        (lambda: Edit("embed", add=np.ones((4, 256))), "add: found token 3, wanted 0 to 2"),
        (lambda: Edit("embed", add=1, steps="decode"), "steps: found 'decode' with max_tokens 0"),
    ],
)
def test_bad_edits_are_one_line(one, edit, message):  # noqa: F811
    with pytest.raises(RequestError, match=message):
        one.record([1, 2, 3], "embed", edits=[edit()])


@pytest.mark.parametrize(
    ("steps", "positions", "wanted"), [("decode", [2, 1], "decode, 3 to 4"), ("prefill", 4, "prefill, 0 to 2")]
)
def test_tokens_of_other_steps(one, steps, positions, wanted):  # noqa: F811
    """Refused where none is of the steps that are changed; else those of the others stay as they are."""
    options = {"tokens": "all", "steps": "both", "max_tokens": 2}
    with pytest.raises(RequestError, match=f"edit: positions: found token [24], wanted one of {wanted}"):
        one.record([1, 2, 3], "embed", edits=Edit("embed", add=1, positions=positions, steps=steps), **options)
    edit = Edit("embed", set=9.0, positions=[1, 3], steps=steps)
    cache = one.record([1, 2, 3], "embed", edits=edit, **options)
    assert np.flatnonzero((cache["embed"] == 9).all(-1)).tolist() == [3 if steps == "decode" else 1]
