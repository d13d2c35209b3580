"""Items -> results, in order and each once, by actors of Ray Data that hold what they work with.

An actor that dies is started anew and what it had not finished is done again, by Ray; what had come from it stays.
Results come to this process alone, so that whoever writes them needs no more care than with one device.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import socket
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from tempfile import mkdtemp
from typing import Protocol

from vkprefill.display import one_line, printable
from vkprefill.distributed.places import Places, device_of
from vkprefill.errors import RequestError, VkPrefillError

PIECE_BYTES = 1 << 26  # of a result at a time: Ray Data's blocks are best small
MOST_BLOCKS = 10_000  # of items: each costs the scheduler something
PATIENCE_S = 20  # for the answer of a cluster's head, or the end of what Ray started here
FRAME_HEADER, SETTINGS = 9, b"\x04"  # of HTTP/2, in bytes; its fourth
MOST_DEATHS = 3  # of actors by an item, before it is left alone


class ActorWork(Protocol):
    """What an actor does. It is pickled: its module is imported on the actor's machine."""

    def open(self, device: str | None) -> AbstractContextManager[Callable[[object], object]]:
        """What makes a result of an item, with what it needs on a device (None: the one that is taken unless told)."""


class Deaths:
    """An actor that outlives the others: how often an item was begun, and not finished."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        self._begun[number] += 1
        return self._begun[number] - 1

    def finish(self, number: int) -> None:
        del self._begun[number]


class Worker:
    """An actor of Ray Data."""

    def __init__(self, work: ActorWork, devices: Sequence[str], in_cluster: bool, deaths: object) -> None:
        self._work, self._devices, self._in_cluster, self._deaths = work, devices, in_cluster, deaths
        self._do: Callable[[object], object] | None = None
        self._held = ExitStack()

    def __call__(self, batch: dict[str, object]) -> Iterator[dict[str, list[object]]]:
        """The result of one item, or the error in place of it, in pieces."""
        number, item = int(batch["number"][0]), pickle.loads(batch["item"][0])
        content = pickle.dumps(self._result(number, item), pickle.HIGHEST_PROTOCOL)
        starts, run = range(0, len(content), PIECE_BYTES), uuid.uuid4().hex
        for left, start in zip(reversed(range(len(starts))), starts, strict=True):
            piece = content[start : start + PIECE_BYTES]
            yield {"number": [number], "run": [run], "left": [left], "piece": [piece]}

    def _result(self, number: int, item: object) -> tuple[object, bool]:
        """(result or error, whether this ends it all)."""
        import ray

        try:
            if self._do is None:
                ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
                device = device_of(ids, self._devices, self._in_cluster)
                self._do = self._held.enter_context(self._work.open(device))
        except VkPrefillError as error:
            return error, True
        if (died := ray.get(self._deaths.begin.remote(number))) == MOST_DEATHS:
            return RequestError(f"Ray: {died} actors died of it, one after another"), False
        try:
            return self._do(item), False
        except RequestError as error:
            return error, False
        except VkPrefillError as error:
            return error, True
        finally:
            self._deaths.finish.remote(number)


def require_ray() -> None:
    """RequestError where it is not installed."""
    try:
        import ray.data  # noqa: F401
    except ModuleNotFoundError as error:
        package = (error.name or "ray").partition(".")[0]
        raise RequestError(f"--ray: {package} is not installed; run: pip install 'vkprefill[ray]'") from None


@contextmanager
def results(places: Places, work: ActorWork, items: Sequence[object]) -> Iterator[Iterator[object]]:
    """An iterator over the results; in place of one a RequestError, where the work had this for the item, or its actors
    died. Raises RequestError, and what else the work raises. All is given back at the end, also when the caller is
    interrupted: actors, and Ray where it was started for this.
    """
    if not items:
        yield iter(())
        return
    require_ray()
    import ray
    from ray.exceptions import RayError

    try:
        with (
            redirect_stdout(sys.stderr),  # where Ray tells of workers that died
            _folder() as folder,
        ):
            try:
                _start(places, folder)
                yield _run(places, work, items)
            finally:
                ray.shutdown()
    except RayError as error:
        raise RequestError(f"Ray: {one_line(str(error).strip().splitlines()[-1])}") from None


@contextmanager
def _folder() -> Iterator[str]:
    """A temporary one that is gone at the end: Ray's processes may write to it a moment longer than Ray's shutdown."""
    try:
        folder = mkdtemp(prefix="ray-")
    except OSError as error:
        raise RequestError(f"Ray: found no place for temporary files: {error.strerror}") from None
    try:
        yield folder
    finally:
        end = time.monotonic() + PATIENCE_S
        while os.path.exists(folder) and time.monotonic() < end:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)


def _start(places: Places, folder: str) -> None:
    """folder: for logs, sockets and what does not fit into memory, where Ray is started here."""
    import ray

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    quiet = {"log_to_driver": False, "logging_level": "error"}
    try:
        if places.address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else its makers are told of each start
            num_gpus = max(1, len(places.devices))
            ray.init("local", num_gpus=num_gpus, include_dashboard=False, _temp_dir=folder, **quiet)
        else:
            if places.address != "auto":
                _knock(places.address)
            ray.init(places.address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RequestError(f"Ray: {one_line(str(error).strip().splitlines()[0])}") from None


def _knock(address: str) -> None:
    """OSError where no head listens at HOST:PORT, which Ray would try for minutes. One begins with a frame of type
    SETTINGS (RFC 9113, 3.4), unless it wants TLS first.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S) as link:
            if os.environ.get("RAY_USE_TLS", "0") == "0" and link.recv(FRAME_HEADER)[3:4] != SETTINGS:
                raise OSError("who listens there is no head of a Ray cluster")
    except (OSError, OverflowError) as error:
        raise OSError(f"{printable(address)}: {error}") from None


def _run(places: Places, work: ActorWork, items: Sequence[object]) -> Iterator[object]:
    import ray

    machines = [node for node in ray.nodes() if node["Alive"]]
    actors, share = places.shares(len(items), int(ray.cluster_resources().get("GPU", 0)), len(machines))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    deaths = ray.remote(num_cpus=0)(Deaths).remote()
    rows = [{"number": number, "item": pickle.dumps(item)} for number, item in enumerate(items)]
    found = ray.data.from_items(rows, override_num_blocks=min(len(rows), MOST_BLOCKS)).map_batches(
        Worker,
        fn_constructor_args=(work, places.devices, places.address is not None, deaths),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_gpus=share,
        num_cpus=0 if share else 1,
    )
    yield from _whole(found.iter_batches(batch_size=1, batch_format="numpy", prefetch_batches=0))


def _whole(pieces: Iterator[dict[str, Sequence[object]]]) -> Iterator[object]:
    """The results of pieces, in order. RequestError for those that do not fit together."""
    number, run, content = 0, None, []
    for piece in pieces:
        if piece["number"][0] != number or (content and piece["run"][0] != run):
            raise RequestError(f"Ray: a result came twice or not whole, after {number} of them; start again")
        run = piece["run"][0]
        content.append(piece["piece"][0])
        if piece["left"][0] == 0:
            result, ends = pickle.loads(b"".join(content))
            if ends:
                raise result
            yield result
            number, content = number + 1, []
