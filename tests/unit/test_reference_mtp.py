"""The reference's multi-token-prediction block against llama.cpp's arrays, and whether those arrays notice mistakes."""

import functools

import numpy as np
import pytest

from tests.reference import fixtures, mtp, mtp_mutations
from tests.reference.forward import ReferenceModel
from tests.unit.test_reference import CLEAR, difference, reference_limit

# Of softmax rows at positions with gaps: llama.cpp multiplies rotary angles step by step (1.8e-5 measured).
ROWS_WITH_GAPS = 5e-5


@functools.cache
def reference_model(name: str) -> ReferenceModel:
    return ReferenceModel(fixtures.model_path(name))


@functools.cache
def trunk_of(name: str, case_name: str) -> list[dict[str, np.ndarray]]:
    model, case = reference_model(name), fixtures.load_case(name, case_name)
    state = model.new_state()
    return [model.forward(token_ids, positions, state) for token_ids, positions in case.parts()]


def run_block(name: str, case: fixtures.Case) -> tuple[mtp.DraftState, list[dict[str, np.ndarray]]]:
    drafter = mtp.DraftState(reference_model(name))
    calls = zip(case.parts(), trunk_of(name, case.name), strict=True)
    return drafter, [drafter.feed(token_ids, positions, trunk) for (token_ids, positions), trunk in calls]


def chain_of(drafter: mtp.DraftState, case: fixtures.Case) -> tuple[list[int], dict[str, np.ndarray]]:
    drafts, steps = drafter.draft(*case.chain["start"].tolist(), len(case.chain["drafts"]))
    return drafts, {name: np.stack([step[name][0] for step in steps]) for name in ("result_output", "h_nextn")}


@pytest.mark.parametrize("case_name", fixtures.CASES)
@pytest.mark.parametrize("name", fixtures.MTP_FIXTURES)
def test_trunk_block_and_chain_equal_llama_cpp(name, case_name):
    case = fixtures.load_case(name, case_name)
    drafter, outputs = run_block(name, case)
    drafts, chain = chain_of(drafter, case)
    assert drafts == case.chain["drafts"].tolist()
    assert int(trunk_of(name, case_name)[-1]["result_output"][-1].argmax()) == case.chain["start"][0]
    for kind, arrays, got in (
        ("", case.arrays, lambda array: case.select(array, trunk_of(name, case_name))),
        ("mtp/", case.block, lambda array: fixtures.selected(case.block[array], array, outputs)),
        ("chain/", {n: case.chain[n] for n in chain}, chain.get),
    ):
        for array, stored in arrays.items():
            limit = reference_limit(array, stored)
            if case_name == "gaps" and array.startswith("kq_soft_max"):
                limit = ROWS_WITH_GAPS
            label = f"{name} {case_name}/{kind}{array}"
            error = difference(got(array), stored, label)
            assert error <= limit, f"{label}: {error:.2e}"


@pytest.mark.parametrize("name", fixtures.MTP_FIXTURES)
def test_case_p7_stores_every_intermediate_of_the_block(name):
    case = fixtures.load_case(name, "p7")
    assert set(run_block(name, case)[1][0]) == set(case.block)


def rounds_differ(name: str, *, clear: float) -> bool:
    """Whether rounds of drafting differ from llama.cpp's: tokens, logits of first drafts, the state at the end."""
    model, spec = reference_model(name), fixtures.load_rounds(name)
    text, rounds, state = mtp.speculate(model, spec.prompt, spec.positions, len(spec.rounds), spec.num_drafts)
    found = [(r.token, r.position, r.accepted, *r.drafts) for r in rounds]
    if text != spec.text.tolist() or not np.array_equal(found, spec.rounds):
        return True
    pairs = [(np.stack([r.first_logits for r in rounds]), spec.arrays["draft_output"])]
    pairs += [(state[0].memory, spec.arrays["new_state-0"]), (state[0].conv.T, spec.arrays["conv_state_last-0"])]
    return any(np.abs(got - want).max() > clear * fixtures.LOGITS * fixtures.rms(want) for got, want in pairs)


@pytest.mark.parametrize("name", fixtures.MTP_FIXTURES)
def test_rounds_equal_llama_cpp(name):
    assert not rounds_differ(name, clear=0.1)
    spec = fixtures.load_rounds(name)
    np.testing.assert_array_equal(spec.text, spec.plain)


def test_rounds_of_every_length_occur():
    accepted = {int(n) for name in fixtures.MTP_FIXTURES for n in fixtures.load_rounds(name).rounds[:, 2]}
    assert accepted == {0, 1, 2, 3}


def test_mutation_table():
    titles = [m.title for m in (*mtp_mutations.IN_THE_BLOCK, *mtp_mutations.IN_ROUNDS)]
    assert len(titles) == len(set(titles)) == 22


@pytest.mark.parametrize("mutation", mtp_mutations.IN_THE_BLOCK, ids=lambda mutation: mutation.title)
def test_mistake_in_the_block_is_noticed(mutation):
    """By the limits of the engine's tests, in logits of the block or of a chain."""
    worst = 0.0
    for name in fixtures.MTP_FIXTURES:
        for case_name in ("p7", "gaps"):
            case = fixtures.load_case(name, case_name)
            trunk_of(name, case_name)
            with mutation.apply():
                drafter, outputs = run_block(name, case)
                chain = chain_of(drafter, case)[1]["result_output"]
            stored = case.block["result_output"]
            block = np.concatenate([out["result_output"] for out in outputs])[-len(stored) :]
            for got, want in ((block, stored), (chain, case.chain["result_output"])):
                worst = max(worst, np.abs(got - want).max() / (fixtures.LOGITS * fixtures.rms(want)))
    print(f"\n{mutation.title}: x{worst:.3g}")
    assert worst > CLEAR


@pytest.mark.parametrize("mutation", mtp_mutations.IN_ROUNDS, ids=lambda mutation: mutation.title)
def test_mistake_in_rounds_is_noticed(mutation):
    with mutation.apply():
        assert any(rounds_differ(name, clear=CLEAR) for name in fixtures.MTP_FIXTURES)
