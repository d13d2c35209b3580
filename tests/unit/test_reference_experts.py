"""The reference's mixtures of experts against llama.cpp's arrays, and whether those arrays notice mistakes."""

import functools
import itertools

import numpy as np
import pytest

from tests.reference import expert_mutations, fixtures
from tests.reference.forward import ReferenceModel
from tests.unit import test_reference, test_reference_mtp
from tests.unit.test_reference import CLEAR, difference, reference_limit
from tests.unit.test_reference_mtp import ROWS_WITH_GAPS


@functools.cache
def reference_model(name: str) -> ReferenceModel:
    return ReferenceModel(fixtures.model_path(name))


def limit_of(case: fixtures.Case, name: str) -> float:
    if fixtures.array_kind(name) == "ffn_moe_topk":
        return 0.0
    if fixtures.array_kind(name) == "kq_soft_max" and case.name == "gaps":
        return ROWS_WITH_GAPS
    return reference_limit(name, case.arrays[name])


@pytest.mark.parametrize("case_name", fixtures.CASES)
@pytest.mark.parametrize("name", fixtures.MOE_FIXTURES)
def test_reference_equals_llama_cpp(name, case_name):
    """The experts chosen, too, in every layer and for every token."""
    case = fixtures.load_case(name, case_name)
    outputs = test_reference.run_case(reference_model(name), case)
    for array, stored in case.arrays.items():
        if array != "routing_margin":
            label = f"{name} {case_name}/{array}"
            error = difference(case.select(array, outputs), stored, label)
            assert error <= limit_of(case, array), f"{label}: {error:.2e}"


@pytest.mark.parametrize("name", fixtures.MOE_FIXTURES)
def test_case_p7_stores_every_intermediate(name):
    case = fixtures.load_case(name, "p7")
    computed = set(test_reference.run_case(reference_model(name), case)[0])
    assert {array for array in computed - set(case.arrays) if not array.startswith("new_state")} == set()


@pytest.mark.parametrize("case_name", fixtures.CASES)
@pytest.mark.parametrize("name", fixtures.MOE_MTP_FIXTURES)
def test_block_with_experts_and_its_chains(name, case_name):
    test_reference_mtp.test_trunk_block_and_chain_equal_llama_cpp(name, case_name)


@pytest.mark.parametrize("name", fixtures.MOE_MTP_FIXTURES)
def test_rounds(name):
    test_reference_mtp.test_rounds_equal_llama_cpp(name)


def test_mutation_table():
    titles = [mutation.title for mutation in expert_mutations.MUTATIONS]
    assert len(titles) == len(set(titles)) == 18


@pytest.mark.parametrize("mutation", expert_mutations.MUTATIONS, ids=lambda mutation: mutation.title)
def test_mistake_is_noticed(mutation):
    """By the limit of the engine's tests, in logits, of the shorter prompts."""
    worst = 0.0
    for name, case_name in itertools.product(fixtures.MOE_FIXTURES, ("p7", "gaps")):
        case = fixtures.load_case(name, case_name)
        with mutation.apply():
            outputs = test_reference.run_case(reference_model(name), case)
        stored = case.arrays["result_output"]
        error = np.abs(case.select("result_output", outputs) - stored).max()
        worst = max(worst, error / (fixtures.LOGITS * fixtures.rms(stored)))
        if worst > CLEAR:
            break
    print(f"\n{mutation.title}: x{worst:.3g} in {name} {case_name}")
    assert worst > CLEAR
