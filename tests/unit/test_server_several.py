"""Several answers to one request, several prompts in one, and prompts that come back with their answers."""

import pytest

from tests.unit.scripted_server import HELLO


def test_several_answers_to_a_conversation(send, engine):
    answer = send("POST", "/v1/chat/completions", json={"messages": HELLO, "n": 3, "seed": 7}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"Hello there"}
    assert [job.options.sampling.seed for job in engine.jobs] == [7, 8, 9]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (30, 15, 45)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 12}


@pytest.mark.parametrize("several", [["One", "Two"], [[1, 2, 3], [4]]])
def test_several_prompts(send, engine, several):
    answer = send("POST", "/v1/completions", json={"prompt": several, "n": 2}).json()
    assert "error" not in answer, answer
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    ids = [job.token_ids for job in engine.jobs]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    refused = send("POST", "/v1/completions", json={"prompt": several, "stream": True})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt"


def test_a_prompt_comes_back(send, engine):
    answer = send("POST", "/v1/completions", json={"prompt": "Well. ", "echo": True}).json()
    assert answer["choices"][0]["text"] == "Well. Hello there" and engine.jobs[0].echo
    text = send("POST", "/v1/completions", json={"prompt": "Well. ", "echo": True, "stream": True}).text
    assert text.count("Well. ") == 1 and '"text":"Well. Hello"' in text


def test_a_limit_of_no_tokens(send, engine):
    send("POST", "/v1/completions", json={"prompt": "x", "max_tokens": 0})
    send("POST", "/v1/completions", json={"prompt": "x", "max_tokens": -1})
    assert [job.options.max_tokens for job in engine.jobs] == [0, None]
