"""Is the draft worth its time? Measured speeds, what they decide, and the file they are kept in."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tests.model.sparse_requests import SPARSE
from vkprefill.engine.speed_meter import SpeedMeter
from vkprefill.specprefill import calibration, guards
from vkprefill.specprefill.protection import Protected
from vkprefill.specprefill.scorer import score_kind
from vkprefill.specprefill.shares import KeptShares

CAREFUL = replace(SPARSE, break_even=True)


@pytest.fixture
def meters(pair, monkeypatch):
    """Models that have not run yet, as far as their meters know, and whose real speed stays unknown."""
    for method in ("prefilled", "decoded"):
        monkeypatch.setattr(SpeedMeter, method, lambda *_: None)
    for model in (pair.target, pair.draft):
        monkeypatch.setattr(model.runner, "meter", SpeedMeter(64))
    return pair.target.runner.meter, pair.draft.runner.meter


@pytest.fixture
def cache_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_measuring(monkeypatch):
    def refuse(model):
        raise AssertionError(f"{model.path.name} measured")

    monkeypatch.setattr(calibration, "_measure", refuse)


def test_measured_speeds_decide(pair, prompt, meters, cache_home, no_measuring):
    target, draft = meters
    target.prefill_per_s, target.decode_per_s, draft.decode_per_s = 100.0, 5.0, 1000.0
    for draft_speed, status in ((1e5, guards.ACTIVE), (165.0, guards.SKIPPED_BREAK_EVEN), (180.0, guards.ACTIVE)):
        draft.prefill_per_s = draft_speed  # saving 0.7 x 3 s against 300 / speed x 1.2
        pair._shares = KeptShares()
        plan = pair.plan(prompt, config=CAREFUL)
        assert plan.report.status == status
        assert plan.report.dense_estimate_ms == pytest.approx(3000)
    draft.prefill_per_s, draft.decode_per_s = 1e5, 1.0
    pair._shares = KeptShares()
    plan = pair.plan(prompt, config=CAREFUL)
    assert plan.report.reason == "scoring 300 tokens would take about 2003 ms and save 2100 ms"


def test_settings_beat_measured_speeds(pair, prompt, meters, cache_home, no_measuring):
    for meter in meters:
        meter.prefill_per_s = meter.decode_per_s = 100.0
    assert pair.plan(prompt, config=CAREFUL).report.status == guards.SKIPPED_BREAK_EVEN
    plan = pair.plan(prompt, config=replace(CAREFUL, draft_tokens_per_s=1e6))
    assert plan.report.status == guards.ACTIVE and plan.report.dense_estimate_ms == pytest.approx(3000)
    pair._shares = KeptShares()
    plan = pair.plan(prompt, config=replace(CAREFUL, target_tokens_per_s=1.0))
    assert plan.report.status == guards.ACTIVE and plan.report.dense_estimate_ms == pytest.approx(300_000)
    careful = replace(CAREFUL, target_tokens_per_s=1.0, break_even_safety=1000)
    assert pair.plan(prompt, config=careful).report.status == guards.SKIPPED_BREAK_EVEN


@pytest.mark.parametrize(("settings", "counts"), [({}, True), ({"tail_queries": 1}, False), ({"lookahead": 0}, False)])
def test_only_lookahead_that_happens_is_counted(pair, prompt, meters, cache_home, no_measuring, settings, counts):
    target, draft = meters
    target.prefill_per_s, target.decode_per_s, draft.prefill_per_s, draft.decode_per_s = 1e3, 1.0, 1e9, 1e-3
    status = pair.plan(prompt, config=replace(CAREFUL, **settings)).report.status
    assert status == (guards.SKIPPED_BREAK_EVEN if counts else guards.ACTIVE)


def test_kinds_of_scoring_have_speeds_of_their_own(pair, prompt, meters, cache_home, no_measuring):
    """A slow kind, which another request had, does not keep the usual one from being worth it; and the other way."""
    for meter in meters:
        meter.prefill_per_s = meter.decode_per_s = 1000.0
    usual, other = replace(CAREFUL, target_tokens_per_s=20), replace(CAREFUL, target_tokens_per_s=20, pool_size=101)
    slow = meters[1].of(score_kind(other, pair.draft))
    slow.prefill_per_s = 1.0
    assert pair.plan(prompt, config=other).report.status == guards.SKIPPED_BREAK_EVEN
    assert pair.plan(prompt, config=usual).report.status == guards.ACTIVE
    slow.prefill_per_s, meters[1].of(score_kind(usual, pair.draft)).prefill_per_s = 1000.0, 1.0
    assert pair.plan(prompt, config=other).report.status == guards.ACTIVE
    assert pair.plan(prompt[:-1], config=usual).report.status == guards.SKIPPED_BREAK_EVEN


def test_a_draft_that_stops_early_is_expected_to_be_faster(pair, meters, cache_home, no_measuring):
    for meter in meters:
        meter.prefill_per_s = meter.decode_per_s = 1000.0
    layer, layers = pair.draft.config.attention_layers[0], pair.draft.config.num_hidden_layers
    early = pair._speeds(replace(CAREFUL, score_layers=(layer,), tail_queries=4))
    assert early.draft_tokens_per_s == pytest.approx(1000 * layers / (layer + 1))
    assert pair._speeds(CAREFUL).draft_tokens_per_s == 1000


def test_earlier_selections_are_expected_again(pair, prompt, meters, cache_home, no_measuring):
    """Nothing was saved so far: not worth it, whatever keep_ratio promises."""
    for meter in meters:
        meter.prefill_per_s = meter.decode_per_s = 1000.0
    config = replace(CAREFUL, draft_tokens_per_s=1e9, keep_ratio=0.05, target_tokens_per_s=20, protect=((0, 300),))
    config = replace(config, protect_question=False)
    assert pair.plan(prompt, config=config).report.status == guards.KEPT_ALL
    assert pair.plan(prompt, config=config).report.status == guards.SKIPPED_BREAK_EVEN


def test_what_others_kept_is_not_expected(pair, prompt, meters, cache_home, no_measuring):
    """A request's decision is the same whatever settings the requests before it had."""
    for meter in meters:
        meter.prefill_per_s = meter.decode_per_s = 1000.0
    config = replace(CAREFUL, draft_tokens_per_s=1e9, keep_ratio=0.05, target_tokens_per_s=20)
    for other in ({"protect": ((0, 300),)}, {"keep_ratio": 0.95}, {"tail": 300}):
        for _ in range(9):
            pair.plan(prompt, config=replace(SPARSE, **other))
        assert pair.plan(prompt, config=config).report.status == guards.ACTIVE
    for _ in range(9):
        pair.plan(prompt, config=replace(config, break_even=False), protected=Protected(fixed=((0, 298),)))
    assert pair.plan(prompt, config=config).report.status == guards.ACTIVE


def test_what_a_busy_machine_measured_is_not_kept(pair, meters, cache_home, no_measuring):
    """Nothing makes a speed too high: what this process has seen to be faster by a tenth is kept in its place."""
    model, key = pair.target, calibration._key(pair.target)
    model.runner.meter.prefill_per_s, model.runner.meter.decode_per_s = 109.0, 20.0
    assert calibration.speed_of(model) == calibration.Speed(109.0, 20.0) and not calibration.SPEEDS.load()
    calibration.SPEEDS.store(key, calibration.Speed(100.0, 30.0))
    for prefill, kept in ((109.0, 100.0), (50.0, 100.0), (111.0, 111.0), (60.0, 111.0)):
        model.runner.meter.prefill_per_s = prefill
        assert calibration.speed_of(model) == calibration.Speed(prefill, 20.0)
        assert calibration.SPEEDS.load() == {key: calibration.Speed(kept, 30.0)}
    model.runner.meter.decode_per_s = 40.0
    calibration.speed_of(model)
    assert calibration.SPEEDS.load() == {key: calibration.Speed(111.0, 40.0)}


def test_calibration_is_measured_once_and_stored(pair, prompt, meters, cache_home, monkeypatch):
    """By device, driver, file and KV type; a second process finds it."""
    pair.plan(prompt, config=CAREFUL)
    path = cache_home / "vkprefill" / "calibration.json"
    stored = json.loads(path.read_text())
    others = {"shares.json"}  # there where these speeds make scoring worth it
    assert len(stored) == 2 and {p.name for p in path.parent.iterdir()} - others == {path.name}
    for model in (pair.target, pair.draft):
        (key,) = [key for key in stored if model.path.name in key]
        for part in (model.device.info.name, model.device.info.driver, str(model.path.stat().st_size), model.kv_type):
            assert part in key
        assert key.endswith(f"|{model.prefill_chunk} tokens"), "measured at the step that runs"
        assert 0 < stored[key]["prefill"] < 1e9 and 0 < stored[key]["decode"] < 1e9

    measured = []
    monkeypatch.setattr(calibration, "_measure", lambda model: measured.append(model) or calibration.Speed(10.0, 10.0))
    for model in (pair.target, pair.draft):
        monkeypatch.setattr(model.runner, "meter", SpeedMeter(64))
        assert calibration.speed_of(model).prefill == stored[calibration._key(model)]["prefill"]
    assert not measured
    changed = replace(pair.draft.device.info, driver="another driver")
    monkeypatch.setattr(pair.draft.device, "info", changed)
    assert calibration.speed_of(pair.draft).prefill == 10.0 and measured == [pair.draft]
    assert len(json.loads(path.read_text())) == 3


DAMAGED = [
    b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"x": 1}', b'{"x": {"prefill": 1}}', b'{"x": {"prefill": "y", "decode": 1}}',
    b'{"KEY": {"prefill": 0, "decode": 0}}', b'{"KEY": {"prefill": NaN, "decode": 1}}',
    b'{"KEY": {"prefill": -1, "decode": 1}}',
    b'{"KEY": {"prefill": Infinity, "decode": 1}}', b'{"KEY": {"prefill": 1, "decode": 1e999}}', b"[" * 100_000,
    b'{"KEY": {"prefill": 1' + b"0" * 400 + b', "decode": 1}}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_calibration(pair, meters, cache_home, monkeypatch, caplog, content):
    """One warning, measured again, and a good file afterwards."""
    path = cache_home / "vkprefill" / "calibration.json"
    path.parent.mkdir()
    path.write_bytes(content.replace(b"KEY", calibration._key(pair.draft).encode()))
    monkeypatch.setattr(calibration, "_measure", lambda model: calibration.Speed(10.0, 20.0))
    with caplog.at_level(logging.WARNING, "vkprefill"):
        assert calibration.speed_of(pair.draft) == calibration.Speed(10.0, 20.0)
    assert "is not usable" in caplog.text
    assert calibration.SPEEDS.load()[calibration._key(pair.draft)] == calibration.Speed(10.0, 20.0)


@pytest.mark.parametrize("place", ["file for folder", "folder for file"])
def test_calibration_that_cannot_be_stored(pair, meters, cache_home, monkeypatch, caplog, place):
    folder = cache_home / "vkprefill"
    if place == "file for folder":
        folder.write_text("")
    else:
        (folder / "calibration.json").mkdir(parents=True)
    monkeypatch.setattr(calibration, "_measure", lambda model: calibration.Speed(10.0, 20.0))
    with caplog.at_level(logging.WARNING, "vkprefill"):
        assert calibration.speed_of(pair.draft) == calibration.Speed(10.0, 20.0)
    assert "cannot be written" in caplog.text
    assert place == "file for folder" or [p.name for p in folder.iterdir()] == ["calibration.json"], "nothing left over"
