"""Points of many prompts, recorded by actors: the shards of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vkprefill.display import printable
from vkprefill.engine.microscope.record import Wish
from vkprefill.engine.model import load
from vkprefill.errors import RequestError
from vkprefill.recording.prompts import Prompt
from vkprefill.recording.run import PromptRecorder, Recorded
from vkprefill.recording.shards import file_hash


@dataclass(frozen=True)
class RecordWork:
    """path: of the model, on every machine; sha256: what must be there; loading: options of `load`."""

    path: Path
    sha256: str
    wish: Wish
    dtype: str
    loading: Mapping[str, object] = field(default_factory=dict)

    @contextmanager
    def open(self, device: str | None) -> Iterator[Callable[[Prompt], Recorded]]:
        if (found := file_hash(self.path)) != self.sha256:
            raise RequestError(f"{printable(self.path)}: found SHA-256 {found}, wanted {self.sha256}, as here")
        with (
            load(self.path, device, **self.loading) as model,
            closing(PromptRecorder(model, self.wish, self.dtype)) as r,
        ):
            yield r.record
