"""How many tokens of a prompt go through the layers together, after how many."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tools.model.shapes import make_config
from vkprefill.engine.runner import Runner
from vkprefill.engine.sizes import Sizes
from vkprefill.vulkan.profiles import PROFILES

AMD = next(profile for profile in PROFILES if profile.name == "amd")


def tokens_per_run(profile, depth: int, chunk: int | None = None, half: bool = False) -> int:
    config = make_config("4B")
    sizes = Sizes(config, profile, 32768, "f16", chunk or profile.prefill_chunk, half)
    runner = SimpleNamespace(config=config, sizes=sizes, device=SimpleNamespace(profile=profile))
    return Runner.tokens_per_run(runner, depth)


@pytest.mark.parametrize(("depth", "wanted"), [(0, 512), (8192, 512), (16384, 320), (20480, 256), (100_000, 32)])
def test_whole_tiles_as_they_shrink(depth, wanted):
    """As many as 4 * 4,096 * tokens * (depth + tokens) is 1e11 for: 364, 293 and 60 after 16K, 20K and 100K, in tiles
    of 64.
    """
    found = tokens_per_run(replace(AMD, matmul=(128, 32, 1)) if depth == 100_000 else AMD, depth)
    assert found == wanted


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@pytest.mark.parametrize("half", [False, True])
def test_every_profile(profile, half):
    tile = max(32, (profile.half_matmul if half else profile.matmul)[1])
    counts = [tokens_per_run(profile, depth, half=half) for depth in range(0, 200_000, 999)]
    assert counts == sorted(counts, reverse=True) and counts[0] == profile.prefill_chunk
    for depth, count in zip(range(0, 200_000, 999), counts, strict=True):
        assert 1 <= count and (count % tile == 0 or count < tile)
        flop = 4.0 * 4096 * (depth + count) * count
        assert count == 1 or flop <= profile.submission_flop, "attention of a layer is more than a submission takes"


def test_less_than_a_tile_is_taken_as_it_is():
    assert tokens_per_run(replace(AMD, submission_flop=4.0 * 4096 * 1020 * 20), 1000) == 20
    assert tokens_per_run(replace(AMD, submission_flop=1.0), 1000) == 1


def test_a_chunk_that_was_asked_for_is_no_tile():
    assert tokens_per_run(AMD, 1000, chunk=100) == 100
