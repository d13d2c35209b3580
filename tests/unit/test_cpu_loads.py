"""Which form of the products a CPU device takes, by given times."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from vkprefill.engine import cpu_loads
from vkprefill.engine.cpu_loads import TIMES, LoadTimes, choose_loads, profile_so_far
from vkprefill.vulkan.companion import Abilities
from vkprefill.vulkan.probe import DeviceInfo
from vkprefill.vulkan.processor import processor_code
from vkprefill.vulkan.profiles import CPU, CPU_WIDE, NVIDIA, profile_for

INFO = DeviceInfo(0, "a CPU", "cpu", 0, "driver 1", "", (), 0, 0, 8, 8, 0, 0, 0, ())
SLOW_LOADS, FAST_LOADS = LoadTimes(1.7e-3, 1e-3), LoadTimes(1.1e-3, 1e-3)


def opened(info: DeviceInfo = INFO, features: tuple[str, ...] = ("shaderInt64",)) -> SimpleNamespace:
    return SimpleNamespace(info=info, profile=profile_for(info), abilities=Abilities(frozenset(features)))


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """What measuring gives, and the devices that were measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = SimpleNamespace(times=SLOW_LOADS, devices=[])
    monkeypatch.setattr(cpu_loads, "_measure", lambda device: measured.devices.append(device) or measured.times)
    return measured


@pytest.mark.parametrize(
    ("narrow", "wide", "profile"), [(2.0, 1.0, CPU_WIDE), (1.4, 1.0, CPU_WIDE), (1.3, 1.0, CPU), (0.9, 1.0, CPU)]
)
def test_by_times(narrow, wide, profile):
    assert LoadTimes(narrow * 1e-4, wide * 1e-4).profile is profile


def test_measured_once(measured):
    """What was measured decides from then on, also for those who only ask."""
    assert profile_so_far(INFO) is CPU
    for _ in range(2):
        device = opened()
        choose_loads(device)
        assert device.profile is CPU_WIDE
        measured.times = FAST_LOADS
    assert profile_so_far(INFO) is CPU_WIDE and len(measured.devices) == 1
    other = opened(dataclasses.replace(INFO, driver="driver 2"))
    choose_loads(other)
    assert other.profile is CPU and len(measured.devices) == 2
    assert profile_so_far(INFO) is CPU_WIDE, "kept beside the other"


def test_on_another_processor(measured, monkeypatch):
    """The driver compiles for the processor, and its name does not say which."""
    choose_loads(opened())
    monkeypatch.setattr(cpu_loads, "processor_code", lambda: "another")
    measured.times = FAST_LOADS
    device = opened()
    choose_loads(device)
    assert device.profile is CPU and len(measured.devices) == 2


def test_processor(tmp_path):
    cpuinfo, thread = tmp_path / "cpuinfo", "processor : {}\nmodel name : X\ncpu MHz : {}\nflags : fpu {}\n\n"
    told = []
    for text in (thread.format(0, 800, "avx2"), thread.format(0, 900, "avx2") + thread.format(1, 1, "avx2"), ""):
        cpuinfo.write_text(text)
        told.append(processor_code(cpuinfo))
    cpuinfo.write_text(thread.format(0, 800, "avx2 avx512f"))
    assert told[0] == told[1] and len({told[0], told[2], processor_code(cpuinfo)}) == 3
    assert processor_code(tmp_path / "absent") == ""


@pytest.mark.parametrize("content", ["{", "[]", '{"KEY": {"narrow": 1}}', '{"KEY": {"narrow": 1, "wide": -1}}'])
def test_damaged_file(measured, content, caplog):
    path = TIMES.file()
    path.parent.mkdir()
    path.write_text(content.replace("KEY", cpu_loads._key(INFO)))
    assert profile_so_far(INFO) is CPU and "is not usable" in caplog.text
    device = opened()
    choose_loads(device)
    assert device.profile is CPU_WIDE and list(json.loads(path.read_text())) == [cpu_loads._key(INFO)]


def test_devices_that_are_not_asked(measured):
    """GPUs, subgroups that no shuffles are written for, no integers of 64 bits, a profile that was given."""
    gpu = dataclasses.replace(INFO, type="discrete", vendor_id=NVIDIA)
    given = opened()
    given.profile = dataclasses.replace(CPU, prefill_chunk=32)
    for device in (opened(gpu), opened(dataclasses.replace(INFO, subgroup_size=32)), opened(features=()), given):
        profile = device.profile
        choose_loads(device)
        assert device.profile is profile
    assert not measured.devices and not TIMES.file().exists()
