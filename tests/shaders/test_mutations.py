"""Would the engine's tests notice a mistake? Each of the reference's mutations must make the two disagree."""

import functools

import numpy as np
import pytest

from tests.reference import fixtures, mutations, same_input
from tests.shaders.run_kernel import error_of
from tests.shaders.same_input_kernels import KERNELS, reference_model
from vkprefill.engine.model import load

# Prompts that together take every path: several calls, gaps between positions.
CASES = ("p7", "gaps")
# Too small for any limit on logits; the same-input test of the norm sees it (tests/reference/same_input.py).
SEEN_ON_SAME_INPUT_ONLY = "l2 epsilon added to the mean"
# A mistake must exceed the limit clearly, so that another driver's rounding cannot hide it.
CLEAR = 2.0


@functools.cache
def engine_logits(model_name: str) -> dict[str, np.ndarray]:
    """float32 [T, V] of each case, in one call."""
    with load(fixtures.model_path(model_name), max_context=1024, kv_type="f32") as model:
        cases = {name: fixtures.load_case(model_name, name) for name in CASES}
        return {name: model.logits(case.token_ids, case.positions) for name, case in cases.items()}


def logits_excess(model_name: str, case_name: str) -> float:
    """Largest difference between the engine's and the reference's logits, over the limit of the engine's tests."""
    case, model = fixtures.load_case(model_name, case_name), reference_model(model_name)
    state = model.new_state()
    expected = np.concatenate(
        [model.forward(ids, positions, state)["result_output"] for ids, positions in case.parts()]
    )
    error, _ = error_of(f"{model_name} {case_name}", engine_logits(model_name)[case_name], expected)
    return error / fixtures.LOGITS


def norm_excess(device) -> float:
    """The same of the l2 norm kernel on llama.cpp's input, between kernel and reference."""
    worst = 0.0
    for model_name in fixtures.FIXTURES:
        model = reference_model(model_name)
        for operation, layer, inputs, _ in same_input.operations(model, fixtures.load_case(model_name, "p7")):
            if operation.output == "q_conv_predelta":
                got, expected = (
                    KERNELS[operation.output](device, model, layer, *inputs),
                    operation.compute(model, layer, *inputs),
                )
                worst = max(worst, error_of(model_name, got.reshape(expected.shape), expected)[0] / operation.limit)
    return worst


def test_engine_equals_the_reference_without_mistakes(device):
    for model_name in fixtures.FIXTURES:
        for case_name in CASES:
            assert logits_excess(model_name, case_name) < 0.5
    assert norm_excess(device) < 0.5


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.title)
def test_mistake_is_noticed(device, mutation):
    with mutation.apply():
        if mutation.title == SEEN_ON_SAME_INPUT_ONLY:
            assert norm_excess(device) > CLEAR
        else:
            excesses = (logits_excess(model, case) for model in fixtures.FIXTURES for case in CASES)
            assert any(excess > CLEAR for excess in excesses), "no fixture notices"


def test_there_are_21():
    assert len(mutations.MUTATIONS) == 21
    assert SEEN_ON_SAME_INPUT_ONLY in {mutation.title for mutation in mutations.MUTATIONS}
