"""The speed of a process's own runs: which of them count, and that those of different programs stay apart."""

import pytest

from vkprefill.engine.speed_meter import SpeedMeter


def test_running_means():
    meter = SpeedMeter(64)
    assert (meter.prefill_per_s, meter.decode_per_s) == (None, None)
    meter.prefilled(64, 10.0)
    meter.decoded(9.0)
    assert (meter.prefill_per_s, meter.decode_per_s) == (None, None), "the first may have compiled pipelines"
    meter.prefilled(128, 1.0)
    meter.decoded(0.5)
    assert (meter.prefill_per_s, meter.decode_per_s) == (128.0, 2.0)
    meter.prefilled(64, 1.0)
    meter.decoded(0.25)
    assert meter.prefill_per_s == pytest.approx(128 - 0.25 * 64) and meter.decode_per_s == pytest.approx(2.5)


def test_shorter_runs_than_a_chunk_do_not_count():
    meter = SpeedMeter(512)
    for tokens in (600, 1, 64, 511):
        meter.prefilled(tokens, 1.0)
    assert meter.prefill_per_s is None
    meter.prefilled(512, 1.0)
    assert meter.prefill_per_s == 512.0


def test_kinds_are_apart():
    meter = SpeedMeter(8)
    for seconds in (1.0, 1.0):
        meter.prefilled(8, seconds)
        meter.of("early").prefilled(8, seconds / 4)
        meter.of("early").decoded(seconds / 8)
    assert meter.prefill_per_s == 8.0 and meter.decode_per_s is None
    assert meter.of("early").prefill_per_s == 32.0 and meter.of("early").decode_per_s == 8.0
    assert meter.of("other").prefill_per_s is None


def test_kinds_are_bounded():
    meter = SpeedMeter(1)
    first = meter.of(0)
    for kind in range(1, 3 * SpeedMeter.MAX_KINDS):
        meter.of(kind)
        assert meter.of(0) is first, "used last"
    assert len(meter._kinds) == SpeedMeter.MAX_KINDS
