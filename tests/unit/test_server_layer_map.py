"""The map of layers that comes with an answer: asked for, refused, told. No model."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.scripted_server import HELLO, events
from tests.unit.test_server_engine import Bench
from vkprefill.errors import ContextLengthError, OutOfMemoryError
from vkprefill.explain.layer_map import ATTENTION, DELTA_NET, LayerMap
from vkprefill.server.engine.jobs import CANCELLED, Cancel, Done, Failed, Progress
from vkprefill.server.engine.prompt_details import map_details
from vkprefill.work import Pause

FOUND = LayerMap((DELTA_NET, ATTENTION), np.float32([[1 / 3, 0, 2], [0.5, 0.25, 0.25]]), 1024)
TOLD = {
    "kinds": ["delta net", "attention"],
    "bounds": [0, 1, 2, 3],
    "weights": [[0.333, 0, 2], [0.5, 0.25, 0.25]],
    "memory_bytes": 1024,
}


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.pipe.close()
    made.join()


@pytest.fixture
def mapped(monkeypatch):
    """mapped(function): what makes the engine's maps."""

    def use(function) -> None:
        def work(*args: object):
            yield Pause.SLICE
            return function(*args)

        monkeypatch.setattr("vkprefill.server.engine.answer.map_work", work)

    return use


def test_in_answers(send, engine, monkeypatch):
    """In the last chunk of a stream and in a whole answer; only where it is asked for."""
    answered = engine._events

    async def with_map(job):
        async for event in answered(job):
            wanted = isinstance(event, Done) and job.want_map
            yield replace(event, layer_map=TOLD) if wanted else event

    monkeypatch.setattr(engine, "_events", with_map)
    for path, prompt in (("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "Hi"})):
        body = {**prompt, "layer_map": True}
        assert send("POST", f"/v1/{path}", json=body).json()["layer_map"] == TOLD
        chunks = events(send("POST", f"/v1/{path}", json={**body, "stream": True}))
        assert [chunk["layer_map"] for chunk in chunks if "layer_map" in chunk] == [TOLD]
        assert "layer_map" not in send("POST", f"/v1/{path}", json=prompt).json()


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat/completions", {"messages": HELLO, "n": 2}, "n: found 2 beside layer_map: true, wanted 1"),
        ("completions", {"prompt": ["a", "b"]}, "prompt: found 2 prompts beside layer_map: true, wanted one"),
        ("completions", {"prompt": "a", "layer_map": "x.html"}, "layer_map: found 'x.html', wanted true or false"),
    ],
)
def test_refused(send, engine, path, body, message):
    response = send("POST", f"/v1/{path}", json={"layer_map": True, **body})
    assert response.status_code == 400 and response.json()["error"]["message"] == message and not engine.jobs


def test_made_before_the_answer(bench, mapped):
    def make(model, token_ids, progress):
        assert token_ids == (1, 2, 3)
        progress(2, 3)
        return FOUND

    mapped(make)
    told = bench.answer(want_map=True, want_progress=True)
    assert told[-1].layer_map == TOLD == map_details(FOUND)
    assert [(e.done, e.total) for e in told if isinstance(e, Progress) and e.stage == "layers"] == [(2, 3)]
    assert bench.answer()[-1].layer_map is None


def test_memory_of_other_conversations_goes_first(bench, mapped):
    """What does not fit then is refused with the numbers."""
    full = [True, False, True]

    def make(*_):
        if full.pop(0):
            raise OutOfMemoryError("delta-net rows: needs 9 MiB")
        return FOUND

    mapped(make)
    bench.slots.others = True
    assert bench.answer(want_map=True)[-1].layer_map == TOLD
    (failed,) = bench.answer(want_map=True)
    assert isinstance(failed, Failed) and (failed.status, failed.message) == (503, "delta-net rows: needs 9 MiB")


def test_a_prompt_longer_than_the_context(bench, mapped):
    """Also where a sparse answer would have room."""

    def make(*_):
        raise ContextLengthError.of_prompt(900, 512)

    mapped(make)
    (failed,) = bench.answer(want_map=True)
    assert failed.status == 400 and "900" in failed.message and "512" in failed.message


def test_a_client_that_leaves_stops_it(bench, mapped):
    def make(model, token_ids, progress):
        bench.pipe.send(Cancel(5))
        progress(1, 3)
        raise AssertionError("it goes on")

    mapped(make)
    assert bench.answer(want_map=True)[-1].status == CANCELLED
    assert bench.session.closed == 0, "nothing of the answer began"
