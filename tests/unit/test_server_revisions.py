"""Answers that a check revised, as clients are told: the event of a stream, the whole answer, the counters."""

import pytest

from tests.unit.scripted_server import REPORT, TIMINGS
from vkprefill.server.engine.jobs import Done, Piece
from vkprefill.server.http.completions import _piece_chunks
from vkprefill.server.http.metrics import NOW, Metrics
from vkprefill.server.protocol.answers import ChatAnswer, CompletionAnswer
from vkprefill.specprefill.plan import check_report
from vkprefill.text.answer_text import AnswerText

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALL = "<tool_call>\n<function={}>\n</function>\n</tool_call>"
DONE = Done(1, "stop", TIMINGS, REPORT)


def chat(*, thinking: bool = False, tools: object = None, logprobs: bool = False) -> ChatAnswer:
    return ChatAnswer("demo", AnswerText(thinking=thinking, tools=tools), logprobs=logprobs)


def take(answer, *pieces: Piece) -> list[dict]:
    """The chunks of the pieces."""
    return [chunk for piece in pieces for chunk in _piece_chunks(piece, answer)]


def entry(token: str) -> dict[str, object]:
    return {"id": 1, "token": token, "bytes": list(token.encode()), "logprob": -0.5, "top_logprobs": []}


def test_content_is_counted_in_code_points():
    answer = chat()
    chunks = take(answer, Piece(1, "\U0001f600 It is "), Piece(1, "a duck"), Piece(1, "a pig", revised_from=8))
    (revision,) = (chunk for chunk in chunks if "revised_from" in chunk)
    assert (revision["revised_from"], revision["text"], revision["choices"]) == (10, "pig", []), "'a ' is the same"
    assert "reasoning_content" not in revision and "tool_calls" not in revision
    (after,) = take(answer, Piece(1, "eon."))
    assert after["choices"][0]["delta"] == {"content": "eon."}
    assert answer.whole(DONE)["choices"][0]["message"]["content"] == "\U0001f600 It is a pigeon."


def test_reasoning_is_told_whole_where_it_changes():
    answer = chat(thinking=True)
    take(answer, Piece(1, "A duck swims.</think>\n\nA duck"))
    (revision,) = take(answer, Piece(1, "pigeon flies.</think>\n\nA", revised_from=2))
    assert revision["reasoning_content"] == "A pigeon flies."
    assert (revision["revised_from"], revision["text"]) == (1, ""), "the content so far is 'A'"
    take(answer, Piece(1, " pigeon"))
    message = answer.whole(DONE)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("A pigeon flies.", "A pigeon")


def test_calls_are_told_whole_where_they_change():
    answer = chat(tools=TOOLS)
    take(answer, Piece(1, CALL.format("look")))
    (revision,) = take(answer, Piece(1, "No call.", revised_from=0))
    assert revision["tool_calls"] == [] and revision["text"] == "No call."
    (revision,) = take(answer, Piece(1, CALL.format("look"), revised_from=0))
    assert [call["function"]["name"] for call in revision["tool_calls"]] == ["look"] and revision["text"] == ""
    assert answer.whole(DONE)["choices"][0]["finish_reason"] == "tool_calls"


def test_log_probabilities_follow():
    chunks = take(chat(logprobs=True), Piece(1, "a"), Piece(1, "b", (entry("b"),), 0), Piece(1, "c", (entry("c"),)))
    told = [choice["logprobs"]["content"] for c in chunks for choice in c["choices"] if choice["logprobs"]]
    assert [one["token"] for one in sum(told, [])] == ["b", "c"]
    answer = CompletionAnswer("demo", logprobs=True)
    chunks = take(answer, Piece(1, "a"), Piece(1, "b", (entry("b"),), 0))
    assert chunks[1]["text"] == "b" and chunks[2]["choices"][0]["logprobs"]["tokens"] == ["b"]
    whole = answer.whole(DONE)["choices"][0]
    assert whole["text"] == "b" and whole["logprobs"]["tokens"] == ["b"]


def test_counters():
    metrics = Metrics()

    def value(name: str) -> float:
        lines = metrics.text(dict.fromkeys(NOW, 0)).splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vkprefill:{name} "))

    assert value('specprefill_checks_total{status="revised"}') == 0
    for status, late in (("revised", {}), ("pending", {"equal": 1}), ("pending", {"equal": 1, "differs": 2})):
        check = check_report(status, "r") | {"dense_ms": 1500.0, "verify_ms": 500.0}
        metrics.answered(Done(1, "stop", TIMINGS, REPORT | {"check": check}, late_checks=late))
    assert value('specprefill_checks_total{status="revised"}') == 1
    assert value('specprefill_checks_total{status="pending"}') == 2
    assert value("specprefill_check_seconds_total") == pytest.approx(6)
    found = [value(f'specprefill_late_checks_total{{status="{status}"}}') for status in ("equal", "differs")]
    assert found == [1, 2], "as the engine counts them, since its start"
