"""vkprefill serve with drafts: answers as without, and files that cannot make them."""

import pytest

from tests.e2e.conftest import DEMO, PATIENCE_S, TINY
from tests.e2e.server_requests import ask, text_of, user

pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from tests.e2e.server_process import ServerProcess  # noqa: E402

pytestmark = pytest.mark.usefixtures("gpu")


def test_drafts_change_no_answer(gpu):
    """Whole and streamed, with log-probabilities, and with none for one request; counted in all places."""
    with ServerProcess("-c", 4096, "--no-specprefill", "--spec-type", "ngram", "--no-spec-draft-adaptive") as server:
        client, messages = (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0),
            user(DEMO[2]["user"]),
        )
        fields = {"logprobs": True, "top_logprobs": 2, "cache_prompt": False}
        plain = ask(client, messages, **fields, **{"speculative.n_max": 0})
        whole = ask(client, messages, **fields)
        *_, last = chunks = list(ask(client, messages, stream=True, **fields))
        assert (
            text_of(plain) == text_of(whole) == "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        )
        assert plain.choices[0].logprobs == whole.choices[0].logprobs
        counts = [(one.timings["draft_n"], one.timings["draft_n_accepted"]) for one in (plain, whole, last)]
        assert counts[0] == (0, 0) and 0 < counts[1][1] <= counts[1][0] and counts[2][1] > 0
        text = server.client.get("/metrics").text
        for name, index in (("draft_tokens_total", 0), ("draft_tokens_accepted_total", 1)):
            assert f"\nvkprefill:{name} {sum(one[index] for one in counts)}\n" in text


def test_drafts_that_the_file_cannot_make(gpu):
    with ServerProcess("-m", TINY, "-c", 1024, "--no-specprefill", "--spec-type", "draft-mtp", wait=False) as server:
        assert server.process.wait(PATIENCE_S) == 1
        assert (
            "Error: drafts of type draft-mtp: tiny-a-f32.gguf was loaded without a multi-token-prediction block; wanted"
            in server.stderr
        )
        assert "Traceback" not in server.stderr
