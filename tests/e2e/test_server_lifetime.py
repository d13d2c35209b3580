"""vkprefill serve as a service: its limits, signals that end it, engines that hang or are lost."""

import json
import os
import resource
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.e2e.conftest import DEMO, PATIENCE_S
from tests.e2e.server_requests import LONG, post, user
from tests.reference.fixtures import model_path

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from tests.e2e.server_process import ServerProcess, runs  # noqa: E402

pytestmark = pytest.mark.usefixtures("gpu")

ENDLESS = model_path("tiny-b-f32")  # by the most probable token, its answer to "a" does not end for thousands of tokens


def test_as_a_service(tmp_path, monkeypatch):
    """Options by variables, keys in a file that changes, most tokens of an answer, and a log of JSON alone."""
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text("# of the test\ns3cret\n")
    for name, value in {"CTX_SIZE": "4096", "N_PREDICT": "3", "API_KEY_FILE": str(keys), "LOG_FORMAT": "json"}.items():
        monkeypatch.setenv(f"VKPREFILL_{name}", value)
    with ServerProcess("--no-specprefill") as server:

        def ask(key: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}", "X-Request-Id": f"by-{len(key)}"}
            body = {**LONG, "prompt": "Unspeakable", "stream": False}
            return server.client.post("/v1/completions", json=body, headers=headers)

        assert ask("wrong").status_code == 401
        assert ask("s3cret").json()["usage"]["completion_tokens"] == 3, "-n bounds every answer"
        keys.write_text("another\n")
        assert (ask("s3cret").status_code, ask("another").status_code) == (401, 200)
        assert server.stop(signal.SIGINT) == 0
    lines = [json.loads(line) for line in server.lines if line.startswith("{")]  # drivers have lines of their own
    assert {"no", "listening", "ready:", "--api-key-file"} <= {line["message"].split()[0] for line in lines}
    requests = [(line["id"], line["status"], line.get("answer_tokens")) for line in lines if "id" in line]
    assert requests == [("by-5", 401, None), ("by-6", 200, 3), ("by-6", 401, None), ("by-7", 200, 3)]
    assert all(word not in server.stderr for word in ("s3cret", "another", "wrong", "Unspeakable"))


def test_time_limits():
    """Of an answer that would take minutes on any machine, and of a body that does not come."""
    with ServerProcess("-m", ENDLESS, "-c", 65536, "--timeout", 1, "--body-timeout", 1) as server:
        endless = {"prompt": "a", "temperature": 0, "max_tokens": -1}
        server.client.post("/v1/completions", json=endless)  # compiles, however long that takes
        late = server.client.post("/v1/completions", json=endless, timeout=60)
        assert late.status_code == 504 and "not complete after 1 s" in late.json()["error"]["message"]
        assert server.idle(), "the engine has stopped when the error is sent"
        assert server.raw(post(b"{", "Content-Length: 100")).startswith(b"HTTP/1.1 408 ")


def test_sigterm_lets_an_answer_end():
    short = {**LONG, "max_tokens": 5}
    with ServerProcess("-c", 4096, "--no-specprefill") as server, ThreadPoolExecutor(1) as pool:
        server.client.post("/v1/completions", json=short)  # compiles: the server does not wait for ever
        with server.engine_paused():
            answer = pool.submit(server.client.post, "/v1/completions", json=short)
            server.wait_for(lambda: server.metric("requests_processing") == 1)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(lambda: not server.listens())
        *_, last, end = filter(None, answer.result().text.splitlines())
        assert end == "data: [DONE]" and json.loads(last[6:])["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(PATIENCE_S) == 0
    assert "Traceback" not in server.stderr


def test_more_silent_connections_than_descriptors():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    try:
        server = ServerProcess("-c", 1024, "--no-specprefill")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with server, ExitStack() as stack:
        for number in range(230):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            if number % 2:
                silent.sendall(b"GET /health HTTP/1.1\r\nHost: ")
        for _ in range(20):
            assert httpx.get(f"{server.url}/health", timeout=PATIENCE_S, trust_env=False).status_code == 200
        answer = server.client.post("/v1/chat/completions", json={"messages": user(DEMO[0]["user"])}).json()
        assert answer["choices"][0]["message"]["content"] == DEMO[0]["answer"]
        assert server.stderr.count("\n") < 10


def test_killed_server_takes_its_engine_along_and_starts_again():
    first = ServerProcess("-c", 1024, "--no-specprefill")
    engine, port = first.engine(), first.port
    first.stop(signal.SIGKILL)
    end = time.monotonic() + PATIENCE_S
    while runs(engine):
        assert time.monotonic() < end, "the engine is still there"
        time.sleep(0.02)
    with ServerProcess("-c", 1024, "--no-specprefill", "--port", port) as second:
        assert second.port == port
        answer = second.client.post("/v1/chat/completions", json={"messages": user(DEMO[0]["user"])}).json()
        assert answer["choices"][0]["message"]["content"] == DEMO[0]["answer"]


def test_engine_that_hangs_is_built_again():
    with ServerProcess("-c", 1024, "--no-specprefill", "--engine-timeout", 20) as server:
        body = {"messages": user(DEMO[0]["user"]), "stream": True}
        assert server.client.post("/v1/chat/completions", json=body).status_code == 200
        with ThreadPoolExecutor(1) as pool, server.engine_paused():
            waiting = pool.submit(server.client.post, "/v1/chat/completions", json=body)
            server.wait_for(lambda: server.client.get("/health").json()["status"] == "device lost")
        *_, last, end = filter(None, waiting.result().text.splitlines())
        assert end == "data: [DONE]" and "no sign of life for 20 s" in json.loads(last[6:])["error"]["message"]
        server.wait_until_ready()
        answer = server.client.post("/v1/chat/completions", json={**body, "stream": False}).json()
        assert answer["choices"][0]["message"]["content"] == DEMO[0]["answer"]


def test_lost_engine_is_built_again_once():
    with ServerProcess("-c", 1024, "--no-specprefill") as server, ThreadPoolExecutor(1) as pool:
        hello = {"messages": user("Hello"), "max_tokens": 1}
        assert server.client.post("/v1/chat/completions", json=hello).status_code == 200
        with server.engine_paused():
            waiting = pool.submit(server.client.post, "/v1/chat/completions", json=hello)
            server.wait_for(lambda: server.metric("requests_processing") == 1)
            os.kill(server.engine(), signal.SIGKILL)
        answer, health = waiting.result(), server.client.get("/health")
        assert answer.status_code == 503 and "ended unexpectedly" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"], "the engine did not come to it"
        assert health.status_code == 503 and health.json()["status"] == "device lost"
        server.wait_until_ready()
        os.kill(server.engine(), signal.SIGKILL)
        assert server.process.wait(PATIENCE_S) == 3
        server.stop()
        assert server.stderr.rstrip().endswith("Error: the engine's process ended unexpectedly")
