"""What a sparse prefill changes in each layer: the last token's residual stream beside that of the whole prompt.

    python examples/microscope/sparse_layers.py [-m MODEL.gguf] [-o PICTURE.svg]

A built-in model is scored by the built-in draft, any other by its own early layers.
"""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pictures

import vkprefill
from vkprefill import SpecPrefill, SpecPrefillConfig
from vkprefill.hub.at_hand import built_in

PROMPT = Path(__file__).parents[1] / "long-prompt.txt"
SHARES = (0.5, 0.3, 0.2)


def stream(model: vkprefill.Model, ids: list[int], kept: np.ndarray) -> np.ndarray:
    """float32 [layers, D]: of the last token, where only the tokens `kept` are run, at their places."""
    positions = kept.tolist()
    cache = model.record([ids[t] for t in positions], "resid_post", positions=positions)
    return np.stack([rows[-1] for rows in cache.values()])


def differences(model: vkprefill.Model, scorer: SpecPrefill, ids: list[int]) -> dict[str, np.ndarray]:
    """float64 [layers] each: |sparse - dense| / |dense|."""
    dense = stream(model, ids, np.arange(len(ids)))

    def difference(kept: np.ndarray) -> np.ndarray:
        return np.linalg.norm(stream(model, ids, kept) - dense, axis=-1) / np.linalg.norm(dense, axis=-1)

    found = {}
    for share in SHARES:
        config = SpecPrefillConfig.from_dict({"select_mode": "chunk", "keep_ratio": share}, scorer.config)
        kept = scorer.score(ids, config).selection.kept
        found[f"{len(kept) / len(ids):.0%}, by importance"] = difference(kept)
    found[f"{len(kept) / len(ids):.0%}, the last tokens"] = difference(np.arange(len(ids) - len(kept), len(ids)))
    return found


def main() -> None:
    asked = pictures.arguments(__doc__)
    with ExitStack() as stack:
        model = stack.enter_context(vkprefill.load(asked.model, kv_type="f32", max_context=4096))
        draft = None
        if asked.model == built_in("built-in"):
            draft = stack.enter_context(vkprefill.load(built_in("built-in-draft"), model.device, 4096))
        scorer = SpecPrefill(model, draft, SpecPrefillConfig(scorer="auto" if draft else "self"))
        stack.callback(scorer.close)
        found = differences(model, scorer, pictures.chat(model, PROMPT.read_text().strip()))
        for name, values in found.items():
            print(f"{name}:", *(f"{value:.2f}" for value in values))
        if asked.output:
            draw(asked.output, found)


def draw(file: Path, found: dict[str, np.ndarray]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, values in found.items():
        axes.plot(values, marker="o", linestyle="-" if "importance" in name else "--", label=name)
    axes.set_xlabel("after layer")
    axes.set_ylabel("relative difference")
    axes.set_ylim(0, None)
    axes.legend(title="kept", frameon=False)
    pictures.save(figure, file)


if __name__ == "__main__":
    main()
