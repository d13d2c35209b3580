"""What a model computes on the way, by name, and the logit lens.

python examples/record_activations.py [MODEL.gguf]
"""

import sys

import numpy as np

import vkprefill
from vkprefill.generation.prompt import encode_prompt
from vkprefill.hub.at_hand import DEMO_TARGET, demo_path

PROMPT = "The pet of Harold is a ferret. The room number of Vivian is 727.\nTell me the pet of Harold."

with vkprefill.load(sys.argv[1] if sys.argv[1:] else demo_path(DEMO_TARGET), max_context=1024) as model:
    ids = encode_prompt(model, PROMPT).token_ids  # through the chat template; model.tokenizer.encode: as it stands

    # model.points lists all names. "resid_post" means that of every layer, "last" the prompt's last token.
    cache = model.record(ids, ["resid_post", "beta"], tokens="last", steps="both", max_tokens=3)
    print("answer:", model.tokenizer.decode(cache.generated_ids))
    for name, rows in cache.items():
        print(f"{name}: float32 {list(rows.shape)}, RMS {np.sqrt(np.mean(rows**2)):.3f}")

    # The model's head on the residual stream after each layer: which token would it say, if it ended there?
    lens = cache.lens()  # [layers, tokens, V]
    for layer, row in enumerate(lens[:, 0]):
        print(f"after layer {layer}: {model.tokenizer.decode([int(row.argmax())])!r}")

    np.savez_compressed("activations.npz", **cache)  # a mapping of plain arrays
