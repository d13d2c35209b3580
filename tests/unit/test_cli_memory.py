"""The command line where memory runs out: one line, wherever it happens."""

import resource

import pytest

from vkprefill.cli import commands, main
from vkprefill.errors import DeviceError
from vkprefill.vulkan import probe


@pytest.mark.parametrize("place", ["build_parser", "run"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError("Unable to allocate 8.00 MiB for an array"), "Unable to allocate 8.00 MiB for an array"),
        (MemoryError(), "the machine, or a limit on this process, has no more"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_one_line(monkeypatch, capsys, place, error, told):
    def fail(*_):
        raise error

    monkeypatch.setattr(commands, place, fail)
    assert main.main(["devices"]) == 1
    assert capsys.readouterr() == ("", f"Error: out of memory: {told}\n")


def test_other_errors_are_not_taken_for_it(monkeypatch):
    def fail(*_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(commands, "run", fail)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        main.main(["devices"])


@pytest.mark.parametrize(
    ("limit", "advice"), [(resource.RLIM_INFINITY, "install mesa-vulkan-drivers"), (300 << 20, "300 MiB of addresses")]
)
def test_no_device_where_memory_is_limited(monkeypatch, limit, advice):
    """A driver that found no memory to be loaded into is none to the loader."""
    monkeypatch.setattr(probe.resource, "getrlimit", lambda which: (limit, limit))
    monkeypatch.setattr(probe.ctypes, "CDLL", lambda name: NoDevices())
    with pytest.raises(DeviceError, match=f"no device found; .*{advice}"):
        probe.probe()


class NoDevices:
    """A loader without drivers."""

    def __getattr__(self, name: str):
        return lambda *given: 0
