"""Activation patching: where in the model the fact is that it answers with.

Two prompts differ in one word. In a run of the first, the residual stream of one token after one layer is replaced by
that of the second; how far does the answer go from the first's to the second's?

    python examples/microscope/patch_a_fact.py [-m MODEL.gguf] [-o PICTURE.svg]
"""

import numpy as np
import pictures

import vkprefill
from vkprefill import Edit

TEXT = "Robert keeps a {}. The office was quiet. Which pet does Robert keep?"
FACT, OTHER = "pigeon", "ferret"


class Patching:
    """Both runs, and runs of the first that are patched with the second's rows."""

    def __init__(self, model: vkprefill.Model) -> None:
        self.model = model
        self.ids, other_ids = (pictures.chat(model, TEXT.format(word)) for word in (FACT, OTHER))
        if len(self.ids) != len(other_ids):
            raise SystemExit(f"{FACT} and {OTHER} are not as many tokens")
        self.plain = model.record(self.ids, "resid_post", tokens="all")
        self.other = model.record(other_ids, "resid_post", tokens="all")
        self.first = next(t for t, (a, b) in enumerate(zip(self.ids, other_ids, strict=True)) if a != b)
        self.answers = int(self.plain.logits.argmax()), int(self.other.logits.argmax())

    def share(self, layer: int, token: int) -> float:
        """How much of the way from the first answer to the second the patch goes: 0 none, 1 all of it."""
        name = ("resid_post", layer)
        patch = Edit(name, set=self.other[name][token], positions=token)
        patched = self.model.record(self.ids, name, edits=[patch])
        start, end = self._favour(self.plain.logits), self._favour(self.other.logits)
        return (self._favour(patched.logits) - start) / (end - start)

    def _favour(self, logits: np.ndarray) -> float:
        mine, others = self.answers
        return float(logits[others]) - float(logits[mine])


def main() -> None:
    asked = pictures.arguments(__doc__)
    with vkprefill.load(asked.model, kv_type="f32", max_context=1024) as model:
        patching = Patching(model)
        print("answers:", *pictures.words(model, patching.answers))
        tokens = range(patching.first, len(patching.ids))  # those before are the same in both
        layers = range(model.config.num_hidden_layers)
        shares = np.array([[patching.share(layer, token) for token in tokens] for layer in layers])
        columns = pictures.words(model, patching.ids[patching.first :])
        for layer in layers:
            at = int(shares[layer].argmax())
            text = f"{columns[at]!r} (token {tokens[at]}) moves the answer by {shares[layer, at]:.0%}"
            print(f"after layer {layer}: {text}")
        if asked.output:
            pictures.heat_map(asked.output, shares, columns, "of the way to the other answer")


if __name__ == "__main__":
    main()
