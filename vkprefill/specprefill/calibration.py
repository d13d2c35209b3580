"""How fast a model runs on a device: measured on this process's prefills, else stored, else measured shortly.

Kept by device, driver, shaders, model file, KV type, precision and tokens of a step.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass

from vkprefill.engine.model import Model
from vkprefill.engine.step_input import Best
from vkprefill.kept import Kept
from vkprefill.vulkan.shaders import fingerprint

CALIBRATION_DECODES = 3
FASTER = 1.1  # than what is kept: then it was measured while something else ran


@dataclass(frozen=True)
class Speed:
    """Tokens per second of prefill and of decode."""

    prefill: float
    decode: float


SPEEDS = Kept("calibration.json", Speed)


def speed_of(model: Model, kind: Hashable = None, depth: float = 1.0) -> Speed:
    """The speed of a model: of this process if it has prefilled and decoded enough, else stored, else measured now and
    stored.

    kind: of other runs than the plain ones (SpeedMeter.of); until this process has measured them they are taken to be
    plain ones through this share of the layers.
    """
    if kind is not None:
        own, plain = model.runner.meter.of(kind), speed_of(model)
        return Speed(own.prefill_per_s or plain.prefill / depth, own.decode_per_s or plain.decode)
    measured = model.runner.meter
    if measured.prefill_per_s and measured.decode_per_s:
        own = Speed(measured.prefill_per_s, measured.decode_per_s)
        _keep_if_faster(_key(model), own)
        return own
    stored = SPEEDS.load().get(_key(model))
    if stored is None:
        stored = _measure(model)
        SPEEDS.store(_key(model), stored)
    return Speed(measured.prefill_per_s or stored.prefill, measured.decode_per_s or stored.decode)


def _keep_if_faster(key: str, own: Speed) -> None:
    """What was measured on a busy machine would be kept for ever. Other work makes a speed too low and nothing makes it
    too high, so the highest is the right one.
    """
    kept = SPEEDS.load().get(key)
    if kept is not None and (own.prefill > FASTER * kept.prefill or own.decode > FASTER * kept.decode):
        SPEEDS.store(key, Speed(max(kept.prefill, own.prefill), max(kept.decode, own.decode)))


def has_speed(model: Model) -> bool:
    """Whether speed_of needs no measurement."""
    measured = model.runner.meter
    return bool(measured.prefill_per_s and measured.decode_per_s) or _key(model) in SPEEDS.load()


def file_key(model: Model) -> str:
    """Of what a model's file makes alone, whatever device runs it."""
    stat = model.path.stat()
    return "|".join(map(str, (model.path.name, stat.st_size, stat.st_mtime_ns)))


def _key(model: Model) -> str:
    info = model.device.info
    parts = (
        info.name,
        info.driver,
        fingerprint(),
        file_key(model),
        model.kv_type,
        model.precision,
        f"{_tokens(model)} tokens",
    )
    return "|".join(map(str, parts))


def _tokens(model: Model) -> int:
    """A whole step of prefill: fewer tokens would fill a GPU less and make it look slower than it is."""
    return min(model.prefill_chunk, max(1, model.max_context // 2))


def _measure(model: Model) -> Speed:
    """One prefill and a few decodes, after one of each that compiles what is not compiled yet."""
    count = _tokens(model)
    ids = [i % model.config.vocab_size for i in range(count)]
    cache = model.new_cache()
    try:
        times = []
        for _ in range(3):  # the first compiles; the better of the others is less disturbed by what else runs
            cache.reset()
            start = time.perf_counter()
            model.extend(ids, cache)
            times.append(time.perf_counter() - start)
        decodes = []
        for _ in range(CALIBRATION_DECODES):
            start = time.perf_counter()
            model.decode_candidates(ids[0], cache, Best(1))
            decodes.append(time.perf_counter() - start)
    finally:
        cache.close()
    return Speed(count / min(times[1:]), 1 / min(decodes))
