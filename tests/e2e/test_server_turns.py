"""Several requests in turns, over HTTP: who is answered first, what the server says of them meanwhile."""

import json
import threading

import httpx
import pytest

from tests.e2e.conftest import PATIENCE_S

pytest.importorskip("uvicorn")

from tests.e2e.server_process import ServerProcess  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("gpu")]

LONG = "The river was quiet, and it rained. " * 300
ENDLESS = {"prompt": "One", "ignore_eos": True, "max_tokens": -1, "stream": True}


@pytest.fixture(scope="module")
def server(gpu):
    with ServerProcess("-c", 8192, "-b", 64, "--turns", 3) as made:
        yield made


class Stream:
    """A streamed completion in a thread, read until it ends or is left. events: as they came; begun: one has come."""

    def __init__(self, server: ServerProcess, body: dict[str, object]) -> None:
        self.events: list[dict[str, object]] = []
        self.begun, self._left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._read, args=(server.url, body))
        self._thread.start()

    def _read(self, url: str, body: dict[str, object]) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
            with client.stream("POST", "/v1/completions", json=body) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        self.events.append(json.loads(line[6:]))
                        self.begun.set()
                    if self._left.is_set():
                        return

    @property
    def text(self) -> str:
        return "".join(choice["text"] for event in self.events for choice in event["choices"])

    def leave(self) -> None:
        self._left.set()
        self._thread.join()

    def join(self) -> None:
        self._thread.join()


def ask(server: ServerProcess, prompt: str = "Hi", **more: object) -> dict[str, object]:
    return server.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4, **more}).json()


def busy(server: ServerProcess) -> list[dict[str, object]]:
    return [slot for slot in server.client.get("/slots").json() if slot["is_processing"]]


def test_beside_a_long_prompt_and_an_endless_answer(server):
    """Short requests are answered while both go on; what they say is what they say alone."""
    alone = ask(server)["choices"]
    assert not busy(server)
    endless = Stream(server, ENDLESS)
    assert endless.begun.wait(PATIENCE_S)
    long = Stream(server, {"prompt": LONG, "max_tokens": 4, "stream": True, "return_progress": True})
    assert long.begun.wait(PATIENCE_S)
    for _ in range(2):
        answer = ask(server, cache_prompt=False)
        assert answer["choices"] == alone and answer["timings"]["wait_ms"] > 0
    assert not long.text, "it is still read"
    slots = busy(server)
    assert {slot["stage"] for slot in slots} == {"decode", "prefill"} and {slot["place"] for slot in slots} == {0, 1}
    assert all(0 < slot["share"] < 1 and slot["slices"] > 0 for slot in slots)
    assert server.metric("slots") == 3 and server.metric("turn_changes_total") > 4
    assert sum(server.metric(f'slot_busy{{slot="{slot}"}}') for slot in range(3)) == 2
    long.join()
    assert long.text == ask(server, LONG, cache_prompt=False)["choices"][0]["text"]
    progress = [event["prompt_progress"] for event in long.events if event.get("prompt_progress")]
    assert progress[-1]["turns"] >= 2 and 0 < progress[-1]["share"] < 1 and progress[-1]["wait_ms"] > 0
    said = endless.text
    endless.leave()
    server.wait_for(lambda: not busy(server))
    again = ask(server, ENDLESS["prompt"], ignore_eos=True, max_tokens=300, cache_prompt=False)["choices"][0]["text"]
    length = min(len(said), len(again))
    assert length > 20 and said[:length] == again[:length]


def test_more_than_there_are_turns(server):
    """The fourth waits in the queue, and has its turn when one of the others is left."""
    streams = [Stream(server, ENDLESS) for _ in range(3)]
    assert all(stream.begun.wait(PATIENCE_S) for stream in streams)
    assert server.client.get("/slots", params={"fail_on_no_slot": 1}).status_code == 503
    waits = Stream(server, {"prompt": "Hi", "max_tokens": 4, "stream": True, "return_progress": True})
    assert waits.begun.wait(PATIENCE_S)
    assert waits.events[0]["prompt_progress"]["queue_position"] == 1 and server.metric("requests_deferred") == 1
    streams[0].leave()
    waits.join()
    assert waits.text == ask(server)["choices"][0]["text"]
    for stream in streams[1:]:
        stream.leave()
    server.wait_for(lambda: not busy(server))
