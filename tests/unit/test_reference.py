"""The numpy reference against llama.cpp's arrays, and whether those arrays notice mistakes.

First anchor: every stored array equals the reference's within limits that only float32 rounding (llama.cpp's) explains.
Second: each of the mistakes in `mutations.py` moves at least one array beyond the wider limits of the engine's tests.
"""

import functools

import numpy as np
import pytest

from tests.reference import delta_rule, fixtures, mutations, same_input
from tests.reference.forward import ReferenceModel

# Largest differences measured (float64, recurrent and chunked, all models): logits 3.5e-5, softmax rows 3.3e-6,
# other arrays 3.0e-5 of the RMS (final_output, whose norm enlarges small delta outputs).
REFERENCE_LOGITS = 1e-4  # absolute
REFERENCE_SOFTMAX_ROWS = 1e-5  # absolute
REFERENCE_OTHER = 1e-4  # part of the RMS


@functools.cache
def reference_model(name: str) -> ReferenceModel:
    return ReferenceModel(fixtures.model_path(name))


def run_case(model: ReferenceModel, case: fixtures.Case) -> list[dict[str, np.ndarray]]:
    state = model.new_state()
    return [model.forward(token_ids, positions, state) for token_ids, positions in case.parts()]


def reference_limit(name: str, stored: np.ndarray) -> float:
    absolute = {"result_output": REFERENCE_LOGITS, "kq_soft_max": REFERENCE_SOFTMAX_ROWS}
    return absolute.get(fixtures.array_kind(name), REFERENCE_OTHER * fixtures.rms(stored))


def difference(got: np.ndarray, stored: np.ndarray, label: str) -> float:
    assert got.shape == stored.shape, f"{label}: shape {got.shape}, stored {stored.shape}"
    assert np.isfinite(got).all(), f"{label}: NaN or infinity"
    return float(np.abs(got - stored).max())


@pytest.mark.parametrize("case_name", fixtures.CASES)
@pytest.mark.parametrize("model_name", fixtures.FIXTURES)
def test_reference_equals_llama_cpp(model_name, case_name):
    model, case = reference_model(model_name), fixtures.load_case(model_name, case_name)
    outputs = run_case(model, case)
    for name, stored in case.arrays.items():
        label = f"{model_name} {case_name}/{name}"
        error = difference(case.select(name, outputs), stored, label)
        assert error <= reference_limit(name, stored), f"{label}: {error:.2e}"


@pytest.mark.parametrize("model_name", fixtures.FIXTURES)
def test_case_p7_stores_every_intermediate(model_name):
    model, case = reference_model(model_name), fixtures.load_case(model_name, "p7")
    computed = set(run_case(model, case)[0])
    # the state after a call is stored where it has had time to grow: p65, p200
    assert {name for name in computed - set(case.arrays) if not name.startswith("new_state")} == set()


def test_mtp_block_equals_llama_cpp():
    model, case = reference_model("tiny-d-mixed"), fixtures.load_case("tiny-d-mixed", "mtp")
    out = model.forward_mtp(case.arrays["hidden"], case.token_ids, case.positions, model.new_kv_state())
    for name in ("mtp_eh_proj-4", "h_nextn", "result_output"):
        stored = case.arrays[name]
        assert difference(out[name], stored, name) <= reference_limit(name, stored)


@pytest.mark.parametrize("model_name", fixtures.FIXTURES)
def test_operations_on_llama_cpp_inputs(model_name):
    model, case, seen = reference_model(model_name), fixtures.load_case(model_name, "p7"), set()
    for operation, layer, inputs, stored in same_input.operations(model, case):
        label = f"{model_name} {operation.output}-{layer}"
        error = difference(operation.compute(model, layer, *inputs), stored, label) / fixtures.rms(stored)
        assert error <= operation.limit, f"{label}: {error:.2e}"
        seen.add(operation.output)
    assert seen == {operation.output for operation in same_input.OPERATIONS}


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 130])
def test_chunked_delta_rule_equals_recurrent(tokens, chunk):
    rng = np.random.default_rng(tokens)
    q, k = rng.standard_normal((2, tokens, 2, 16))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, state = rng.standard_normal((tokens, 6, 8)), rng.standard_normal((6, 8, 16))
    log_decay = -np.exp(rng.uniform(np.log(1e-4), np.log(60), (tokens, 6)))  # from hardly any decay to none left
    beta = rng.uniform(0, 1, (tokens, 6))
    expected, expected_state = delta_rule.recurrent(q, k, v, log_decay, beta, state)
    outputs, new_state = delta_rule.chunked(q, k, v, log_decay, beta, state, chunk)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(new_state, expected_state, rtol=0, atol=1e-10)


def whole_model_excesses():
    """(difference / the engine's limit, array) for every array of the cases with most arrays and with several calls."""
    for model_name in fixtures.FIXTURES:
        for case_name in ("p7", "gaps"):
            case = fixtures.load_case(model_name, case_name)
            outputs = run_case(reference_model(model_name), case)
            for name, stored in case.arrays.items():
                label = f"{model_name} {case_name}/{name}"
                yield difference(case.select(name, outputs), stored, label) / fixtures.engine_limit(case, name), label


def same_input_excesses():
    """The same for single operations on llama.cpp's inputs."""
    for model_name in fixtures.FIXTURES:
        model, case = reference_model(model_name), fixtures.load_case(model_name, "p7")
        for operation, layer, inputs, stored in same_input.operations(model, case):
            label = f"{model_name} p7/{operation.output}-{layer} from {', '.join(operation.inputs)}"
            error = difference(operation.compute(model, layer, *inputs), stored, label)
            yield error / (operation.limit * fixtures.rms(stored)), label


# Too small for any limit that a float32 model could keep (logits move by 2e-4); only a test of the norm itself sees it.
SEEN_ON_SAME_INPUT_ONLY = {"l2 epsilon added to the mean"}
# A mutation must exceed the limit clearly, so that another driver's rounding cannot hide it.
CLEAR = 2.0


def test_mutation_table():
    titles = [mutation.title for mutation in mutations.MUTATIONS]
    assert len(titles) == len(set(titles)) == 21
    assert set(titles) >= SEEN_ON_SAME_INPUT_ONLY


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.title)
def test_mistake_is_noticed(mutation):
    with mutation.apply():
        in_model, in_operation = max(whole_model_excesses()), max(same_input_excesses())
    print(f"\n{mutation.title}: x{in_model[0]:.3g} {in_model[1]}; x{in_operation[0]:.3g} {in_operation[1]}")
    if mutation.title in SEEN_ON_SAME_INPUT_ONLY:
        assert in_operation[0] > CLEAR
        assert "_conv_predelta-" in in_operation[1]
    else:
        assert in_model[0] > CLEAR


def test_mutations_are_undone():
    """After all of them the reference is the true one again, far inside every limit."""
    for mutation in mutations.MUTATIONS:
        with mutation.apply():
            pass
    assert max(whole_model_excesses())[0] < 0.2
    assert max(same_input_excesses())[0] < 0.5
