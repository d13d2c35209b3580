"""The server's routes with a scripted engine, without GPU and socket: fixtures (see conftest.py), and readers of
answers."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

import vkprefill
from vkprefill import SpecPrefillConfig
from vkprefill.server.api_error import ApiError
from vkprefill.server.engine.jobs import Done, Job, Piece, Progress, Ready
from vkprefill.server.protocol.prompts import PromptBuilder
from vkprefill.server.protocol.requests import Defaults
from vkprefill.specprefill.plan import check_report

BUILT_IN = Path(vkprefill.__file__).parent / "data" / "target.gguf"
HELLO = [{"role": "user", "content": "Hello"}]
BEGUN = [*HELLO, {"role": "assistant", "content": "I"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}}]
CALL = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
REPORT = {
    "status": "active",
    "reason": "r",
    "prompt_n": 10,
    "cached_n": 4,
    "cached_ranges": [[0, 4]],
    "kept_n": 3,
    "kept_ranges": [[4, 7]],
    "settings": {},
    "score_ms": 1.0,
    "lookahead_ms": 1.0,
    "select_ms": 1.0,
    "sparse_prefill_ms": 1.0,
    "ttft_ms": 2.0,
    "dense_estimate_ms": None,
    "check": check_report("off", "not asked for"),
}
TIMINGS = {
    "cache_n": 4,
    "prompt_n": 3,
    "prompt_ms": 1.0,
    "prompt_per_token_ms": 0.3,
    "prompt_per_second": 3000.0,
    "predicted_n": 5,
    "predicted_ms": 2.0,
    "predicted_per_token_ms": 0.4,
    "predicted_per_second": 2500.0,
    "draft_n": 4,
    "draft_n_accepted": 3,
    "specprefill": "active",
    "wait_ms": 1.5,
}


class ScriptedRun:
    """Stands in for Run: events that are there at once."""

    def __init__(self, events: AsyncGenerator[object, None]) -> None:
        self.waited_s = 0.25
        self._events = events

    def __aiter__(self) -> "ScriptedRun":
        return self

    async def __anext__(self) -> object:
        return await anext(self._events)

    async def aclose(self) -> None:
        await self._events.aclose()


class ScriptedEngine:
    """Stands in for EngineClient: answers each job with the same pieces, or refuses it, or fails."""

    def __init__(self) -> None:
        self.ready: Ready | None = Ready("a device", 512, 64, "full")
        self.stage, self.lost, self.exit_code, self.waiting, self.running = "loading weights 40 %", False, None, 0, 0
        self.slots, self.turns, self.changes = [None] * 4, 4, 0
        self.pieces: list[str] = ["Hello", " there"]
        self.error: ApiError | None = None
        self.finish_reason = "stop"
        self.jobs: list[Job] = []

    def run(self, job: Job) -> "ScriptedRun":
        self.jobs.append(job)
        if self.error is not None and self.error.status != 500:
            raise self.error
        return ScriptedRun(self._events(job))

    async def _events(self, job: Job) -> AsyncGenerator[object, None]:
        yield Progress(1, "score", 2, 6, 4, 0.5)
        for index, piece in enumerate(self.pieces):
            entry = {"id": index, "token": piece, "bytes": list(piece.encode()), "logprob": -0.5, "top_logprobs": []}
            yield Piece(1, piece, () if job.num_logprobs is None else (entry,))
        if self.error is not None:
            raise self.error
        yield Done(1, self.finish_reason, TIMINGS, REPORT, memory={"weights": 5})


@pytest.fixture(scope="module")
def prompts() -> PromptBuilder:
    return PromptBuilder(BUILT_IN)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def service(prompts, engine):
    pytest.importorskip("starlette")
    from vkprefill.server.http.completions import Service
    from vkprefill.server.http.metrics import Metrics
    from vkprefill.server.http.text_work import TextWork

    defaults = Defaults(spec=SpecPrefillConfig(min_tokens=8192))
    return Service(prompts, engine, Metrics(), defaults, "demo", TextWork(60.0), 60.0)


@pytest.fixture
def send(service):
    """send(method, path, **httpx options) -> response, to an app made with `options`."""
    httpx = pytest.importorskip("httpx")
    from vkprefill.server.http.app import build_app

    def request(method: str, path: str, *, options: dict[str, object] | None = None, **kwargs: object):
        async def exchange():
            app = build_app(service, **(options or {}))
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://test"
            ) as client:
                return await client.request(method, path, **kwargs)

        return anyio.run(exchange)

    return request


def events(response) -> list[dict]:
    """The JSON of a stream, which must end in [DONE]."""
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def joined(chunks: list[dict]) -> dict:
    """The message and choice that the chunks of a chat add up to, with the fields of the last chunks."""
    message: dict[str, object] = {"role": "assistant"}
    found: dict[str, object] = {}
    for chunk in chunks:
        found |= {
            key: chunk[key] for key in ("id", "model", "created", "timings", "specprefill", "usage") if key in chunk
        }
        for choice in chunk["choices"]:
            for key in ("content", "reasoning_content"):
                if choice["delta"].get(key):
                    message[key] = message.get(key, "") + choice["delta"][key]
            for call in choice["delta"].get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                assert call.pop("index") == len(calls)
                calls.append(call)
            for entry in (choice.get("logprobs") or {}).get("content", []):
                found.setdefault("logprobs", []).append(entry)
            found["finish_reason"] = choice["finish_reason"] or found.get("finish_reason")
    return {**found, "message": message}
