"""A line for each request, with its id and figures and without any of its text; stderr in JSON."""

import json
import logging
import sys

import pytest

from tests.unit.scripted_server import HELLO, events
from vkprefill import log_lines
from vkprefill.cli.common import notice
from vkprefill.server.api_error import ApiError

SECRET = "of nobody's concern"
WHO = [{"role": "user", "content": SECRET}]


@pytest.fixture
def lines(caplog, request):
    """lines() -> the lines of JSON for the requests so far."""
    caplog.set_level(logging.INFO, log_lines.REQUESTS)

    def read() -> list[dict[str, object]]:
        made = [log_lines.JsonLines().format(one) for one in caplog.records if one.name == log_lines.REQUESTS]
        assert all("\n" not in line and SECRET not in line and "s3cret" not in line for line in made)
        return [json.loads(line) for line in made]

    return read


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer(send, engine, lines, stream):
    engine.pieces = [SECRET, "more"]
    response = send(
        "POST", "/v1/chat/completions", json={"messages": WHO, "stream": stream}, headers={"X-Api-Key": "s3cret"}
    )
    assert response.status_code == 200
    (line,) = lines()
    request_id = response.headers["x-request-id"]
    assert line.pop("duration_ms") >= line.pop("first_token_ms") >= 0 and line.pop("time").endswith("+00:00")
    assert line.pop("message").startswith("POST /v1/chat/completions: 200 in ")
    assert line == {
        "level": "info",
        "id": request_id,
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "queue_ms": 250,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "answer_tokens": 5,
        "prompt_ms": 1,
        "answer_ms": 2,
        "finish_reason": "stop",
        "specprefill": "active",
    }


def test_several_answers_are_one_request(send, lines):
    send("POST", "/v1/completions", json={"prompt": ["a", "b"], "n": 2})
    (line,) = lines()
    assert (line["prompt_tokens"], line["answer_tokens"], line["queue_ms"]) == (40, 20, 1000)


def test_requests_that_fail(send, engine, lines):
    send("POST", "/v1/chat/completions", json={"messages": WHO, "temperature": SECRET})
    send("GET", "/nowhere?prompt=" + SECRET)
    engine.error = ApiError(500, SECRET)
    assert send("POST", "/v1/chat/completions", json={"messages": WHO}).status_code == 500
    events(send("POST", "/v1/chat/completions", json={"messages": WHO, "stream": True}))
    found = lines()
    assert [line["status"] for line in found] == [400, 404, 500, 500], "a stream's too, whose head says 200"
    assert found[1]["path"] == "/nowhere" and "prompt_tokens" not in found[2]


def test_probes_are_told_when_refused(send, lines):
    assert send("GET", "/health").status_code == send("GET", "/metrics").status_code == 200
    assert lines() == [] and send("DELETE", "/health").status_code == 405
    assert [line["status"] for line in lines()] == [405]


@pytest.mark.parametrize("given", ["a", "5f0c-7.2:x/y+z=@_", "x" * 128])
def test_a_given_id_is_kept(send, lines, given):
    assert send("GET", "/v1/models", headers={"X-Request-Id": given}).headers["x-request-id"] == given
    assert lines()[0]["id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\tb", "\u00e9".encode(), '"'])
def test_other_ids_are_replaced(send, lines, given):
    found = [send("GET", "/v1/models", headers={"X-Request-Id": given}).headers["x-request-id"] for _ in range(2)]
    assert found[0] != found[1] and [line["id"] for line in lines()] == found
    assert all(len(one) == 32 and one.isalnum() for one in found)


def test_every_answer_has_one(send, engine, monkeypatch):
    assert "x-request-id" in send("GET", "/nowhere").headers
    assert "x-request-id" in send("GET", "/health", headers={"Origin": "http://elsewhere"}).headers
    monkeypatch.setattr(engine, "run", lambda job: 1 / 0)
    response = send("POST", "/v1/chat/completions", json={"messages": HELLO})
    assert response.status_code == 500 and "x-request-id" in response.headers


@pytest.fixture
def as_json(monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_lines.set_up(logging.WARNING, log_lines.JSON)
    yield
    logging.getLogger(log_lines.REQUESTS).setLevel(logging.NOTSET)


def test_notices_in_json(as_json, capsys):
    notice("listening on\nsomewhere")
    notice("warning: no --api-key")
    notice("Error: no")
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one["level"], one["message"]) for one in found] == [
        ("info", "listening on\nsomewhere"),
        ("warning", "warning: no --api-key"),
        ("error", "Error: no"),
    ]


def test_errors_in_json_have_their_place_and_not_their_text():
    try:
        raise KeyError(SECRET)
    except KeyError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "job %d", (3,), sys.exc_info())
    line = log_lines.JsonLines().format(record)
    found = json.loads(line)
    assert (found["level"], found["message"], found["exception"]) == ("error", "job 3", "KeyError")
    assert "test_server_request_log.py" in found["trace"] and SECRET not in line
