"""Drafts of the multi-token-prediction block: chains and rounds against llama.cpp's, heads cut to fewer rows, and that
drafting leaves no trace.
"""

import numpy as np
import pytest

import vkprefill
from tests.model.test_fixtures import assert_close, run_case
from tests.model.test_mtp import block_of
from tests.reference import mtp
from tests.reference.fixtures import CASES, LOGITS, MTP_FIXTURES, load_case, load_rounds, model_path, rms
from tests.reference.forward import ReferenceModel
from vkprefill.engine.cache import Cache
from vkprefill.engine.draft_head import NO_TOKEN, ChosenIds
from vkprefill.engine.model import Model
from vkprefill.engine.sizes import MAX_DRAFTS


def draft_logits(model: Model, count: int) -> np.ndarray:
    """[count, 10]: logits of each row's best tokens."""
    return model.runner.scratch.drafts.view()[:count, :, 0].copy().view(np.float32)


def best_of(rows: np.ndarray) -> np.ndarray:
    return np.sort(rows, axis=-1)[:, ::-1][:, :10]


@pytest.mark.parametrize("case_name", CASES)
@pytest.mark.parametrize("name", MTP_FIXTURES)
def test_chain_of_drafts(load_model, name, case_name):
    model, case = load_model(name, kv_type="f32"), load_case(name, case_name)
    cache = model.new_cache()
    logits = run_case(model, case, cache)
    token, position = case.chain["start"].tolist()
    assert (int(logits.argmax()), cache.next_position) == (token, position)
    want = case.chain["drafts"].tolist()
    assert model.drafter().draft(token, cache, len(want), p_min=1e-9) == want
    stored = case.chain["result_output"]
    assert_close(draft_logits(model, 4), best_of(stored), LOGITS * rms(stored), "best logits of the chain")
    hidden = model.runner.scratch.mtp_hidden.read()[0]
    assert_close(hidden, case.chain["h_nextn"][-1], LOGITS * rms(case.chain["h_nextn"]), "hidden row of the last draft")
    cache.close()


@pytest.mark.parametrize("name", MTP_FIXTURES)
def test_all_logits_of_a_chain(load_model, name):
    """Each step of seven, against the numpy reference."""
    model, case = load_model(name, kv_type="f32"), load_case(name, "p65")
    reference = ReferenceModel(model_path(name))
    drafter, cache = mtp.DraftState(reference), model.new_cache()
    drafter.feed(
        case.token_ids, case.positions, reference.forward(case.token_ids, case.positions, reference.new_state())
    )
    model.extend(case.token_ids, cache)
    drafts, steps = drafter.draft(11, cache.next_position, MAX_DRAFTS)
    for count in (1, 2, MAX_DRAFTS):
        assert model.drafter().draft(11, cache, count) == drafts[:count]
        want = steps[count - 1]["result_output"][0]
        got = model.runner.scratch.logits.view()[0].copy()
        assert_close(got, want, LOGITS * rms(want), f"logits of draft {count}")
    cache.close()


@pytest.mark.parametrize("name", MTP_FIXTURES)
def test_rounds_of_llama_cpp(load_model, name):
    """Drafts and first logits of each round, while the text grows by what llama.cpp accepted."""
    model, spec = load_model(name, kv_type="f32"), load_rounds(name)
    cache, drafter = model.new_cache(), model.drafter()
    model.extend(spec.prompt, cache)
    text = spec.text.tolist()
    for (token, position, accepted, *drafts), stored in zip(
        spec.rounds.tolist(), spec.arrays["draft_output"], strict=True
    ):
        assert (token, position) == (text[0], cache.next_position)
        assert drafter.draft(token, cache, len(drafts), p_min=1e-9) == drafts
        assert_close(
            draft_logits(model, 1), best_of(stored[None]), LOGITS * rms(stored), "best logits of a first draft"
        )
        for emitted in text[: accepted + 1]:
            model.decode(emitted, cache)
        assert drafts[:accepted] == text[1 : accepted + 1]
        del text[: accepted + 1]
    cache.close()


def test_the_host_does_not_wait_within_a_chain(load_model):
    model = load_model("mtp-b-q4km", kv_type="f32")
    for head_rows in (0, 64):
        program = model.drafter(head_rows)._program(MAX_DRAFTS)
        assert program.num_submissions == 1 or not model.device.has_barrier


def test_drafting_leaves_no_trace(load_model):
    model = load_model("mtp-b-q4km", kv_type="f32")
    case, rows = load_case("mtp-b-q4km", "p65"), []
    for drafting in (False, True):
        cache = model.new_cache()
        model.extend(case.token_ids[:40], cache)
        got = []
        for token_id in case.token_ids[40:60].tolist():
            if drafting:
                assert len(model.drafter().draft(token_id, cache, 1 + len(cache) % 7)) == 1 + len(cache) % 7
            got.append(model.decode(token_id, cache))
        rows.append((np.stack(got), model.runner.pool.state.read(), *block_of(model, cache)))
        cache.close()
    for plain, drafted in zip(*rows, strict=True):
        np.testing.assert_array_equal(plain, drafted)


def test_an_interrupted_chain_leaves_no_trace(load_model, monkeypatch):
    model = load_model("mtp-a-f32", kv_type="f32")
    cache, drafter = model.new_cache(), model.drafter()
    model.extend(range(30), cache)
    before, want = block_of(model, cache), drafter.draft(5, cache, 3)
    program = drafter._program(3)
    run, length = type(program).run, len(cache)

    def cut_off(self, between=None) -> None:
        run(self, between)
        if self is program:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(program), "run", cut_off)
        with pytest.raises(KeyboardInterrupt):
            drafter.draft(5, cache, 3)
    assert not cache.broken and len(cache) == length
    for got, expected in zip(block_of(model, cache), before, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert drafter.draft(5, cache, 3) == want
    cache.close()


def test_another_cache_between(load_model):
    """A chain takes the row of its own cache."""
    model = load_model("mtp-a-f32", kv_type="f32")
    one, other, drafter = model.new_cache(), model.new_cache(), model.drafter()
    model.extend(range(30), one)
    want = drafter.draft(5, one, 4)
    model.extend(range(100, 150), other)
    unlike = drafter.draft(5, other, 4)
    assert drafter.draft(5, one, 4) == want != unlike == drafter.draft(5, other, 4)
    one.close()
    other.close()


def expected_of_a_cut_head(model: Model, cache: Cache, allowed: set[int]) -> list[int]:
    """A chain by the whole head, one row at a time, with only these tokens allowed."""
    whole = model.drafter(0)
    assert whole.draft(5, cache, 1)
    logits = model.runner.scratch.logits.view()[0].copy()
    return [max(sorted(allowed), key=lambda token: logits[token])]


@pytest.mark.parametrize("name", MTP_FIXTURES)
@pytest.mark.parametrize("head_rows", [1, 40, 64, 250, 319, 320, 1000])
def test_cut_heads(load_model, name, head_rows):
    """The first rows, special tokens, the cache's own."""
    model = load_model(name, kv_type="f32")
    cache = model.new_cache()
    tokens = [7, 300, 260, 7, 281, 300, 33]
    model.extend(tokens, cache)
    special = set(model.tokenizer.special_tokens.values())
    allowed = {token for token in {*tokens, *special} | set(range(head_rows)) if token < 320}
    want = expected_of_a_cut_head(model, cache, allowed)
    assert special and model.drafter(head_rows).draft(5, cache, 1) == want
    chain = model.drafter(head_rows).draft(5, cache, 5, p_min=1e-9)
    assert len(chain) == 5 and set(chain) <= allowed and chain[0] == want[0]
    cache.close()


def test_chosen_ids_follow_the_cache(load_model):
    model = load_model("mtp-a-f32", kv_type="f32")
    ids = ChosenIds(100, 6, [310, 50, 305])
    cache, other = model.new_cache(), model.new_cache()
    assert ids.of(cache).tolist() == [305, 310] + 4 * [NO_TOKEN]
    model.extend([99, 200, 100, 305], cache)
    assert ids.of(cache).tolist() == [305, 310, 100, 200] + 2 * [NO_TOKEN]
    snapshot = cache.snapshot()
    model.extend([200, 101, 102, 103, 104], cache)
    assert ids.of(cache).tolist() == [305, 310, 104, 103, 102, 101], "the latest"
    cache.restore(snapshot)
    assert ids.of(cache).tolist() == [305, 310, 100, 200] + 2 * [NO_TOKEN]
    assert ids.of(other).tolist() == [305, 310] + 4 * [NO_TOKEN]
    cache.close()
    other.close()


def test_least_probability(load_model):
    model = load_model("mtp-b-q4km", kv_type="f32")
    case = load_case("mtp-b-q4km", "p65")
    cache, drafter = model.new_cache(), model.drafter()
    model.extend(case.token_ids, cache)
    token = int(case.chain["start"][0])
    whole = drafter.draft(token, cache, 4, p_min=1e-9)
    logits = draft_logits(model, 4).astype(float)
    among_ten = np.exp(logits[:, 0] - logits.max(1)) / np.exp(logits - logits.max(1, keepdims=True)).sum(1)
    for p_min in (0.0, *among_ten * 0.999, *among_ten * 1.001, 1.0):
        unlikely = np.flatnonzero(among_ten < p_min)
        assert drafter.draft(token, cache, 4, p_min) == whole[: unlikely[0] if len(unlikely) else 4]
    cache.close()


def test_room_for_verifying(load_model):
    model = load_model("mtp-a-f32", kv_type="f32")
    cache, drafter = model.new_cache(max_context=36), model.drafter()
    model.extend(range(30), cache)
    for length in range(30, 36):
        assert len(drafter.draft(5, cache, 4)) == min(4, 36 - length - 1)
        model.decode(5, cache)
    with pytest.raises(vkprefill.RequestError, match="token_ids: found 320"):
        drafter.draft(320, cache, 2)
    cache.close()
    with pytest.raises(vkprefill.RequestError, match="closed|wanted one made by"):
        drafter.draft(3, cache, 2)


def test_a_full_pool_has_no_drafts(load_model):
    """No error: the token itself may still have room."""
    model = load_model("mtp-a-f32", kv_type="f32")
    cache, other = model.new_cache(), model.new_cache()
    model.extend(range(255), cache)
    model.extend([1], other)
    assert not model.runner.pool.free_pages
    assert model.drafter().draft(5, cache, 2) == [] and len(model.drafter().draft(5, cache, 1)) == 1
    assert len(model.decode(5, cache)) == 320
    cache.close()
    other.close()


def test_models_without_a_block(load_model):
    for model in (load_model("tiny-a-f32"), load_model("mtp-a-f32", mtp=None)):
        with pytest.raises(vkprefill.RequestError, match="without a multi-token-prediction block"):
            model.drafter()
    model = load_model("mtp-a-f32", kv_type="f32")
    with pytest.raises(vkprefill.RequestError, match="head_rows: found -1"):
        model.drafter(-1)
    assert model.drafter(64) is model.drafter(64) is not model.drafter(0)


@pytest.mark.parametrize("window, first", [(None, 0), (1000, 0), (345, 0), (344, 256), (100, 256), (88, 512), (1, 512)])
def test_window(load_model, window, first):
    """Of 600 tokens the block knows those from a page on that the window reaches into; what is after the prompt too."""
    name = "mtp-b-q4km"
    model = load_model(name, kv_type="f32", max_context=1536, prefill_chunk=64, mtp_window=window)
    tokens = np.random.default_rng(2).integers(0, 300, 600)
    reference = ReferenceModel(model_path(name), chunk=64)
    drafter, state = mtp.DraftState(reference), reference.new_state()
    drafter.feed(tokens, np.arange(600), reference.forward(tokens, np.arange(600), state))
    kv = drafter.kv
    drafter.kv = type(kv)(kv.keys[first:], kv.values[first:], kv.positions[first:])
    cache = model.new_cache()
    model.extend(tokens, cache)
    assert cache.mtp_from == first
    snapshot = cache.snapshot()
    assert model.drafter().draft(11, cache, 4, p_min=1e-9) == drafter.draft(11, 600, 4)[0]
    got, want = draft_logits(model, 1), best_of(drafter.draft(11, 600, 1)[1][0]["result_output"])
    assert_close(got, want, LOGITS * rms(want), "best logits of a first draft")
    for token_id in (11, 12):
        out = reference.forward([token_id], [len(cache)], state)
        drafter.feed([token_id], [len(cache)], out)
        model.decode(token_id, cache)
    drafts = drafter.draft(13, 602, 3)[0]
    assert model.drafter().draft(13, cache, 3) == drafts and cache.mtp_from == first
    model.extend(tokens, cache)
    assert (cache.mtp_from > first) == (window is not None and window < 1202 - 602 + 256 - first or window == 1)
    cache.restore(snapshot)
    assert cache.mtp_from == first
    model.extend([11, 12], cache)
    assert model.drafter().draft(13, cache, 3) == drafts
    cache.close()


def test_a_window_changes_drafts_alone(load_model):
    """And a failed prefill, a copy of rows and another cache keep what they knew."""
    tokens, found = np.random.default_rng(2).integers(0, 300, 600), []
    for window in (None, 40):
        model = load_model("mtp-a-f32", kv_type="f32", max_context=2560, prefill_chunk=64, mtp_window=window)
        cache = model.new_cache()
        found.append((model.prefill(tokens, cache=cache), model.runner.pool.state.read()))
    for plain, other in zip(*found, strict=True):
        np.testing.assert_array_equal(plain, other)
    assert cache.mtp_from == 512

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.prefill(tokens, cache=cache, progress=interrupt)
    assert (len(cache), cache.mtp_from) == (600, 512)
    copy, other = cache.copy_rows(range(100, 600)), model.new_cache()
    assert (len(copy), copy.mtp_from) == (500, 512), "slots 412 on are known: that is within a page"
    assert model.drafter().draft(5, copy, 3) == []
    model.extend([1] * 20, copy)
    assert len(model.drafter().draft(5, copy, 3)) == 3
    other.start_from(cache, cache.snapshot())
    assert other.mtp_from == 512
    assert model.drafter().draft(5, other, 3) == model.drafter().draft(5, cache, 3)
    cache.reset()
    assert cache.mtp_from == 0
    for each in (cache, copy, other):
        each.close()
