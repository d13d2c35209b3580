"""Where the Vulkan loader finds drivers' files."""

from pathlib import Path

import pytest

from vkprefill.selftest import driver_files as module
from vkprefill.selftest.driver_files import driver_files


@pytest.fixture
def places(tmp_path, monkeypatch) -> Path:
    """Folders of the system and of the user, with a file each."""
    for folder in ("etc", "share", "home/.config", "mine"):
        path = tmp_path / folder / "vulkan" / "icd.d"
        path.mkdir(parents=True)
        (path / f"{Path(folder).name.strip('.')}.json").touch()
        (path / "readme.txt").touch()
    system = (("XDG_CONFIG_HOME", "~/.config"), (None, f"{tmp_path}/etc"), ("XDG_DATA_DIRS", f"{tmp_path}/share"))
    monkeypatch.setattr(module, "PLACES", system)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, ["config", "etc", "share"]),
        ({"XDG_DATA_DIRS": "{0}/none:{0}/mine:{0}/share"}, ["config", "etc", "mine", "share"]),
        ({"XDG_CONFIG_HOME": "{0}/mine", "XDG_DATA_DIRS": ""}, ["mine", "etc", "share"]),
        ({"VK_ADD_DRIVER_FILES": "{0}/none.json"}, ["none", "config", "etc", "share"]),
        ({"VK_DRIVER_FILES": "{0}/a.json:{0}/mine/vulkan/icd.d"}, ["a", "mine"]),
        ({"VK_DRIVER_FILES": "", "VK_ICD_FILENAMES": "{0}/b.json"}, ["b"]),
        ({"VK_DRIVER_FILES": "{0}/a.json", "VK_ICD_FILENAMES": "{0}/b.json", "VK_ADD_DRIVER_FILES": "{0}/c"}, ["a"]),
    ],
)
def test_places(places, environment, names):
    found = driver_files({name: value.format(places) for name, value in environment.items()})
    assert [path.stem for path in found] == names
