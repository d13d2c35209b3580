"""vkprefill serve with the built-in models, by the official client and by hand."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import vkprefill
from tests.e2e.conftest import DEMO
from tests.e2e.server_requests import DENSE, FILLER, LONG, ask, post, text_of, user

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from tests.e2e.server_process import ServerProcess  # noqa: E402

pytestmark = pytest.mark.usefixtures("gpu")

BUILT_IN = Path(vkprefill.__file__).parent / "data" / "target.gguf"
SPARSE = {"specprefill": {"min_tokens": 0, "break_even": False, "keep_ratio": 0.3, "select_mode": "chunk"}}


@pytest.fixture(scope="module")
def server():
    with ServerProcess("-c", 4096, "--max-queue", 4, "--turns", 1) as started:
        yield started


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


# -- answers -----------------------------------------------------------------------------------------------------------


def test_dense_answers_are_those_of_single_runs(client):
    with vkprefill.load(BUILT_IN, max_context=1024) as model:
        for row in DEMO[:3]:
            alone = vkprefill.generate(model, row["user"], max_tokens=8)
            answer = ask(client, user(row["user"]), max_tokens=8, **DENSE)
            assert text_of(answer) == alone.text == row["answer"]
            assert answer.choices[0].finish_reason == alone.finish_reason == "stop"
            assert answer.usage.prompt_tokens == alone.timings.prompt_n and answer.specprefill["status"] == "disabled"


@pytest.mark.smoke
def test_stream_and_whole_answer(client):
    messages = user("First of all. " + DEMO[3]["user"])
    whole = ask(client, messages, **SPARSE)
    *_, last = chunks = list(
        ask(client, messages, stream=True, stream_options={"include_usage": True}, return_progress=True, **SPARSE)
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text_of(whole)
    assert whole.specprefill["status"] == whole.timings["specprefill"] == "active"
    assert whole.specprefill["kept_n"] == whole.timings["prompt_n"] < whole.usage.prompt_tokens / 2
    assert set(last.timings) == set(whole.timings) and set(last.specprefill) == set(whole.specprefill)
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason == "stop"
    progress = [c.prompt_progress for c in chunks if getattr(c, "prompt_progress", None)]
    assert progress and progress[-1]["processed"] == progress[-1]["total"]


def test_conversations_keep_their_caches_apart(client):
    """Two dense conversations and a sparse one in turn: each goes on from its own cache, dense never from sparse."""
    talks = [(user(f"Talk {i}. " + DEMO[i]["user"]), settings) for i, settings in enumerate((DENSE, DENSE, SPARSE))]
    for turn in range(3):
        for messages, settings in talks:
            answer = ask(client, messages, max_tokens=6, **settings)
            cached = answer.usage.prompt_tokens_details.cached_tokens
            assert cached == answer.timings["cache_n"] == answer.specprefill["cached_n"]
            assert cached == 0 if turn == 0 else cached > 400
            messages += [{"role": "assistant", "content": text_of(answer)}, *user("And which colour does Robert like?")]
    sparse, _ = talks[2]
    assert ask(client, sparse, max_tokens=2, **DENSE).usage.prompt_tokens_details.cached_tokens < 10


def test_system_prompt_is_shared_and_kept(client):
    system = {"role": "system", "content": "Answer about the text. " + FILLER * 20}
    first = ask(client, [system, *user("One. " + DEMO[4]["user"])], **SPARSE)
    second = ask(client, [system, *user("Two. " + DEMO[5]["user"])], **DENSE)
    length = second.usage.prompt_tokens_details.cached_tokens
    assert length > 150, "another conversation goes on after the system prompt, which was prefilled whole"
    assert first.specprefill["kept_ranges"][0][0] == 0 and first.specprefill["kept_ranges"][0][1] >= length
    assert first.specprefill["status"] == "active"


def test_kept_ranges_of_a_request(client):
    answer = ask(client, user("Again. " + DEMO[6]["user"]), specprefill={"kept_ranges": [[0, 64], [200, 300]]})
    report, total = answer.specprefill, answer.usage.prompt_tokens
    assert report["status"] == "active" and report["reason"] == "kept ranges given with the request"
    *given, (start, end) = report["kept_ranges"]  # and the tokens that open the answer
    assert given == [[0, 64], [200, 300]] and 1 <= end - start < 8 and end == total
    assert answer.timings["prompt_n"] == 164 + end - start


def test_no_answer_from_the_pruned_cache_of_another(client):
    """One client drops all but the system prompt; another with the same prompt gets the exact answer."""
    messages = [{"role": "system", "content": "Answer in a word. " + FILLER * 4}, *user("Alone. " + DEMO[8]["user"])]
    pruned = ask(client, messages, specprefill={"kept_ranges": []})
    assert pruned.specprefill["kept_n"] + pruned.specprefill["cached_n"] < 200
    assert pruned.specprefill["cached_ranges"] in ([], [[0, pruned.specprefill["cached_n"]]])
    exact = ask(client, messages, cache_prompt=False, **DENSE)
    assert exact.usage.prompt_tokens_details.cached_tokens == 0
    for settings in ({}, DENSE, {}):
        answer = ask(client, messages, **settings)
        assert text_of(answer) == text_of(exact)
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert answer.specprefill["cached_ranges"] == [[0, cached]] and cached > 30


def test_keep_percentages(server):
    for name, value in (("specprefill_keep_pct", 20), ("speculative_prefill_keep_pct", 0.2)):
        body = {
            "messages": user(f"{name}. " + DEMO[7]["user"]),
            "specprefill": {"min_tokens": 0, "break_even": False},
            name: value,
        }
        report = server.client.post("/v1/chat/completions", json=body).json()["specprefill"]
        assert (
            report["status"] == "active"
            and report["settings"]["keep_ratio"] == 0.2
            and report["settings"]["select_mode"] == "chunk"
        )
        assert report["unused"] == {}


def test_settings_that_cannot_count_are_named(server):
    def unused(**fields: object) -> dict[str, str]:
        body = {"messages": user("Named. " + DEMO[7]["user"]), "max_tokens": 1, **fields}
        return server.client.post("/v1/chat/completions", json=body).json()["specprefill"]["unused"]

    asked = {"scorer": "self", "lookahead": 2, "keep_ratio": 0.3, "min_tokens": 0, "on_mismatch": "report"}
    assert list(unused(specprefill=asked)) == ["keep_ratio", "lookahead", "on_mismatch"]
    off = unused(specprefill=False, specprefill_keep_pct=20)
    assert off == dict.fromkeys(("select_mode", "keep_ratio"), "speculative prefill is off")


def test_short_prompts_and_tools_are_prefilled_whole(client):
    assert ask(client, user(DEMO[0]["user"])).specprefill["status"] == "skipped_min_tokens"
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    answer = ask(client, user(DEMO[0]["user"]), tools=[tool], **SPARSE)
    assert answer.specprefill["status"] == "skipped_tool_guard" and text_of(answer) == DEMO[0]["answer"]


def test_completions_logprobs_and_stop(client):
    answer = client.completions.create(model="any", prompt=DEMO[0]["prompt"], logprobs=2, max_tokens=4)
    assert answer.choices[0].text == DEMO[0]["answer"] and answer.choices[0].logprobs.token_logprobs[0] > -0.1

    def noise(max_tokens: int, **fields: object):
        return client.completions.create(
            model="any", prompt="The", max_tokens=max_tokens, temperature=100, seed=1, extra_body={"top_k": 0}, **fields
        )

    whole = noise(60).choices[0].text
    assert len(whole) > 60
    stop = whole[20:26]
    cut = noise(60, stop=[stop])
    assert cut.choices[0].text == whole[: whole.index(stop)] and cut.choices[0].finish_reason == "stop"
    limited = noise(5)
    assert (
        limited.choices[0].finish_reason == "length"
        and limited.usage.completion_tokens == 5
        and whole.startswith(limited.choices[0].text)
    )


def test_chat_logprobs(client):
    answer = ask(client, user(DEMO[0]["user"]), logprobs=True, top_logprobs=3, temperature=0, **DENSE)
    entries = answer.choices[0].logprobs.content
    assert "".join(e.token for e in entries) == text_of(answer)
    assert all(len(e.top_logprobs) == 3 and e.top_logprobs[0].token == e.token and e.logprob <= 0 for e in entries)


def test_models(client):
    (model,) = client.models.list()
    assert client.models.retrieve(model.id).id == "target"


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_errors_as_the_client_sees_them(client):
    with pytest.raises(openai.BadRequestError, match="temperature: found 500"):
        ask(client, user("x"), temperature=500)
    for fields in (DENSE, {}):  # refused by the server, and by the engine: a sparse prefill might have made it fit
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, user(FILLER * 600), **fields)
        assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="kept_ranges: found"):
        ask(client, user("x"), specprefill={"kept_ranges": [[5, 2]]})
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(b'{"messages": '), 400),
        (post(b"\xff\xfe"), 400),
        (post(b'{"messages": [{"role": "user", "content": "\xc3\x28"}]}'), 400),
        (post(b"", "Content-Length: 99999999999"), 413),
        (post(b"500000\r\n" + b"a" * 0x400001, "Transfer-Encoding: chunked"), 413),  # all of it is read: no reset
        (post(b"{}", path="/v1/nothing"), 404),
        (post(b"2\r\n{}\r\n0\r\n\r\n", "Content-Length: 2\r\nTransfer-Encoding: chunked"), 400),
        (b"GET /health HTTP/1.1\r\nHost: evil.test\r\n\r\n", 403),
        (b"GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_bytes_by_hand(server, request_, status):
    answer = server.raw(request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert server.client.get("/health").status_code == 200


def test_full_queue(server):
    with ThreadPoolExecutor(5) as pool, server.engine_paused():

        def one() -> httpx.Response:
            return server.client.post("/v1/completions", json={**LONG, "stream": False, "max_tokens": 2})

        admitted = [pool.submit(one) for _ in range(5)]
        server.wait_for(lambda: server.metric("requests_deferred") == 4)
        refused = one()
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
    assert [answer.result().status_code for answer in admitted] == [200] * 5


def test_start_that_fails(server, cli, tmp_path):
    def run_serve(*options: object, **env: str) -> tuple[int, str]:
        done = cli("serve", *options, env=env)
        return done.code, done.err

    code, err = run_serve("--port", server.port, "-m", BUILT_IN, "--no-specprefill")
    assert code == 1 and err == f"Error: 127.0.0.1 port {server.port}: cannot listen: Address already in use\n"
    code, err = run_serve("-m", tmp_path / "no.gguf")
    assert code == 1 and err.startswith("Error: ") and "no.gguf" in err and err.count("\n") == 1
    code, err = run_serve("--parallel", 0)
    assert code == 1 and err == "Error: --parallel: found 0, wanted at least 1\n"
    for options, env, asked in (
        (("--api-key", ""), {}, "--api-key"),
        ((), {"VKPREFILL_API_KEY": ""}, "VKPREFILL_API_KEY"),
    ):
        code, err = run_serve("--port", "0", "-m", BUILT_IN, *options, **env)
        assert code == 1 and err == f"Error: {asked}: found an empty one, wanted a text that a header can carry\n"
    code, err = run_serve("--port", "0", "-m", BUILT_IN, "--device", "no such device")
    assert code == 1 and "no such device" in err and "Traceback" not in err and "warning" not in err
    code, err = run_serve("--port", "0", "-m", BUILT_IN, "--device", "no such device", "--host", "0.0.0.0")
    assert code == 1 and "warning: no --api-key" in err


# -- clients that leave ------------------------------------------------------------------------------------------------


def test_health_answers_while_the_engine_works(server):
    """However long a submission takes."""
    body = {"messages": user("Health."), "max_tokens": 1, **DENSE}
    with ThreadPoolExecutor(1) as pool:
        with server.engine_paused():
            answer = pool.submit(server.client.post, "/v1/chat/completions", json=body)
            server.wait_for(lambda: server.metric("requests_processing") == 1)
            assert {server.client.get("/health").status_code for _ in range(20)} == {200} and not answer.done()
        assert answer.result().status_code == 200


def test_client_that_leaves_in_prefill(server, client):
    """Its work ends: the prompt is not in the cache. What others have there stays."""
    before, left = ask(client, user(DEMO[1]["user"]), **DENSE), server.num_left()
    body = {"messages": user("Leave. " + FILLER * 250), "max_tokens": 1, **DENSE}
    streamed = {**body, "stream": True, "return_progress": True}
    with server.client.stream("POST", "/v1/chat/completions", json=streamed) as response:
        lines = response.iter_lines()
        while "prompt_progress" not in next(lines):
            pass
        with server.engine_paused():
            response.close()
            time.sleep(0.5)  # until the server has told the engine; where it takes longer, so does the prefill
    server.wait_for(lambda: server.num_left() == left + 1)
    again = ask(client, user(DEMO[1]["user"]), **DENSE)
    assert text_of(again) == text_of(before) == DEMO[1]["answer"]
    assert again.usage.prompt_tokens_details.cached_tokens > 400
    whole = server.client.post("/v1/chat/completions", json=body).json()
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] < 10


def test_client_that_leaves_in_the_answer_or_the_queue(server, client):
    left = server.num_left()
    with server.client.stream("POST", "/v1/completions", json={**LONG, "max_tokens": 3000}) as response:
        lines = response.iter_lines()  # without a name it would be closed, and the connection with it
        assert next(lines).startswith("data: ")
        with server.engine_paused():
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(post(json.dumps({"messages": user("Queue")}).encode()))
                server.wait_for(lambda: server.metric("requests_deferred") == 1)
            server.wait_for(lambda: server.metric("requests_deferred") == 0)
    server.wait_for(lambda: server.num_left() == left + 2 and server.idle())
    assert text_of(ask(client, user(DEMO[2]["user"]), **DENSE)) == DEMO[2]["answer"]
