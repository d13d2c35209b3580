"""Shards of recorded arrays with a manifest, which is what says how far a recording is.

A shard is a safetensors file (an 8-byte length, a JSON header, the data), whole or not there; the manifest is written
anew after each. So a recording that was killed goes on after its last whole shard, and makes the same ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np

from vkprefill.errors import RequestError

HASHED_BYTES = 1 << 24  # read at a time
MANIFEST = "manifest.json"
DTYPES = {"float32": ("F32", np.float32), "float16": ("F16", np.float16)}
FLAGS = {  # what the user gives for a fact of the manifest
    "model": "-m",
    "points": "--points",
    "tokens": "--tokens",
    "steps": "--steps",
    "max_tokens": "-n",
    "max_context": "-c",
    "prefill_chunk": "-b",
    "kv_type": "-ctk",
    "precision": "--precision",
    "dtype": "--dtype",
    "max_shard_bytes": "--shard-mib",
    "prompts_sha256": "file of prompts",
}
TYPE_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.int32): "I32"}


class ShardWriter:
    """Arrays of prompts, in order, into shards of max_bytes at most; a prompt with more has one of its own.

    facts: what is recorded, of what: a folder with a recording of something else is refused. done: prompts that are in
    whole shards.
    """

    def __init__(self, folder: Path, facts: dict[str, object], max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._pending: dict[str, np.ndarray] = {}
        self._prompts: list[dict[str, object]] = []
        self._bytes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._manifest = self._known() or {**facts, "shards": []}
        except OSError as error:
            raise self._error(error) from None
        for name, value in facts.items():
            if self._manifest.get(name) != value:
                raise RequestError(f"{folder}: holds a recording with another {FLAGS[name]}; take another folder")
        self.done = sum(len(shard["prompts"]) for shard in self._manifest["shards"])

    @property
    def refused(self) -> list[tuple[str, str]]:
        """(id, why) of prompts in whole shards that could not be recorded."""
        entries = (entry for shard in self._manifest["shards"] for entry in shard["prompts"])
        return [(entry["id"], entry["error"]) for entry in entries if "error" in entry]

    def add(self, prompt_id: str, facts: dict[str, object], arrays: dict[str, np.ndarray]) -> None:
        """The next prompt: facts for the manifest, arrays by name."""
        size = sum(array.nbytes for array in arrays.values())
        if self._prompts and self._bytes + size > self._max_bytes:
            self.flush()
        number = self.done + len(self._prompts)
        self._pending |= {f"{number}/{name}": array for name, array in arrays.items()}
        self._prompts.append({"id": prompt_id, "number": number, **facts})
        self._bytes += size

    def flush(self) -> None:
        """What was added becomes a shard."""
        if not self._prompts:
            return
        name = f"shard-{len(self._manifest['shards']):05d}.safetensors"
        try:
            self._replace(name, pieces := _safetensors(self._pending))
            digest = hashlib.sha256()
            for piece in pieces:
                digest.update(piece)
            self._manifest["shards"].append({"file": name, "sha256": digest.hexdigest(), "prompts": self._prompts})
            self._replace(MANIFEST, [json.dumps(self._manifest, indent=1).encode()])
        except OSError as error:
            raise self._error(error) from None
        self.done += len(self._prompts)
        self._pending, self._prompts, self._bytes = {}, [], 0

    def _known(self) -> dict[str, object] | None:
        """The manifest that is there."""
        path = self._folder / MANIFEST
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text())
            shards = [(shard["file"], shard["sha256"], len(shard["prompts"])) for shard in found["shards"]]
        except (ValueError, KeyError, TypeError):
            raise RequestError(f"{path}: is no manifest of a recording; take another folder") from None
        for name, wanted, _ in shards:
            if not (self._folder / name).exists():
                raise RequestError(f"{path}: {name} is gone; take another folder")
            if (there := file_hash(self._folder / name)) != wanted:
                raise RequestError(f"{path}: {name} is damaged: SHA-256 {there}, wanted {wanted}; take another folder")
        return found

    def _replace(self, name: str, pieces: list[bytes]) -> None:
        temporary = self._folder / f".{name}.tmp"
        with open(temporary, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._folder / name)

    def _error(self, error: OSError) -> RequestError:
        return RequestError(f"{self._folder}: cannot be written: {error.strerror or error}")


def file_hash(path: Path) -> str:
    """SHA-256 of a file: a few seconds for each gigabyte."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(HASHED_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _safetensors(arrays: dict[str, np.ndarray]) -> list[bytes]:
    """Header, then the data in the header's order, little-endian."""
    header, offset = {}, 0
    for name, array in arrays.items():
        end = offset + array.nbytes
        header[name] = {"dtype": TYPE_NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)), text, *(np.ascontiguousarray(a).tobytes() for a in arrays.values())]
