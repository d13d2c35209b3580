"""Logit lens: which token the model would say if it ended after each layer.

python examples/microscope/logit_lens.py [-m MODEL.gguf] [-o PICTURE.svg]
"""

import numpy as np
import pictures

import vkprefill

TEXT = "Robert keeps a pigeon. The office was quiet. Which pet does Robert keep?"
SHOWN = 10  # tokens at the end of the prompt


def lens(model: vkprefill.Model, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """(ids, probabilities) [layers, SHOWN] of the most probable next token after each layer."""
    cache = model.record(ids, "resid_post", tokens=slice(-SHOWN, None))
    logits = cache.lens().astype(np.float64)
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    return chances.argmax(-1), chances.max(-1)


def main() -> None:
    asked = pictures.arguments(__doc__)
    with vkprefill.load(asked.model, kv_type="f32", max_context=1024) as model:
        ids = pictures.chat(model, TEXT)
        best, chance = lens(model, ids)
        texts = [pictures.words(model, row) for row in best.tolist()]
        for layer, row in enumerate(texts):
            print(f"after layer {layer}: {row[-1]!r:12} {chance[layer, -1]:.0%}")
        if asked.output:
            columns = pictures.words(model, ids[-SHOWN:])
            pictures.heat_map(asked.output, chance, columns, "probability of the most probable token", texts)


if __name__ == "__main__":
    main()
