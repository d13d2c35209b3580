"""vkprefill serve with the built-in models, by the official client and by hand."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import vkprefill
from vkprefill.errors import DeviceError
from vkprefill.vulkan_probe import choose

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from tests.e2e.server_process import ServerProcess  # noqa: E402

PROMPTS = [
    json.loads(line) for line in (Path(__file__).parents[1] / "data" / "demo_prompts.jsonl").read_text().splitlines()
]
BUILT_IN = Path(vkprefill.__file__).parent / "data" / "target.gguf"
SPARSE = {"specprefill": {"min_tokens": 0, "break_even": False, "keep_ratio": 0.3, "select_mode": "chunk"}}
DENSE = {"specprefill": False}
LONG = {
    "prompt": "The",
    "max_tokens": 400,
    "temperature": 100,
    "top_k": 0,
    "seed": 1,
    "stream": True,
}  # noise, which hardly ever ends
FILLER = "The river was quiet and the bridge was old. "


@pytest.fixture(scope="module", autouse=True)
def some_device():
    try:
        choose(None)
    except DeviceError as error:
        pytest.skip(f"no Vulkan device: {error}")


@pytest.fixture(scope="module")
def server():
    with ServerProcess("-c", 4096, "--parallel", 3, "--max-queue", 4, "--body-timeout", 2) as started:
        yield started


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def ask(client, messages: list[dict[str, str]], **fields: object):
    body = {name: fields.pop(name) for name in ("specprefill", "return_progress") if name in fields}
    return client.chat.completions.create(
        model="any", messages=messages, extra_body=body, **{"max_tokens": 12, **fields}
    )


def text_of(answer) -> str:
    return answer.choices[0].message.content


# -- answers -----------------------------------------------------------------------------------------------------------


def test_dense_answers_are_those_of_single_runs(client):
    with vkprefill.load(BUILT_IN, max_context=1024) as model:
        for row in PROMPTS[:3]:
            alone = vkprefill.generate(model, row["user"], max_tokens=8)
            answer = ask(client, user(row["user"]), max_tokens=8, **DENSE)
            assert text_of(answer) == alone.text == row["answer"]
            assert answer.choices[0].finish_reason == alone.finish_reason == "stop"
            assert answer.usage.prompt_tokens == alone.timings.prompt_n and answer.specprefill["status"] == "disabled"


def test_stream_and_whole_answer(client):
    messages = user("First of all. " + PROMPTS[3]["user"])
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
    talks = [(user(f"Talk {i}. " + PROMPTS[i]["user"]), settings) for i, settings in enumerate((DENSE, DENSE, SPARSE))]
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
    first = ask(client, [system, *user("One. " + PROMPTS[4]["user"])], **SPARSE)
    second = ask(client, [system, *user("Two. " + PROMPTS[5]["user"])], **DENSE)
    length = second.usage.prompt_tokens_details.cached_tokens
    assert length > 150, "another conversation goes on after the system prompt, which was prefilled whole"
    assert first.specprefill["kept_ranges"][0][0] == 0 and first.specprefill["kept_ranges"][0][1] >= length
    assert first.specprefill["status"] == "active"


def test_kept_ranges_of_a_request(client):
    answer = ask(client, user("Again. " + PROMPTS[6]["user"]), specprefill={"kept_ranges": [[0, 64], [200, 300]]})
    report, total = answer.specprefill, answer.usage.prompt_tokens
    assert report["status"] == "active" and report["reason"] == "kept ranges given with the request"
    assert report["kept_ranges"] == [[0, 64], [200, 300], [total - 1, total]] and answer.timings["prompt_n"] == 165


def test_keep_percentages(server):
    for name, value in (("specprefill_keep_pct", 20), ("speculative_prefill_keep_pct", 0.2)):
        body = {
            "messages": user(f"{name}. " + PROMPTS[7]["user"]),
            "specprefill": {"min_tokens": 0, "break_even": False},
            name: value,
        }
        report = server.client.post("/v1/chat/completions", json=body).json()["specprefill"]
        assert (
            report["status"] == "active"
            and report["settings"]["keep_ratio"] == 0.2
            and report["settings"]["select_mode"] == "chunk"
        )


def test_short_prompts_and_tools_are_prefilled_whole(client):
    assert ask(client, user(PROMPTS[0]["user"])).specprefill["status"] == "skipped_min_tokens"
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    answer = ask(client, user(PROMPTS[0]["user"]), tools=[tool], **SPARSE)
    assert answer.specprefill["status"] == "skipped_tool_guard" and text_of(answer) == PROMPTS[0]["answer"]


def test_completions_logprobs_and_stop(client):
    answer = client.completions.create(model="any", prompt=PROMPTS[0]["prompt"], logprobs=2, max_tokens=4)
    assert answer.choices[0].text == PROMPTS[0]["answer"] and answer.choices[0].logprobs.token_logprobs[0] > -0.1

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
    answer = ask(client, user(PROMPTS[0]["user"]), logprobs=True, top_logprobs=3, temperature=0, **DENSE)
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
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, user(FILLER * 800), **DENSE)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="kept_ranges: found"):
        ask(client, user("x"), specprefill={"kept_ranges": [[5, 2]]})
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def post(body: bytes, headers: str = "", path: str = "/v1/chat/completions") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode()
        + f"{headers or f'Content-Length: {len(body)}'}\r\n\r\n".encode()
        + body
    )


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(b'{"messages": '), 400),
        (post(b"\xff\xfe"), 400),
        (post(b'{"messages": [{"role": "user", "content": "\xc3\x28"}]}'), 400),
        (post(b"", "Content-Length: 99999999999"), 413),
        (
            post(
                b"400000\r\n" + b"a" * 0x400000 + b"\r\n400001\r\n" + b"a" * 0x400001 + b"\r\n",
                "Transfer-Encoding: chunked",
            ),
            413,
        ),
        (post(b"{", "Content-Length: 100"), 408),
        (post(b"{}", path="/v1/nothing"), 404),
        (b"GET /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_bytes_by_hand(server, request_, status):
    answer = server.raw(request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert server.client.get("/health").status_code == 200


def test_full_queue(server):
    def one(_: int) -> tuple[int, str | None]:
        response = server.client.post("/v1/completions", json={**LONG, "stream": False, "max_tokens": 150})
        return response.status_code, response.headers.get("retry-after")

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(one, range(10)))
    refused = [retry for status, retry in answers if status == 503]
    assert {status for status, _ in answers} == {200, 503} and len(refused) in (4, 5)
    assert all(retry is not None and int(retry) >= 1 for retry in refused)


def run_serve(*options: object) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "vkprefill", "serve", *map(str, options)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stderr


def test_start_that_fails(server, tmp_path):
    code, err = run_serve("--port", server.port, "-m", BUILT_IN, "--no-specprefill")
    assert code == 1 and err == f"Error: 127.0.0.1 port {server.port}: cannot listen: Address already in use\n"
    code, err = run_serve("-m", tmp_path / "no.gguf")
    assert code == 1 and err.startswith("Error: ") and "no.gguf" in err and err.count("\n") == 1
    code, err = run_serve("--parallel", 0)
    assert code == 1 and err == "Error: --parallel: found 0, wanted at least 1\n"
    code, err = run_serve("--port", "0", "-m", BUILT_IN, "--device", "no such device")
    assert code == 1 and "no such device" in err and "Traceback" not in err


# -- clients that leave, signals, lost engines -------------------------------------------------------------------------


def test_health_answers_while_a_prefill_runs(server):
    times = []
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            server.client.post,
            "/v1/chat/completions",
            json={"messages": user("Health. " + FILLER * 160), "max_tokens": 1, **DENSE},
        )
        while not answer.done():
            start = time.monotonic()
            assert server.client.get("/health").status_code == 200
            times.append(time.monotonic() - start)
            time.sleep(0.02)
    assert answer.result().status_code == 200 and len(times) > 10
    assert sorted(times)[len(times) // 2] < 0.1 and max(times) < 1.0, "bounds for a busy machine"


def test_client_that_leaves_in_prefill(server, client):
    before = ask(client, user(PROMPTS[1]["user"]), **DENSE)
    body = json.dumps({"messages": user("Leave. " + FILLER * 250), "stream": True, **DENSE}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(post(body))
        server.wait_for(lambda: server.metric("requests_processing") == 1)
        time.sleep(0.3)
    assert server.wait_for(server.idle) < 2
    assert server.metric('requests_total{code="499"}') >= 1
    again = ask(client, user(PROMPTS[1]["user"]), **DENSE)
    assert (
        text_of(again) == text_of(before) == PROMPTS[1]["answer"]
        and again.usage.prompt_tokens_details.cached_tokens > 400
    )


def test_client_that_leaves_in_the_answer_or_the_queue(server, client):
    with server.client.stream("POST", "/v1/completions", json=LONG) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(post(json.dumps({"messages": user("Queue")}).encode()))
            server.wait_for(lambda: server.metric("requests_deferred") == 1)
        server.wait_for(lambda: server.metric("requests_deferred") == 0, 5)
    assert server.wait_for(server.idle) < 2
    assert text_of(ask(client, user(PROMPTS[2]["user"]), **DENSE)) == PROMPTS[2]["answer"]


def test_time_limit_and_api_key():
    with ServerProcess("-c", 4096, "--timeout", 1, "--api-key", "s3cret", "--no-specprefill", "-n", 3) as server:
        authorization = {"Authorization": "Bearer s3cret"}
        assert server.client.post("/v1/chat/completions", json={"messages": user("x")}).status_code == 401
        answer = server.client.post("/v1/completions", json={**LONG, "stream": False}, headers=authorization)
        assert answer.json()["usage"]["completion_tokens"] == 3, "-n bounds every answer"
        late = server.client.post("/v1/chat/completions", json={"messages": user(FILLER * 350)}, headers=authorization)
        assert late.status_code == 504 and "not complete after 1 s" in late.json()["error"]["message"]
        assert server.stop(signal.SIGINT) == 0


def test_sigterm_lets_a_stream_end():
    server = ServerProcess("-c", 4096, "--no-specprefill")
    with server, server.client.stream("POST", "/v1/completions", json={**LONG, "max_tokens": 150}) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(30) == 0
    assert "Traceback" not in server.stderr


def test_killed_server_takes_its_engine_along_and_starts_again():
    first = ServerProcess("-c", 1024, "--no-specprefill")
    engine, port = first.children(), first.port
    assert len(engine) >= 1
    first.stop(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in engine):
        assert time.monotonic() < deadline, "the engine is still there"
        time.sleep(0.1)
    with ServerProcess("-c", 1024, "--no-specprefill", "--port", port) as second:
        assert second.port == port
        answer = second.client.post("/v1/chat/completions", json={"messages": user(PROMPTS[0]["user"])}).json()
        assert answer["choices"][0]["message"]["content"] == PROMPTS[0]["answer"]


def test_lost_engine_is_built_again_once():
    with ServerProcess("-c", 1024, "--no-specprefill") as server:

        def lose_engine() -> None:
            for pid in server.children():
                if "multiprocessing.resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)

        assert (
            server.client.post("/v1/chat/completions", json={"messages": user("Hello"), "max_tokens": 1}).status_code
            == 200
        )
        threading.Timer(1.0, lose_engine).start()
        answer = server.client.post("/v1/completions", json={**LONG, "max_tokens": 900, "stream": False})
        assert answer.status_code == 500 and "ended unexpectedly" in answer.json()["error"]["message"]
        health = server.client.get("/health")
        assert health.status_code == 503 and health.json()["status"] == "device lost"
        server.wait_until_ready()
        lose_engine()
        assert server.process.wait(30) == 3
        assert server.stderr.rstrip().endswith("Error: the engine's process ended unexpectedly")
