"""What lies around the package must not reach into it: layers of others, folders with a common name, no home."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from vkprefill.errors import DeviceError, RequestError
from vkprefill.specprefill import calibration
from vkprefill.vulkan import companion, shaders, switches
from vkprefill.vulkan import device as device_module
from vkprefill.vulkan.device import DRIVER_VARIABLES, Device, hide_layers
from vkprefill.vulkan.probe import choose
from vkprefill.vulkan.profiles import AMD


def test_layers_are_looked_for_in_the_package_only():
    environment = {"VK_ADD_LAYER_PATH": "/elsewhere"}
    hide_layers(environment)
    folder = environment["VK_LAYER_PATH"]
    assert folder == os.path.dirname(device_module.__file__) and not environment["VK_ADD_LAYER_PATH"]
    assert not [name for name in os.listdir(folder) if name.endswith(".json")], "the loader would take it for a layer"


@pytest.mark.parametrize("name", ["VK_LAYER_PATH", "VK_INSTANCE_LAYERS"])
def test_layers_that_the_user_asks_for_are_not_hidden(name):
    environment = {name: "mine", "VK_ADD_LAYER_PATH": "more"}
    hide_layers(environment)
    assert environment == {name: "mine", "VK_ADD_LAYER_PATH": "more"}


@pytest.mark.parametrize("before", [{}, {"RADV_PERFTEST": "nggc", "VK_ADD_LAYER_PATH": "mine"}])
@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("opener", ["kp", "companion"])
def test_opening_a_device_leaves_the_environment_alone(monkeypatch, before, opens, opener):
    """As does failing to: child processes find what the user set."""
    for name in DRIVER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    seen = {}

    def open_manager(index):
        seen.update(os.environ)
        if not opens:
            raise RuntimeError("no")
        about = {"features": [], "timestamps": False, "matrices": []}
        return SimpleNamespace(manager=SimpleNamespace, about=lambda: about)

    def load():
        if opener == "kp":
            raise companion.Absent("for the test")
        return SimpleNamespace(Context=open_manager)

    monkeypatch.setattr(companion, "load", load)
    monkeypatch.setattr(device_module, "_import_kp", lambda: SimpleNamespace(Manager=open_manager))
    info = device_module.DeviceInfo(**{**vars(choose(None)), "vendor_id": AMD})
    if opens:
        Device(info)
    else:
        with pytest.raises(DeviceError, match="cannot be opened: no"):
            Device(info)
    assert "cswave32" in seen["RADV_PERFTEST"] and seen["VK_LAYER_PATH"]
    assert {name: os.environ[name] for name in DRIVER_VARIABLES if name in os.environ} == before


@pytest.mark.parametrize("project", [None, 'name = "something-else"\n'])
def test_a_foreign_folder_named_shaders_is_not_taken_for_the_sources(monkeypatch, tmp_path, project):
    """As site-packages/shaders of another package."""
    (tmp_path / "shaders").mkdir()
    (tmp_path / "shaders" / "theirs.comp").write_text("void main() {}")
    if project:
        (tmp_path / "pyproject.toml").write_text(project)
    monkeypatch.setattr(shaders, "SOURCES", tmp_path / "shaders")
    shaders.manifest.cache_clear()
    assert shaders.manifest()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "vkprefill"\n')
    shaders.manifest.cache_clear()
    with pytest.raises(DeviceError, match="are not those of"):
        shaders.manifest()
    monkeypatch.undo()
    shaders.manifest.cache_clear()


def test_without_a_home_speeds_are_not_kept(monkeypatch):
    """A process of a user id that has no home folder, as in a container."""
    program = (
        "import os; os.environ.pop('HOME', None); os.environ.pop('XDG_CACHE_HOME', None)\n"
        "import pwd; pwd.getpwuid = lambda uid: (_ for _ in ()).throw(KeyError(uid))\n"
        "from vkprefill.specprefill import calibration as c\n"
        "print(c.SPEEDS.file(), c.SPEEDS.load()); c.SPEEDS.store('model', c.Speed(1.0, 2.0))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (result.returncode, result.stdout) == (0, "None {}\n"), result.stderr
    assert result.stderr.count("\n") == 1 and "set XDG_CACHE_HOME" in result.stderr
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(calibration.SPEEDS.file()) == "/somewhere/vkprefill/calibration.json"
    monkeypatch.setenv("HOME", "/mine")
    for relative in ("", "here", "./here"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert str(calibration.SPEEDS.file()) == "/mine/.cache/vkprefill/calibration.json"


@pytest.mark.parametrize("variable", [switches.COMPANION, switches.BARRIER])
def test_switches_are_on_or_off(monkeypatch, variable):
    monkeypatch.delenv(variable, raising=False)
    assert switches.switched_off(variable) == ""
    for value, off in (("", False), ("1", False), ("On", False), ("0", True), ("off", True), ("False", True)):
        monkeypatch.setenv(variable, value)
        assert switches.switched_off(variable) == (f"switched off by {variable}={value}" if off else "")
    monkeypatch.setenv(variable, "banana")
    with pytest.raises(RequestError, match=f"^{variable}: found 'banana', wanted 1 or 0"):
        Device.open()
