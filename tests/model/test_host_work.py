"""The interpreter works once a run, not once a layer: a program is recorded at load and replayed."""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import vkprefill
from tools.make_model import make_config, make_model
from vkprefill.engine.model import Model
from vkprefill.engine.step_input import Best

CHUNK = 8


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Iterator[list[Model]]:
    """Of 4 and of 12 layers."""
    with ExitStack() as stack:
        loaded = []
        for layers in (4, 12):
            config = make_config(num_hidden_layers=layers)
            path = make_model(tmp_path_factory.mktemp("host-work") / f"{layers}.gguf", config)
            try:
                model = vkprefill.load(path, max_context=512, prefill_chunk=CHUNK)
            except vkprefill.DeviceError as error:
                pytest.skip(f"no Vulkan device: {error}")
            loaded.append(stack.enter_context(model))
        yield loaded


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """How often work calls each function, written in Python or in C."""
    calls: Counter[str] = Counter()

    def count(frame, event: str, argument: object) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1
        elif event == "c_call":
            calls[argument.__name__] += 1

    gc.disable()  # it may call finalisers at any time
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def counts_of_a_step(model: Model, what: str) -> Counter[str]:
    cache = model.new_cache()

    def step() -> None:
        if what == "decode":
            model.decode_candidates(1, cache, Best(4))
        else:
            model.prefill_candidates([1] * (3 * CHUNK - 1), cache, Best(4))

    for _ in range(2):  # what is done once only, or differs on the empty cache
        step()
    calls, again = calls_of(step), calls_of(step)
    cache.close()
    assert calls == again, "nor on the tokens cached"
    if what == "decode":
        assert calls["eval"] == 1
    else:  # each chunk in submissions of bounded work, of which more layers take more; then the undo copy and the head
        chunks = 3 * model.runner.prefill_program.num_submissions
        assert [calls.pop(name) for name in ("eval", "_submit", "between")] == [chunks + 2, chunks + 2, chunks]
    return calls


@pytest.mark.parametrize("what", ["decode", "prefill"])
def test_calls_do_not_depend_on_the_layers(models, what):
    """A model of 4 layers and one of 12 call the same functions equally often, but for what runs once a submission."""
    if not models[0].device.has_barrier:
        pytest.skip("without the barrier operation each level is a submission of its own")
    few, many = (counts_of_a_step(model, what) for model in models)
    assert few == many
