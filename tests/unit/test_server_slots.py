"""/slots and the gauges of slots, with an engine that the test plays."""

import re
from types import SimpleNamespace

import pytest

from vkprefill import SamplingConfig, SpecDecodeConfig
from vkprefill.generation.options import AnswerOptions
from vkprefill.server.engine.jobs import Job, Standing

SECRET = "a text that nobody else may read"


@pytest.fixture
def busy(engine):
    """Slot 1 has a request, which was told of once."""
    options = AnswerOptions(64, SamplingConfig(temperature=0.5), stop=(SECRET,), decode=SpecDecodeConfig("ngram"))
    standing = Standing(7, "decode", 20, 20, 5, 0, 0.25, 1500.0, 4500.0, 12)
    engine.slots[1] = SimpleNamespace(job=Job(7, tuple(range(20)), options), standing=standing)
    engine.changes = 31
    return engine


def test_slots(send, busy):
    response = send("GET", "/slots")
    idle, found, *others = response.json()
    assert idle == {"id": 0, "n_ctx": 512, "speculative": False, "is_processing": False}
    assert [one["id"] for one in others] == [2, 3] and not any(one["is_processing"] for one in others)
    assert found["is_processing"] and (found["id"], found["id_task"], found["n_prompt_tokens"]) == (1, 7, 20)
    assert found["next_token"] == {"has_next_token": True, "n_remain": 59, "n_decoded": 5}
    assert found["params"]["temperature"] == 0.5 and found["params"]["n_predict"] == 64 and found["speculative"]
    told = {name: found[name] for name in ("stage", "place", "share", "own_ms", "wait_ms", "slices")}
    assert told == {"stage": "decode", "place": 0, "share": 0.25, "own_ms": 1500.0, "wait_ms": 4500.0, "slices": 12}
    assert SECRET not in response.text
    assert send("GET", "/props").json()["total_slots"] == 4


def test_before_the_engine_told_of_it(send, busy):
    busy.slots[1].standing = None
    found = send("GET", "/slots").json()[1]
    assert found["is_processing"] and found["next_token"]["n_decoded"] == 0 and "stage" not in found
    assert "slot_share{" not in send("GET", "/metrics").text


def test_no_slot_is_free(send, busy):
    assert send("GET", "/slots?fail_on_no_slot=1").status_code == 200
    busy.slots[:] = [busy.slots[1]] * 4
    assert send("GET", "/slots?fail_on_no_slot=1").status_code == 503
    refused = send("GET", "/slots?fail_on_no_slot=no")
    assert refused.status_code == 400 and "found no, wanted 0 or 1" in refused.json()["error"]["message"]
    assert send("GET", "/slots").status_code == send("GET", "/slots?fail_on_no_slot=0").status_code == 200


def test_gauges(send, busy):
    text = send("GET", "/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if "slot" in line or "turn" in line)
    for name, value in {
        "slots": 4,
        "turn_changes_total": 31,
        'slot_busy{slot="0"}': 0,
        'slot_busy{slot="1"}': 1,
        'slot_place{slot="1"}': 0,
        'slot_share{slot="1"}': 0.25,
        'slot_own_seconds{slot="1"}': 1.5,
        'slot_wait_seconds{slot="1"}': 4.5,
    }.items():
        assert float(values[f"vkprefill:{name}"]) == value, name
    names = {re.split(r"[ {]", line)[0] for line in values if not line.startswith("#")}
    helps = set(re.findall(r"^# HELP (\S+) \S", text, re.M))
    assert names <= helps
