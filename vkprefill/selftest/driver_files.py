"""The files by which the Vulkan loader finds drivers, and why one of them gives no driver.

Where the loader looks, and what it reads: its LoaderDriverInterface document (Khronos, Vulkan-Loader).
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

LISTS = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # in place of folders: the first that is set
ADDED = "VK_ADD_DRIVER_FILES"
FOLDER = Path("vulkan", "icd.d")
# Variables with folders, and those that count where one is not set.
PLACES = (
    ("XDG_CONFIG_HOME", "~/.config"),
    ("XDG_CONFIG_DIRS", "/etc/xdg"),
    (None, "/usr/local/etc:/etc"),
    ("XDG_DATA_HOME", "~/.local/share"),
    ("XDG_DATA_DIRS", "/usr/local/share:/usr/share"),
)
ENTRY = "vk_icdGetInstanceProcAddr"  # every driver has it


def driver_files(environment: Mapping[str, str]) -> list[Path]:
    """Those that a loader with this environment reads, in its order; also those that a variable names in vain."""
    listed = next((environment[name] for name in LISTS if environment.get(name)), None)
    if listed is not None:
        return [path for name in _parts(listed) for path in _files(Path(name))]
    found = [path for name in _parts(environment.get(ADDED, "")) for path in _files(Path(name))]
    for variable, otherwise in PLACES:
        for folder in _parts(environment.get(variable or "") or otherwise):
            path = Path(folder).expanduser() / FOLDER
            found += _files(path) if path.is_dir() else []
    return list(dict.fromkeys(found))


def why_no_driver(path: Path) -> str:
    """What is wrong with a driver's file or its library, in words; empty where both can be loaded, which this does."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))["ICD"]["library_path"]
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return "is not JSON"
    except (KeyError, TypeError):
        return "names no library"
    if not isinstance(entry, str):
        return "names no library"
    try:
        library = ctypes.CDLL(str(path.parent / entry) if "/" in entry else entry)
    except (OSError, ValueError) as error:
        return f"its library cannot be loaded: {error}"
    return "" if hasattr(library, ENTRY) else f"its library {Path(entry).name} is no Vulkan driver"


def _parts(text: str) -> Iterator[str]:
    return (part for part in text.split(":") if part)


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.json")) if path.is_dir() else [path]
