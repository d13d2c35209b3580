"""The same bits in float32 whoever opens the device: the native companion, with every feature on, or kp."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import hashlib, sys
import numpy as np
import vkprefill
from vkprefill.cli.common import demo_path

digest = hashlib.sha256()
for name in sys.argv[1:]:
    with vkprefill.load(demo_path(name), max_context=512, precision="full") as model:
        ids = np.arange(150) * 7 % model.config.vocab_size
        cache = model.new_cache()
        digest.update(model.prefill(ids, cache=cache).tobytes())
        for token in (3, 5):
            digest.update(model.decode(token, cache).tobytes())
        print("companion", model.device.abilities.absent is None)
print(digest.hexdigest())
"""


def run(**environment: str) -> tuple[list[str], str]:
    """(who opened the device for each model, hash of all logits)."""
    result = subprocess.run(
        [sys.executable, "-c", RUN, "target.gguf", "draft.gguf"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    *opened, digest = result.stdout.split("\n")[:-1]
    return opened, digest


def test_logits_of_the_built_in_pair_are_the_same_bits():
    if not list((ROOT / "vkprefill").glob("_companion*.so")):
        pytest.skip("the native companion is not built (tools/build_native.py)")
    with_it, expected = run()
    without, found = run(VKPREFILL_COMPANION="0")
    assert (with_it, without) == (["companion True"] * 2, ["companion False"] * 2)
    assert found == expected
