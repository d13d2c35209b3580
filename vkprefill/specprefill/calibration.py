"""How fast a model runs on a device: measured on this process's prefills, else stored, else measured shortly.

Stored as JSON in the user's cache folder, keyed by device, driver, shaders, model file, KV type, precision and tokens
of a step. A file that cannot be read or written only costs the short measurement again.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from vkprefill.engine.model import Model
from vkprefill.engine.runner import Best
from vkprefill.vulkan.shaders import fingerprint

log = logging.getLogger("vkprefill")

CALIBRATION_DECODES = 3


@dataclass(frozen=True)
class Speed:
    """Tokens per second of prefill and of decode."""

    prefill: float
    decode: float


def cache_file() -> Path | None:
    """Where speeds are stored: in XDG_CACHE_HOME, else in ~/.cache; None for a user without a home folder."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "vkprefill" / "calibration.json"


def kept_in() -> Path | None:
    """The file that a measured speed will be kept in; None where it cannot be written."""
    path = cache_file()
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError:
        return None


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
        return Speed(measured.prefill_per_s, measured.decode_per_s)
    stored = _load(cache_file()).get(_key(model))
    if stored is None:
        stored = _measure(model)
        _store(cache_file(), _key(model), stored)
    return Speed(measured.prefill_per_s or stored.prefill, measured.decode_per_s or stored.decode)


def has_speed(model: Model) -> bool:
    """Whether speed_of needs no measurement."""
    measured = model.runner.meter
    return bool(measured.prefill_per_s and measured.decode_per_s) or _key(model) in _load(cache_file())


def _key(model: Model) -> str:
    stat, info = model.path.stat(), model.device.info
    file = model.path.name, stat.st_size, stat.st_mtime_ns
    parts = info.name, info.driver, fingerprint(), *file, model.kv_type, model.precision, f"{_tokens(model)} tokens"
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


def _load(path: Path | None) -> dict[str, Speed]:
    if path is None:
        return {}
    try:
        return {
            key: Speed(_speed(value["prefill"]), _speed(value["decode"]))
            for key, value in json.loads(path.read_text()).items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        _warn_once(f"calibration: {path} is not usable ({error}); measuring again")
        return {}


def _speed(value: object) -> float:
    speed = float(value)
    if not 0 < speed < math.inf:
        raise ValueError(f"a speed of {speed}")
    return speed


@cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)


def _store(path: Path | None, key: str, speed: Speed) -> None:
    """Add an entry; the file is replaced as a whole, so a crash leaves the old one."""
    if path is None:
        return _warn_once("calibration: no home folder to keep speeds in; set XDG_CACHE_HOME")
    entries = {k: asdict(v) for k, v in _load(path).items()} | {key: asdict(speed)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            file = Path(folder) / path.name
            file.write_text(json.dumps(entries, indent=1))
            os.replace(file, path)
    except OSError as error:
        _warn_once(f"calibration: {path} cannot be written ({error})")
