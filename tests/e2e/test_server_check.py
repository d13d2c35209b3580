"""The server with checked answers: wrong sparse ones are made right, whole or streamed, under load too."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.conftest import DEMO, PATIENCE_S

pytest.importorskip("uvicorn")

from tests.e2e.server_process import ServerProcess  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("gpu")]

NUM_CLIENTS, REQUESTS_EACH = 8, 3
KEPT = [[0, 16], [64, 80]]  # without the fact that is asked for
WRONG = {"kept_ranges": KEPT, "check": "on", "protect_question": False}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("-c", 8192) as made:
        yield made


def body(number: int, **fields: object) -> dict[str, object]:
    return {
        "messages": [{"role": "user", "content": DEMO[number]["user"]}],
        "max_tokens": 8,
        "temperature": 0,
        **fields,
    }


def ask(server: ServerProcess, number: int, **fields: object) -> dict[str, object]:
    response = server.client.post("/v1/chat/completions", json=body(number, **fields))
    assert response.status_code == 200, response.text
    return response.json()


def text_of(answer: dict[str, object]) -> str:
    return answer["choices"][0]["message"]["content"]


def stream(server: ServerProcess, number: int, path: str = "/v1/chat/completions", **fields: object) -> list[dict]:
    """The chunks."""
    asked = body(number, stream=True, **fields)
    if "chat" not in path:
        asked["prompt"] = asked.pop("messages")[0]["content"]
    return chunks_of(server.client.post(path, json=asked).text)


def chunks_of(events: str) -> list[dict]:
    lines = events.splitlines()
    assert lines[-2] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def assembled(chunks: list[dict]) -> str:
    """The text as a client shows it that takes back what was revised."""
    text = ""
    for chunk in chunks:
        if "revised_from" in chunk:
            text = text[: chunk["revised_from"]] + chunk["text"]
        for choice in chunk["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return text


def test_whole_answers_are_revised(server):
    statuses = set()
    for number in range(3):
        answer = ask(server, number, specprefill=WRONG, cache_prompt=False)
        check = answer["specprefill"]["check"]
        statuses.add(check["status"])
        assert answer["specprefill"]["status"] == "active" and check["dense_ms"] > 0
        assert text_of(answer) == DEMO[number]["answer"], check
    assert "revised" in statuses
    reported = ask(server, 0, specprefill=WRONG | {"on_mismatch": "report"}, cache_prompt=False)
    assert reported["specprefill"]["check"]["status"] == "differs" and text_of(reported) != DEMO[0]["answer"]
    stopped = ask(server, 0, specprefill=WRONG | {"on_mismatch": "stop"}, cache_prompt=False)
    assert stopped["choices"][0]["finish_reason"] == "check"
    assert server.metric('specprefill_checks_total{status="revised"}') >= 1
    assert server.metric('specprefill_checks_total{status="differs"}') >= 2
    assert server.metric("specprefill_check_seconds_total") > 0


def test_log_probabilities_are_the_dense_ones(server):
    fields = {"logprobs": True, "top_logprobs": 2}
    dense = ask(server, 1, specprefill=False, **fields)["choices"][0]["logprobs"]["content"]
    checked = ask(server, 1, specprefill=WRONG, **fields)
    assert checked["choices"][0]["logprobs"]["content"] == dense
    chunks = stream(server, 1, specprefill=WRONG | {"check": "wait", "on_mismatch": "revise"}, **fields)
    told = [choice["logprobs"]["content"] for c in chunks for choice in c["choices"] if choice.get("logprobs")]
    assert sum(told, []) == dense, "only what is checked is told"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_streams_are_revised(server, path):
    dense = assembled(stream(server, 0, path, specprefill=False))
    waited = WRONG | {"check": "wait"}
    chunks = stream(server, 0, path, specprefill=waited | {"on_mismatch": "revise"}, cache_prompt=False)
    revisions = [chunk for chunk in chunks if "revised_from" in chunk]
    assert len(revisions) == 1 and assembled(chunks) == dense
    assert chunks[-1]["specprefill"]["check"]["status"] == "revised"
    reported = stream(server, 0, path, specprefill=waited, cache_prompt=False)
    assert reported[-1]["specprefill"]["check"]["status"] == "differs" and assembled(reported) != dense


def test_pending_checks_are_done_while_nobody_asks(server):
    """The stream has ended; then the dense prefill goes on, and the next turn takes nothing from a pruned state."""
    chunks = stream(server, 4, specprefill=WRONG | {"check_share": 0})
    assert chunks[-1]["specprefill"]["check"]["status"] == "pending"

    def late() -> float:
        ask(server, 5, specprefill=False, max_tokens=1)  # the figures come with answers
        names = (f'specprefill_late_checks_total{{status="{status}"}}' for status in ("equal", "differs"))
        return sum(server.metric(name) for name in names)

    server.wait_for(lambda: late() == 1)
    again = ask(server, 4, specprefill=False)
    assert text_of(again) == DEMO[4]["answer"] and again["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


@pytest.mark.parametrize(
    "fields", [{"check": "sometimes"}, {"on_mismatch": 3}, {"check_share": 2}, {"check_idle": "no"}]
)
def test_bad_settings(server, fields):
    response = server.client.post("/v1/chat/completions", json=body(0, specprefill=fields))
    assert response.status_code == 400 and next(iter(fields)) in response.json()["error"]["message"]


def test_no_room_where_the_check_is_waited_for():
    with ServerProcess("-c", 512) as small:
        asked = WRONG
        assert ask(small, 0, specprefill=asked)["specprefill"]["check"]["status"] == "off"
        response = small.client.post("/v1/chat/completions", json=body(0, specprefill=asked | {"check": "wait"}))
        assert response.status_code == 400 and response.json()["error"]["message"].startswith("specprefill.check: ")


def test_eight_clients(server):
    """Checked and dense answers, whole and streamed, some left in the middle: all are those of single runs."""

    def one_client(seed: int) -> list[tuple[str, str]]:
        rng, found = random.Random(seed), []
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S, trust_env=False) as client:
            for _ in range(REQUESTS_EACH):
                number, kind = rng.randrange(6), rng.choice(["dense", "checked", "stream", "leave"])
                asked = body(number, stream=kind in ("stream", "leave"), cache_prompt=rng.random() < 0.5)
                asked["specprefill"] = False if kind == "dense" else WRONG | {"check": "wait", "on_mismatch": "revise"}
                if kind == "leave":
                    with client.stream("POST", "/v1/chat/completions", json=asked) as response:
                        next(response.iter_lines())
                    continue
                response = client.post("/v1/chat/completions", json=asked)
                assert response.status_code == 200, response.text
                text = assembled(chunks_of(response.text)) if asked["stream"] else text_of(response.json())
                found.append((text, DEMO[number]["answer"]))
        return found

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        answers = [pair for found in pool.map(one_client, range(NUM_CLIENTS)) for pair in found]
    server.wait_for(server.idle)
    assert len(answers) > NUM_CLIENTS and all(text == answer for text, answer in answers)
    assert "Traceback" not in server.stderr
