"""Which share of a prompt a selection keeps, before there is one: learnt from earlier ones, and kept with the
calibration.

By model, scorer and settings: what one request asks for says nothing about another's. Protected tokens are left out of
what is learnt, since their number is known beforehand; so is the limit max_keep, which cuts long prompts only.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from vkprefill.kept import Kept
from vkprefill.specprefill.selection import Selection
from vkprefill.specprefill.settings import SpecPrefillConfig

# Of the importance wanted in mode "mass", before anything is known: 0.6 of the tokens for 0.85. The share is that of
# the importance at most; the demo prompts keep 0.29 to 0.51.
FIRST_OF_MASS = 0.7
FEW = 3  # of selections: until then the first guess counts where it is greater
MAX_CHOICES = 64  # settings that are remembered, those used last


@dataclass(frozen=True)
class Share:
    """mean: 0 to 1; count: selections."""

    mean: float
    count: float


SHARES = Kept("shares.json", Share)


class KeptShares:
    """Of one model and scorer, which `name` stands for; no name: not kept in the file."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._shares: OrderedDict[SpecPrefillConfig, Share] = OrderedDict()

    def note(self, config: SpecPrefillConfig, selection: Selection, new: int) -> None:
        """A selection among `new` tokens was made."""
        share = _observed(config, selection, new)
        if share is None:
            return
        old = self._known(config)
        self._shares[config.choice] = known = Share(
            (old.mean * old.count + max(share, 1e-6)) / (old.count + 1), old.count + 1
        )
        self._shares.move_to_end(config.choice)
        if len(self._shares) > MAX_CHOICES:
            self._shares.popitem(last=False)
        if self._name and not config.protect and int(known.count).bit_count() == 1:  # the 1st, 2nd, 4th, 8th ...
            SHARES.store(self._key(config), known, most=4 * MAX_CHOICES)

    def expected(self, config: SpecPrefillConfig, new: int, protected_n: int = 0) -> float:
        """How many of `new` tokens will be kept, protected_n of which are protected."""
        if config.keep_ratio == 1:
            return new
        known, first = self._known(config), _first(config)
        share = max(known.mean, first) if known.count < FEW else known.mean
        if config.select_mode == "chunk":
            kept = max(share * new, protected_n)
        else:
            kept = protected_n + share * (new - protected_n)
        return max(protected_n, min(kept, config.most_kept)) if config.most_kept else kept

    def _known(self, config: SpecPrefillConfig) -> Share:
        known = self._shares.get(config.choice)
        if known is None and self._name and not config.protect:
            known = SHARES.load().get(self._key(config))
        return known or Share(0.0, 0)

    def _key(self, config: SpecPrefillConfig) -> str:
        return f"{self._name}|{hashlib.sha256(repr(config.choice).encode()).hexdigest()[:16]}"


def _first(config: SpecPrefillConfig) -> float:
    return config.keep_ratio if config.select_mode == "chunk" else FIRST_OF_MASS * config.cumulative_mass


def _observed(config: SpecPrefillConfig, selection: Selection, new: int) -> float | None:
    """The share that the settings alone made be kept; None where protected tokens or little text hide it."""
    wanted, protected = len(selection.kept) + selection.capped_n, selection.protected_n
    if config.keep_ratio == 1:
        return None
    if config.select_mode == "chunk":
        return None if protected > config.keep_ratio * new else wanted / new
    return None if protected == new else (wanted - protected) / (new - protected)
