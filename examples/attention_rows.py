"""What the last token reads in each layer: softmax rows, and the exact rows of delta-net layers.

python examples/attention_rows.py [MODEL.gguf]
"""

import sys

import numpy as np

import vkprefill
from vkprefill.generation.prompt import encode_prompt
from vkprefill.hub.at_hand import DEMO_TARGET, demo_path

PROMPT = "The pet of Harold is a ferret. The room number of Vivian is 727.\nTell me the pet of Harold."

with vkprefill.load(sys.argv[1] if sys.argv[1:] else demo_path(DEMO_TARGET), max_context=1024) as model:
    ids = encode_prompt(model, PROMPT).token_ids
    capture = vkprefill.AttentionCapture(layers=None, queries=(-1,), delta_layers=None)  # None: all of the kind
    model.prefill(ids, cache=model.new_cache(), capture=capture)

    rows = {**capture.pattern, **capture.delta_pattern}  # layer -> float32 [heads, 1, tokens]
    for layer in sorted(rows):
        heads = rows[layer][:, 0]
        kind = "delta net" if layer in capture.delta_pattern else "softmax"
        best = int(np.abs(heads).max(axis=0).argmax())  # delta-net rows have signs, and do not sum to 1
        print(
            f"layer {layer} ({kind}): sums {heads.sum(axis=1).round(2)}, "
            f"most on token {best}, {model.tokenizer.decode([ids[best]])!r}"
        )
    # bertviz draws capture.attentions, circuitsvis a layer's rows of all tokens (queries=None).
