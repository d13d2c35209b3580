"""A model through everything that dispatches: prefill in two calls and in two parts, decode, captures, scores, drafts,
all logits.

    python tests/model/validation_run.py MODEL [--profile NAME] [--splits N] [--no-barrier] [--precision NAME]

--profile: of another class of device; --splits: parts that decode cuts the keys into; --no-barrier: an operation that
records nothing in the barrier's place.
Meant for test_validation.py, which runs it under the validation layer.
"""

import argparse
import dataclasses

import numpy as np

import vkprefill
from vkprefill.engine.capture import AttentionCapture
from vkprefill.engine.microscope.edits import Edit
from vkprefill.engine.step_input import Best
from vkprefill.specprefill.scorer import Scorer
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.profiles import PROFILES, can_run

CANDIDATES = 8


def open_device(profile: str | None, splits: int, no_barrier: bool) -> Device:
    device = Device.open(None)
    tiles = next((p for p in PROFILES if p.name == profile), device.profile)
    wide = tiles.wide and can_run(tiles, device.info, device.abilities.features)
    device.profile = dataclasses.replace(tiles, attention_splits=splits, wide=wide)
    if no_barrier:
        tensor = device._manager.tensor_t(np.zeros(4, np.float32), device._kp.TensorTypes.host)
        device._barrier = lambda: device._kp.OpTensorSyncLocal([tensor])  # of a host tensor: nothing to do
    return device


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--profile", choices=[p.name for p in PROFILES])
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--no-barrier", action="store_true")
    parser.add_argument("--precision", default="full")
    arguments = parser.parse_args()
    device = open_device(arguments.profile, arguments.splits, arguments.no_barrier)
    vkprefill.engine.model.Device.open = lambda wanted: device

    with vkprefill.load(arguments.model, max_context=768, kv_type="f16", precision=arguments.precision) as model:
        ids = np.arange(65) * 7 % model.config.vocab_size
        cache = model.new_cache()
        model.prefill(ids[:40], cache=cache)
        best, _ = model.prefill_candidates(ids[40:], cache, Best(CANDIDATES))
        snapshot = cache.snapshot()
        for _ in range(10):
            best, _ = model.decode_candidates(int(best[0]), cache, Best(CANDIDATES, 0.5, [int(best[0])]))
        for accepted in (3, 0, 1):
            model.runner.run_rows([1, 2, 3], cache, model.runner.logits)
            model.runner.accept(cache, accepted)
        cache.snapshot().free()
        cache.restore(snapshot)
        other = model.new_cache()
        model.prefill(ids[:3], cache=other)
        model.decode(int(best[0]), cache)
        model.prefill(ids[:40], cache=cache, capture=AttentionCapture(queries=(3, -1), delta_layers=None))
        model.decode(int(best[0]), cache, capture=AttentionCapture(delta_layers=None))
        model.logits(ids[:3])
        edits = [Edit("hook_embed", scale=2), Edit("hook_embed", call=lambda rows, _: rows / 2)]
        model.record(ids, list(model.points), steps="both", max_tokens=2, edits=edits)
        scorer = Scorer(model)
        for options in ({"lookahead": 2}, {"tail_queries": 8}, {"tail_queries": 8, "rows": "nope"}):
            scorer.score(ids, SpecPrefillConfig(**options))
        other.reset()
        model.runner.split.read(ids, None, other, 0, marks=(20,))
        model.prefill(ids[[3, 19, 64]], [3, 19, 64], other)
        model.prefill(ids[:5], cache=other)
        for _ in range(2):
            model.run_rows([1, 2, 3], other).take()
        if model.has_mtp:
            for head_rows in (0, 200):
                drafts = model.drafter(head_rows).draft(5, cache, 3, p_min=1e-9)
                assert len(drafts) == 3
                model.decode(drafts[0], cache)
            print("draft submissions:", model.drafter(200)._program(3).num_submissions)
        program = model.runner.decode_program
        assert any("attention_merge" in label for label in program.labels) == (arguments.splits > 1)
        print("decode submissions:", program.num_submissions)
    print("finished")


if __name__ == "__main__":
    main()
