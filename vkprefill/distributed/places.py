"""Where work is done: actors, and the device that each has. Ray hands out the devices, as its GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vkprefill.display import quoted
from vkprefill.errors import RequestError
from vkprefill.vulkan.probe import probe


@dataclass(frozen=True)
class Places:
    """address: of a cluster's head, "auto" for the cluster that this machine is part of, None: Ray is started here for
    as long as it takes. actors: each holds a model (None: one for each device). devices: indices or parts of names, of
    each machine, its first GPU of Ray's being the first of them (empty: here the one that is taken without Ray, in a
    cluster the GPUs that Vulkan lists).
    """

    address: str | None = None
    actors: int | None = None
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.actors is not None and self.actors < 1:
            raise RequestError(f"actors: found {self.actors}, wanted at least 1")
        if self.address not in (None, "auto") and not re.fullmatch(r"[^/\s]+:\d+", self.address):
            raise RequestError(f"--ray-address: found {quoted(self.address)}, wanted HOST:PORT or auto")

    def shares(self, num_items: int, num_gpus: int, num_machines: int) -> tuple[int, float]:
        """(actors, not more than items; what each takes of a GPU of Ray's, 0 in a cluster that was told of none)."""
        if num_gpus == 0 and len(self.devices) > 1:
            raise RequestError("devices: the cluster has no GPUs to tell them apart; start Ray with --num-gpus")
        actors = min(self.actors or num_gpus or num_machines, num_items)
        return actors, 1 / math.ceil(actors / num_gpus) if num_gpus else 0.0


def device_of(gpu_ids: Sequence[str], devices: Sequence[str], in_cluster: bool) -> str | None:
    """The device that an actor loads its model on, None for the one that is taken unless told. gpu_ids: what Ray gave
    it of this machine's GPUs, none or one.
    """
    number = int(gpu_ids[0]) if gpu_ids and gpu_ids[0].isdecimal() else 0
    if devices:
        if number >= len(devices):
            raise RequestError(f"devices: found {len(devices)}, and Ray has more GPUs here: wanted one for each")
        return devices[number]
    gpus = [info for info in probe() if info.type != "cpu" and not info.missing] if in_cluster else []
    return str(gpus[number].index) if number < len(gpus) else None
