"""Answers of the built-in pair: right ones, of whole prompts and of those that a draft chose from."""

import pytest

import vkprefill
from tests.model.conftest import BUILT_IN
from tests.model.sparse_requests import GREEDY, PROMPTS
from vkprefill import SpecPrefill, SpecPrefillConfig
from vkprefill.specprefill import guards

DENSE, SPARSE = PROMPTS[:3], PROMPTS[7:10]  # up to 900 and 2,200 tokens


@pytest.fixture(scope="module")
def target():
    with vkprefill.load(BUILT_IN, max_context=4096) as model:
        yield model


@pytest.fixture(scope="module")
def draft():
    with vkprefill.load(BUILT_IN.with_name("draft.gguf"), max_context=4096) as model:
        yield model


@pytest.fixture(scope="module")
def pair(target, draft):
    """Without the guard that asks whether it is worth while: speeds of the emulated device say nothing."""
    made = SpecPrefill(target, draft, SpecPrefillConfig(break_even=False))
    yield made
    made.close()


@pytest.mark.parametrize("sample", DENSE, ids=lambda sample: sample["answer"])
def test_dense(target, sample):
    answer = vkprefill.generate(target, sample["user"], sampling=GREEDY)
    assert (answer.text, answer.finish_reason) == (sample["answer"], "stop")


@pytest.mark.parametrize("sample", SPARSE, ids=lambda sample: sample["answer"])
def test_sparse(target, pair, sample):
    answer = vkprefill.generate(target, sample["user"], draft=pair, sampling=GREEDY)
    assert answer.specprefill.status == guards.ACTIVE
    assert answer.specprefill.kept_n < 0.6 * sample["n_tokens"]
    assert (answer.text, answer.finish_reason) == (sample["answer"], "stop")
