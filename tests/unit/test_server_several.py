"""Several answers to one request, several prompts in one, and prompts that come back with their answers."""

import pytest

from tests.unit.scripted_server import HELLO, events
from vkprefill.server.api_error import ApiError


def test_several_answers_to_a_conversation(send, engine):
    answer = send("POST", "/v1/chat/completions", json={"messages": HELLO, "n": 3, "seed": 7}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"Hello there"}
    assert [job.options.sampling.seed for job in engine.jobs] == [7, 8, 9]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 15, 25)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}, "of the prompt, which is one"


@pytest.mark.parametrize("several", [["One", "Two"], [[1, 2, 3], [4]]])
def test_several_prompts(send, engine, several):
    answer = send("POST", "/v1/completions", json={"prompt": several, "n": 2}).json()
    assert "error" not in answer, answer
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    ids = [job.token_ids for job in engine.jobs]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert answer["usage"]["prompt_tokens"] == 20


@pytest.mark.parametrize("with_usage", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "usage"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "n": 3}, (10, 15)),
        ("/v1/completions", {"prompt": ["One", "Two"], "n": 2}, (20, 20)),
    ],
)
def test_a_stream_has_them_one_after_another(send, engine, path, body, usage, with_usage):
    """Each with its number and its end; what all used comes once, at the end."""
    options = {"stream": True, "logprobs": 1 if "prompt" in body else True}
    chunks = events(send("POST", path, json={**body, **options, "stream_options": {"include_usage": with_usage}}))
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    numbers = [choice["index"] for choice in choices]
    assert numbers == sorted(numbers) and set(numbers) == set(range(len(engine.jobs)))
    for number in set(numbers):
        *parts, last = [choice for choice in choices if choice["index"] == number]
        text = "".join(part["text"] if "text" in part else part["delta"].get("content", "") for part in parts)
        assert text == "Hello there" and last["finish_reason"] == "stop"
        assert not any(part["finish_reason"] for part in parts)
    (used,) = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    assert (used["prompt_tokens"], used["completion_tokens"]) == usage and chunks[-1]["usage"] == used
    assert bool(chunks[-1]["choices"]) != with_usage


def test_what_fails_later_ends_the_stream(send, engine):
    engine.error = ApiError(500, "broken")
    *_, last = events(send("POST", "/v1/chat/completions", json={"messages": HELLO, "n": 2, "stream": True}))
    assert last["error"]["message"] == "broken" and len(engine.jobs) == 1


def test_a_prompt_comes_back(send, engine):
    answer = send("POST", "/v1/completions", json={"prompt": "Well. ", "echo": True}).json()
    assert answer["choices"][0]["text"] == "Well. Hello there" and engine.jobs[0].echo
    text = send("POST", "/v1/completions", json={"prompt": "Well. ", "echo": True, "stream": True}).text
    assert text.count("Well. ") == 1 and '"text":"Well. Hello"' in text


def test_a_prompt_comes_back_before_no_answer(send, engine):
    engine.pieces = []
    body = {"prompt": ["One", "Two"], "echo": True, "max_tokens": 0}
    whole = send("POST", "/v1/completions", json=body).json()["choices"]
    chunks = events(send("POST", "/v1/completions", json={**body, "stream": True}))
    streamed = ["".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == i) for i in (0, 1)]
    assert [choice["text"] for choice in whole] == streamed == ["One", "Two"]


def test_a_limit_of_no_tokens(send, engine):
    send("POST", "/v1/completions", json={"prompt": "x", "max_tokens": 0})
    send("POST", "/v1/completions", json={"prompt": "x", "max_tokens": -1})
    assert [job.options.max_tokens for job in engine.jobs] == [0, None]
