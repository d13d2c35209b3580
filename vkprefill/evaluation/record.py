"""A file that an evaluation goes on from: JSON lines, first what is run, then each task with its outcomes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType

import numpy as np

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.evaluation.runs import Outcome
from vkprefill.evaluation.task import Task

HEAD, KEY, OUTCOMES = "evaluation", "task", "outcomes"


class Record:
    """A context: entering it reads what the file has (made where there is none), and cuts off a line that was not
    written to its end.

    run: what every outcome depends on, JSON values. Raises RequestError for a file of another run, or of something
    else, or that cannot be written.
    """

    def __init__(self, path: str | Path, run: Mapping[str, object]) -> None:
        self.path, self._run = Path(path), json.loads(json.dumps(run))
        self._known: dict[str, list[Outcome]] = {}
        self._file = None

    def __enter__(self) -> Record:
        try:
            self._file = open(self.path, "a+b")
            self._file.seek(0)
            whole, newline, _ = self._file.read().rpartition(b"\n")
            self._read(whole)
            self._file.truncate(len(whole) + len(newline))
            if not whole:
                self._write({HEAD: self._run})
        except OSError as error:
            self._close()
            raise RequestError(f"{self.path}: cannot be gone on with: {error.strerror}") from None
        except BaseException:
            self._close()
            raise
        return self

    def outcomes_of(self, task: Task) -> list[Outcome] | None:
        """Those of an earlier start; None where it is still to be run."""
        return self._known.get(_key(task))

    def add(self, task: Task, outcomes: Sequence[Outcome]) -> None:
        """A task that is done. RequestError when the disk is full or the like."""
        try:
            self._write({KEY: _key(task), OUTCOMES: [asdict(one) for one in outcomes]})
        except OSError as error:
            raise RequestError(f"{self.path}: cannot be written: {error.strerror}") from None

    def _read(self, text: bytes) -> None:
        names = {field.name for field in fields(Outcome)}
        for number, line in enumerate(text.splitlines(), 1):
            try:
                found = json.loads(line)
                if number == 1:
                    head = found[HEAD]
                    if not isinstance(head, dict):
                        raise TypeError
                elif not all({*one} == names for one in found[OUTCOMES]):
                    raise TypeError
                else:
                    self._known[found[KEY]] = [Outcome(**one) for one in found[OUTCOMES]]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise RequestError(f"{self.path} line {number}: is not what an evaluation wrote") from None
            if number == 1 and head != self._run:
                name = next(name for name in {**head, **self._run} if head.get(name) != self._run.get(name))
                raise RequestError(
                    f"{self.path}: is of a run with {name} {printable(head.get(name))}, "
                    f"wanted {printable(self._run.get(name))}, or another file"
                )

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(f"{json.dumps(line, ensure_ascii=False)}\n".encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __exit__(self, kind: type[BaseException] | None, error: object, where: TracebackType | None) -> None:
        self._close()


def _key(task: Task) -> str:
    """Changes with the prompt, the answers and how they are compared."""
    content = repr((task.id, task.kind, task.question_at, task.answers, task.match)).encode()
    return f"{task.id} {hashlib.sha256(np.asarray(task.token_ids, np.int64).tobytes() + content).hexdigest()[:32]}"
