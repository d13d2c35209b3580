"""Where models are kept, and how the hub is asked: what its users have set in the environment, read at each use.

The names and their order of precedence are those of Hugging Face's own library, and llama.cpp's for its cache.
"""

from __future__ import annotations

import os
from pathlib import Path

from vkprefill.errors import HubError

ENDPOINT = "https://huggingface.co"
TRUE = ("1", "on", "true", "yes")
FOLDERS = "VKPREFILL_MODELS"  # folders with models of one's own, with colons between


def hub_home() -> Path:
    """The folder of Hugging Face's library: its caches and the token of `hf auth login`."""
    return _given("HF_HOME") or user_cache() / "huggingface"


def hub_cache() -> Path:
    return _given("HF_HUB_CACHE") or _given("HUGGINGFACE_HUB_CACHE") or hub_home() / "hub"


def llama_cache() -> Path:
    """Where llama.cpp keeps what it fetched, USER_REPO_FILE.gguf."""
    return _given("LLAMA_CACHE") or user_cache() / "llama.cpp"


def own_folders() -> list[Path]:
    return [Path(folder).expanduser() for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]


def endpoint() -> str:
    """Without a slash at its end. Raises HubError for what is no address."""
    found = (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
    if not found.startswith(("http://", "https://")):
        raise HubError(f"HF_ENDPOINT: found {found!r}, wanted an address that begins with https://")
    return found


def token() -> str | None:
    """Of HF_TOKEN, else of the file where `hf auth login` puts it. Raises HubError for what is none."""
    found = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    source = "HF_TOKEN"
    if not found:
        path = _given("HF_TOKEN_PATH") or hub_home() / "token"
        source = str(path)
        try:
            found = path.read_text()
        except (OSError, UnicodeDecodeError):
            return None
    found = found.strip()
    if not (found.isascii() and found.isprintable()) or " " in found:
        raise HubError(f"{source}: holds no token, wanted one word of printable ASCII characters")
    return found or None


def is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in TRUE


def user_cache() -> Path:
    """XDG_CACHE_HOME, else ~/.cache. Raises HubError for a user without a home folder."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser()
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        raise HubError("no home folder to keep models in; set HF_HOME") from None


def _given(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None
