"""How many tokens of a prompt go through the layers together, after how many."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tools.model.shapes import make_config
from vkprefill.engine.memory import chunk_in_buffers, wanted_chunk
from vkprefill.engine.runner import Runner
from vkprefill.engine.sizes import Sizes
from vkprefill.vulkan.profiles import PROFILES

AMD = next(profile for profile in PROFILES if profile.name == "amd")


def tokens_per_run(profile, depth: int, chunk: int | None = None, half: bool = False, shape: str = "4B") -> int:
    config = make_config(shape)
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


@pytest.mark.parametrize(("depth", "wanted"), [(0, 2048), (8192, 2048), (16384, 1344), (32768, 704)])
def test_runs_of_a_mixture(depth, wanted):
    """Four times the bound, 4e11: as many as the 4B's depths allow are 1,371 and 729 after 16K and 32K."""
    found = tokens_per_run(AMD, depth, 2048, shape="35B-A3B")
    assert found == wanted and 4.0 * 4096 * (depth + found) * found <= 4 * AMD.submission_flop


def test_a_chunk_of_a_mixture_that_buffers_hold():
    """Eight rows of 2,048 floats for each token and a tile of 32 more: in 128 MiB 2,044 tokens fit, in 64 MiB 1,020."""
    config = make_config("35B-A3B")
    for megabytes, wanted in ((4096, 2048), (129, 2048), (128, 1792), (64, 768), (1, 512)):
        sizes = Sizes(config, AMD, 1024, "f16", wanted_chunk(config, AMD))
        assert chunk_in_buffers(sizes, megabytes << 20).prefill_chunk == wanted
    dense = Sizes(make_config("4B"), AMD, 1024, "f16", 512)
    assert chunk_in_buffers(dense, 1 << 20) == dense


def test_less_than_a_tile_is_taken_as_it_is():
    assert tokens_per_run(replace(AMD, submission_flop=4.0 * 4096 * 1020 * 20), 1000) == 20
    assert tokens_per_run(replace(AMD, submission_flop=1.0), 1000) == 1


def test_a_chunk_that_was_asked_for_is_no_tile():
    assert tokens_per_run(AMD, 1000, chunk=100) == 100
