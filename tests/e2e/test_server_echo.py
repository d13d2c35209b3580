"""Prompts that come back with the log-probabilities of their tokens, as lm-eval asks for them."""

import numpy as np
import pytest

import vkprefill
from tests.e2e.server_process import ServerProcess
from tests.unit.scripted_server import BUILT_IN

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.usefixtures("gpu")


@pytest.fixture(scope="module")
def server():
    with ServerProcess("-c", 1024) as started:
        yield started


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_log_probabilities_of_prompts(server, max_tokens):
    """Those of the model, as it is loaded here; the first token has none."""
    prompts = [list(range(40, 90)), [7, 8, 9]]
    body = {"prompt": prompts, "echo": True, "logprobs": 2, "max_tokens": max_tokens, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()
    with vkprefill.load(BUILT_IN, max_context=1024) as model:
        for ids, choice in zip(prompts, answer["choices"], strict=True):
            rows = model.logits(ids).astype(np.float64)
            rows -= rows.max(axis=1, keepdims=True)
            rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
            found = choice["logprobs"]
            assert len(found["tokens"]) == len(ids) + max_tokens == len(found["text_offset"])
            assert "".join(found["tokens"][: len(ids)]) == model.tokenizer.decode(ids)
            assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
            wanted = rows[np.arange(len(ids) - 1), ids[1:]]
            np.testing.assert_allclose(found["token_logprobs"][1 : len(ids)], wanted, atol=1e-4)  # chunks differ
            assert all(len(top) <= 2 for top in found["top_logprobs"][1:])
    assert answer["usage"]["completion_tokens"] == 2 * max_tokens
