"""Files that lie beside models and are none: what they are for, by content, or by name where that says nothing."""

from pathlib import Path

PICTURES = (
    "a vision projector (mmproj), which turns pictures into tokens of the model beside it; pictures are not supported"
)
PURPOSES = {  # by general.type, and by general.architecture
    "mmproj": PICTURES,
    "clip": PICTURES,
    "adapter": "an adapter (LoRA), which changes the weights of another file; adapters are not supported",
    "imatrix": "an importance matrix, which programs that quantise a model read",
}


def purpose_of(metadata: dict[str, object], path: Path) -> str | None:
    """What a file is for that is no language model; None where neither content nor name tells."""
    for key in ("general.type", "general.architecture"):
        found = metadata.get(key)
        if isinstance(found, str) and found in PURPOSES:
            return PURPOSES[found]
    return PICTURES if "general.architecture" not in metadata and "mmproj" in path.name.lower() else None
