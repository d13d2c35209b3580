"""The keys that requests may carry: one of the command line, and those of a file, which is read again when it changes.

No message holds a key, or a part of one.
"""

from __future__ import annotations

import hmac
import logging
import os
import stat
from collections.abc import Collection

from vkprefill.display import printable
from vkprefill.errors import RequestError

log = logging.getLogger("vkprefill")

MAX_FILE_BYTES = 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # which some editors put before UTF-8


class Keys:
    """One or more, as bytes. RequestError for a key that no header can carry, or a file without any."""

    def __init__(self, key: str | None = None, file: str | None = None) -> None:
        self._own = () if key is None else (_checked(key.encode(errors="surrogateescape"), "--api-key"),)
        self._file = file
        self._seen: tuple[object, ...] | None = None  # of the file, when it was last read
        self._of_file: tuple[bytes, ...] = ()
        if file is not None:
            self._read()

    def match(self, given: Collection[bytes]) -> bool:
        """Whether one of the texts is a key; how long it takes does not say how much of one is right."""
        if self._file is not None and self._changed():
            try:
                self._read()
                log.warning("--api-key-file %s: read again, keys: %d", printable(self._file, 200), len(self._of_file))
            except RequestError as error:
                log.warning("%s; the keys read before stay", error)
        return True in [hmac.compare_digest(one, key) for one in given for key in (*self._own, *self._of_file)]

    def _changed(self) -> bool:
        """Once for each change, even one that cannot be read."""
        try:
            now = _marks(os.stat(self._file))
        except OSError:
            now = ()
        if now is None or now == self._seen:
            return False
        self._seen = now
        return True

    def _read(self) -> None:
        what = f"--api-key-file {printable(self._file, 200)}"
        try:
            with open(self._file, "rb") as file:
                found = os.fstat(file.fileno())
                raw = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise RequestError(f"{what}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        self._seen = _marks(found)
        if len(raw) > MAX_FILE_BYTES:
            raise RequestError(f"{what}: larger than {MAX_FILE_BYTES} bytes, wanted one key a line")
        lines = [line.strip() for line in raw.removeprefix(BYTE_ORDER_MARK).splitlines()]
        keys = [
            _checked(line, f"{what}, line {number}")
            for number, line in enumerate(lines, 1)
            if line and not line.startswith(b"#")
        ]
        if not keys:
            raise RequestError(f"{what}: found no key, wanted one a line")
        if stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IROTH:
            log.warning("%s: every user of this machine may read it (chmod o-r)", what)
        self._of_file = tuple(keys)


def _marks(found: os.stat_result) -> tuple[object, ...] | None:
    """What changes when the file does; None for a pipe, which can be read once."""
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def _checked(key: bytes, what: str) -> bytes:
    if not key.strip():
        raise RequestError(f"{what}: found an empty one, wanted a text that a header can carry")
    if key != key.strip():
        raise RequestError(f"{what}: found white space around it, wanted a text that a header can carry")
    if any(byte < 0x20 or byte == 0x7F for byte in key):
        raise RequestError(f"{what}: found a control character, wanted a text that a header can carry")
    return key
