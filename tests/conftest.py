"""The environment of all tests, and the Vulkan device that shader and model tests share."""

import os
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.emulated import Dispatches, faults
from tests.skips import refuse_skip
from vkprefill.cli.variables import PREFIX
from vkprefill.engine import memory
from vkprefill.errors import DeviceError
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.vulkan.companion import abilities
from vkprefill.vulkan.device import Device, _import_barrier
from vkprefill.vulkan.probe import choose
from vkprefill.vulkan.switches import BARRIER, COMPANION

# What a user may have set and would change results: settings of the product, colours.
FOREIGN_VARIABLES = ["FORCE_COLOR", "NO_COLOR", "PYTHONIOENCODING"]
FOREIGN_VARIABLES += [name for name in os.environ if name.startswith(PREFIX) and name not in (COMPANION, BARRIER)]
FOREIGN_VARIABLES += [setting.metadata["variable"] for setting in fields(SpecPrefillConfig)]

NOBODY = 65534  # a user id without rights


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="also run tests marked exhaustive (make test-all)")
    parser.addoption("--allow-skips", action="store_true", help="no failure where tests/skips.py knows no such skip")


def pytest_configure(config: pytest.Config) -> None:
    """The emulated GPU, if that is what the tests run on, looks for its file when the first device is opened."""
    if "EMU_STATS" not in os.environ:
        folder = tempfile.TemporaryDirectory()
        os.environ["EMU_STATS"] = str(Path(folder.name) / "dispatches.jsonl")
        config.add_cleanup(folder.cleanup)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --exhaustive leaves out what is marked so, unless -m speaks of it."""
    if config.getoption("exhaustive") or "exhaustive" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not item.config.getoption("allow_skips"):
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if not collector.config.getoption("allow_skips"):
        refuse_skip(report)
    return report


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory) -> Iterator[None]:
    """The same on every machine, for this process and those it starts: no settings of the user, a cache folder of the
    tests' own for measured speeds, English, 80 columns, no proxy. Mesa's compiled shaders, which only save time, stay
    in the user's.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in filter(None, FOREIGN_VARIABLES):
            patch.delenv(name, raising=False)
        user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        patch.setenv("MESA_SHADER_CACHE_DIR", os.environ.get("MESA_SHADER_CACHE_DIR", user_cache))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("LC_ALL", "C.UTF-8")
        patch.setenv("COLUMNS", "80")
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "127.0.0.1,localhost")
        yield


@pytest.fixture(scope="session", autouse=True)
def float32_unless_asked() -> Iterator[None]:
    """What a test compares is float32 on every device; in this process "auto" never means halves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "takes_halves", lambda precision, has_dot2: precision == "half")
        yield


@pytest.fixture(scope="session")
def dispatches() -> Dispatches:
    """Of the emulated GPU, those that no test has looked at."""
    return Dispatches(Path(os.environ["EMU_STATS"]))


@pytest.fixture(autouse=True)
def no_access_outside(dispatches) -> Iterator[None]:
    """On the emulated GPU a test fails in which a shader reads or writes past a buffer, even where nothing comes of it,
    or rounds otherwise than to the nearest.
    """
    yield
    found = faults(dispatches.take())
    assert not found, "\n".join(found[:10])


def pytest_report_header() -> str:
    try:
        info = choose(None)
    except DeviceError as error:
        return f"vulkan: none ({error})"
    barrier = "available" if _import_barrier() else "not built: one submission per dependency level"
    device = f"{info.name} ({info.type}), driver {info.driver}, subgroups of {info.subgroup_size}"
    return f"vulkan: {device}; barrier operation {barrier}; {abilities(info.index)}"


@pytest.fixture(scope="session")
def device():
    """The best device there is. Its profile may be replaced by a test that puts it back."""
    try:
        opened = Device.open()
    except DeviceError as error:
        pytest.skip(f"no Vulkan device: {error}")
    yield opened
    opened.close()


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Without root's right to read every file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
