"""A direction from two prompts, written as a control-vector file, and a model that runs with it.

    python examples/steer.py [MODEL.gguf]

The file is llama.cpp's kind: `vkprefill generate --steer direction.gguf:1.5` takes it, and llama.cpp does.
"""

import sys

import gguf

import vkprefill
from vkprefill.generation.prompt import encode_prompt
from vkprefill.hub.at_hand import DEMO_TARGET, demo_path

PROMPT = "The pet of Harold is a {}. The room number of Vivian is 727.\nTell me the pet of Harold."
FROM, TO, FILE = "ferret", "pigeon", "direction.gguf"

path = sys.argv[1] if sys.argv[1:] else demo_path(DEMO_TARGET)
with vkprefill.load(path, max_context=1024) as model:
    runs = [model.record(encode_prompt(model, PROMPT.format(word)).token_ids, "resid_post") for word in (FROM, TO)]

    # What differs at the last token after each layer; of real use is the mean over many pairs of prompts.
    writer = gguf.GGUFWriter(FILE, "controlvector")
    for layer in range(1, model.config.num_hidden_layers):
        writer.add_tensor(f"direction.{layer}", runs[1]["resid_post", layer][0] - runs[0]["resid_post", layer][0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

last = model.config.num_hidden_layers - 1
for strength in (0.0, 1.0):
    # Every run of this model is steered, after its last layer alone, so none of its caches was made without.
    steer = [vkprefill.Steer(FILE, strength, (last, last))] if strength else []
    with vkprefill.load(path, max_context=1024, steer=steer) as steered:
        ids = encode_prompt(steered, PROMPT.format(FROM)).token_ids
        token = int(steered.prefill(ids).argmax())
        print(f"strength {strength}: the answer begins with {steered.tokenizer.decode([token])!r}")
