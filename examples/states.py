"""A model's state after a prompt: put back for several questions, kept in a file, and changed.

python examples/states.py [MODEL.gguf]
"""

import sys

import numpy as np

import vkprefill
from vkprefill.hub.at_hand import DEMO_TARGET, demo_path

TEXT = "The pet of Harold is a ferret. The room number of Vivian is 727. The pet of Vivian is a"


def best(logits: np.ndarray) -> str:
    return repr(model.tokenizer.decode([int(logits.argmax())]))


with vkprefill.load(sys.argv[1] if sys.argv[1:] else demo_path(DEMO_TARGET), max_context=1024) as model:
    ids = model.tokenizer.encode(TEXT)
    cache = model.new_cache()
    model.prefill(ids[:-1], cache=cache)
    snapshot = cache.snapshot()  # states of all layers, with the length of the keys and values

    first = model.decode(ids[-1], cache)
    cache.restore(snapshot)
    assert np.array_equal(model.decode(ids[-1], cache), first)  # the same bits
    print("from the snapshot:", best(first))

    # The recurrent state of each delta-net layer is a plain array, [Hv, Dk, Dv], for a file or for a change.
    layers = model.config.linear_layers
    cache.restore(snapshot)
    states = {str(layer): cache.recurrent_state(layer) for layer in layers}
    np.savez_compressed("states.npz", **states)
    for layer in layers:
        cache.set_recurrent_state(layer, np.zeros_like(states[str(layer)]))
    print("with empty states:", best(without := model.decode(ids[-1], cache)))

    cache.restore(snapshot)
    for layer, state in np.load("states.npz").items():
        cache.set_recurrent_state(int(layer), state)
    again = model.decode(ids[-1], cache)
    assert np.array_equal(again, first) and not np.array_equal(without, first)
    print("from the file:", best(again))
    snapshot.free()
