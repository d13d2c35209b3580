"""One file of the hub into its cache: whole and the bytes that its name promises, or a beginning to go on from."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from vkprefill.errors import HubError
from vkprefill.hub.cache import RepoCache
from vkprefill.hub.requests import RemoteFile, Unreachable, in_words, request

Progress = Callable[[str, int, int], None]  # (file, bytes done, bytes in all)

BLOCK = 1 << 20
TRIES = 5  # in a row without a byte
PAUSE_S = 0.1  # before the first of them, twice as long before each further one
SHA256 = re.compile(r"[0-9a-f]{64}")
CONTENT_RANGE = re.compile(r"bytes (\d+)-")


class _Cut(Exception):
    """The connection ended early; why."""


def download(file: RemoteFile, cache: RepoCache, progress: Progress, notice: Callable[[str], None]) -> Path:
    """The file's place in the cache, fetched where it is not there; goes on from what an earlier try left.

    Another process that fetches the same file is waited for. Raises HubError where the disk is full or not writable,
    for bytes that are not those promised, and for a connection that stays cut.
    """
    blob = cache.blob(file)
    if not _is_whole(blob, file):
        try:
            blob.parent.mkdir(parents=True, exist_ok=True)
            with _alone(cache.lock(file), file, notice):
                if not _is_whole(blob, file):
                    notice(f"fetching {file.name}, {file.size / 1e9:,.2f} GB, into {blob.parent}")
                    _fetch(file, cache.incomplete(file), progress)
                    cache.incomplete(file).replace(blob)
        except OSError as error:
            raise HubError(f"{file.name}: cannot be written to {blob.parent}: {in_words(error)}") from None
    return cache.link(file)


def _is_whole(blob: Path, file: RemoteFile) -> bool:
    return blob.is_file() and blob.stat().st_size == file.size


@contextlib.contextmanager
def _alone(path: Path, file: RemoteFile, notice: Callable[[str], None]) -> Iterator[None]:
    """With the lock that Hugging Face's programs use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notice(f"{file.name}: another process fetches it; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Beginning:
    """A file that grows by what comes; the digest is of all of it."""

    def __init__(self, out: BinaryIO, path: Path) -> None:
        self._out, self._path = out, path
        self.digest = hashlib.sha256()
        with open(path, "rb") as there:
            while block := there.read(BLOCK):
                self.digest.update(block)
        self.length = path.stat().st_size

    def append(self, block: bytes) -> None:
        self._out.write(block)
        self._out.flush()
        self.digest.update(block)
        self.length += len(block)

    def restart(self) -> None:
        self._out.truncate(0)
        self.digest, self.length = hashlib.sha256(), 0


def _fetch(file: RemoteFile, path: Path, progress: Progress) -> None:
    """All of the bytes into `path`, which may have a beginning of them."""
    with open(path, "ab") as out:
        begun = _Beginning(out, path)
        if begun.length > file.size:
            begun.restart()
        _check_room(file, path, file.size - begun.length)
        tries, reached = 0, begun.length
        while begun.length < file.size:
            try:
                _receive(file, begun, progress)
            except (_Cut, Unreachable) as error:
                tries = 0 if begun.length > reached else tries + 1
                reached = begun.length
                if tries == TRIES:
                    raise HubError(
                        f"{file.name}: cut off after {reached:,} of {file.size:,} bytes: {error}; the same command goes"
                        " on from there"
                    ) from None
                time.sleep(PAUSE_S * 2**tries)
    if SHA256.fullmatch(file.etag) and begun.digest.hexdigest() != file.etag:
        path.unlink()
        raise HubError(f"{file.name}: what came are not the bytes of the hub (SHA-256 differs); try again")


def _receive(file: RemoteFile, begun: _Beginning, progress: Progress) -> None:
    """One answer's bytes, appended. Raises _Cut where it ends early."""
    start = begun.length
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
    with request(file.address, file.repo, headers=headers) as answer:
        found = CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        if start and not (answer.status == 206 and found and int(found[1]) == start):
            begun.restart()  # the whole file comes, or another part than asked for
            if answer.status == 206:
                raise _Cut("another range came than was asked for")
        while begun.length < file.size:
            try:
                block = answer.read(min(BLOCK, file.size - begun.length))
            except (http.client.HTTPException, OSError) as error:
                raise _Cut(in_words(error)) from None
            if not block:
                raise _Cut("the connection ended")
            begun.append(block)
            progress(file.name, begun.length, file.size)


def _check_room(file: RemoteFile, path: Path, wanted: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if wanted > free:
        raise HubError(
            f"{file.name}: {wanted / 1e9:,.2f} GB are to be fetched, {free / 1e9:,.2f} GB are free in {path.parent};"
            " HF_HUB_CACHE puts the cache elsewhere"
        )
