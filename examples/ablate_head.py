"""Which attention heads does an answer need? Each is set to 0 in turn.

python examples/ablate_head.py [MODEL.gguf]
"""

import sys

import numpy as np

import vkprefill
from vkprefill import Edit
from vkprefill.generation.prompt import encode_prompt
from vkprefill.hub.at_hand import DEMO_TARGET, demo_path

PROMPT = "The pet of Harold is a ferret. The room number of Vivian is 727.\nTell me the pet of Harold."


def log_probability(logits: np.ndarray, token: int) -> float:
    row = logits.astype(np.float64) - logits.max()
    return float(row[token] - np.log(np.exp(row).sum()))


with vkprefill.load(sys.argv[1] if sys.argv[1:] else demo_path(DEMO_TARGET), max_context=1024) as model:
    ids = encode_prompt(model, PROMPT).token_ids
    plain = model.record(ids, "hook_logits").logits
    answer = int(plain.argmax())
    before = log_probability(plain, answer)
    print(f"answer {model.tokenizer.decode([answer])!r}, log-probability {before:.3f}")

    losses = {}
    for name in model.points:
        if name.endswith("attn.hook_z"):  # heads of an attention layer: what the last product reads
            for head in range(model.config.num_attention_heads):
                edits = [Edit(name, zero=True, heads=head)]  # at all positions, in prefill and decode
                logits = model.record(ids, "hook_logits", edits=edits).logits
                losses[name, head] = before - log_probability(logits, answer)
    for (name, head), loss in sorted(losses.items(), key=lambda item: -item[1]):
        print(f"{name} head {head}: {-loss:+.3f}")
