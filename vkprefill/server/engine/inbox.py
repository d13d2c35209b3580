"""What the server has sent: jobs to begin, and those that are no longer wanted."""

from __future__ import annotations

from collections import deque
from multiprocessing.connection import Connection

from vkprefill.server.engine.jobs import Cancel, Job, Stop


class Inbox:
    """Read between two submissions. EOFError where the message is Stop, or the pipe is closed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._jobs: deque[Job] = deque()
        self._cancelled: set[int] = set()

    def look(self) -> bool:
        """Read what has come. Whether there are jobs to begin."""
        while self._connection.poll():
            self._take(self._connection.recv())
        return bool(self._jobs)

    def wait(self) -> None:
        """Wait for a message, and read it."""
        self._take(self._connection.recv())

    def next_job(self, only_cancelled: bool) -> Job | None:
        """The next one to begin, or to end where it is no longer wanted; None: there is none."""
        found = next((job for job in self._jobs if not only_cancelled or self.is_cancelled(job.job_id)), None)
        if found is not None:
            self._jobs.remove(found)
        return found

    def is_cancelled(self, job_id: int) -> bool:
        return job_id in self._cancelled

    def forget(self, job_id: int) -> None:
        """The job has ended; a Cancel that comes now is for nothing."""
        self._cancelled.discard(job_id)

    def _take(self, message: Job | Cancel | Stop) -> None:
        if isinstance(message, Stop):
            raise EOFError
        if isinstance(message, Job):
            self._jobs.append(message)
        else:
            self._cancelled.add(message.job_id)
