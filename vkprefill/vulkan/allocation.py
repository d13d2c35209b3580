"""Who owns device memory: every allocation has one owner and a number of its own, and the ledger adds up what is out.

An owner gives its memory back when it is told to or when nothing holds it any more, so an exception or Ctrl-C anywhere
loses nothing. The collector may drop an owner in the middle of any other code: whatever it runs then works on copies of
the tables and can be repeated.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vkprefill.vulkan.device import Device

_SERIALS = itertools.count(1)


class Allocation:
    """The owner of a piece of device memory. Buffers, their parts and the programs that bind them hold it.

    serial: its identity, which nothing else in this process ever gets; freed: its memory is gone, or about to go.
    """

    def __init__(self, device: Device) -> None:
        self.serial = next(_SERIALS)
        self.device = device
        self.tensor: object | None = None  # kp's
        self.freed = False

    def free(self) -> None:
        """Give the memory back. Freeing twice does nothing; a free that was interrupted is finished by the next."""
        self.freed = True
        self.device.give_back(self)

    def __del__(self) -> None:
        self.free()


@dataclass(frozen=True)
class _Entry:
    owner: weakref.ref[Allocation]
    kind: str
    memory: str
    num_bytes: int


class Ledger:
    """What is allocated: an entry stands from before its memory is taken until after it is given back."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def open(self, owner: Allocation, kind: str, memory: str, num_bytes: int) -> None:
        self._entries[owner.serial] = _Entry(weakref.ref(owner), kind, memory, num_bytes)

    def close(self, serial: int) -> None:
        """Strike an entry; one that is not there is no error."""
        self._entries.pop(serial, None)

    def clear(self) -> None:
        self._entries.clear()

    def by_kind(self) -> Counter[str]:
        """Bytes by what they are for."""
        return self._sum("kind")

    def by_memory(self) -> Counter[str]:
        """Bytes of "device" and of "host" memory."""
        return self._sum("memory")

    def _sum(self, name: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for entry in self._entries.copy().values():
            total[getattr(entry, name)] += entry.num_bytes
        return total

    def since(self, serial: int) -> list[Allocation]:
        """The owners of what was allocated after this one."""
        owners = [entry.owner() for number, entry in self._entries.copy().items() if number > serial]
        return [owner for owner in owners if owner is not None]

    def unfinished(self) -> list[tuple[int, Allocation | None]]:
        """(serial, owner) of what should be gone: an interrupt came while its owner gave it back. None: dropped."""
        owners = [(serial, entry.owner()) for serial, entry in self._entries.copy().items()]
        return [(serial, owner) for serial, owner in owners if owner is None or owner.freed]


def last_serial() -> int:
    """A number above those of all allocations so far, below those of all that follow."""
    return next(_SERIALS)
