"""Device class -> tile sizes and bounds. Nothing here changes a result beyond rounding; it changes how fast it comes.

The figures for CPU devices are measured (benchmarks/), those for GPUs come from the instruction counts of RADV's
compiler for RDNA3 and from the limits of the Vulkan specification.
"""

from __future__ import annotations

from dataclasses import dataclass

from vkprefill.vulkan_probe import DeviceInfo

AMD, NVIDIA, INTEL = 0x1002, 0x10DE, 0x8086


@dataclass(frozen=True)
class Profile:
    """Tile sizes of the kernels (their specialisation constants) and bounds.

    matmul: (LOCAL_SIZE, TM, TN); matvec: (ROW_LANES, SLICES, TN); attention: (TQ, KP); attention_splits: parts the keys
    are cut into in decode; delta_rule: (LOCAL_SIZE, LANES, ROWS); local_size: invocations of the small kernels;
    prefill_chunk: tokens that go through all layers together; submission_flop: work after which a submission ends.
    shuffle: words that all lanes of a subgroup need are loaded once and handed on by shuffles (matmul_shuffle.comp).
    """

    name: str
    matmul: tuple[int, int, int]
    matvec: tuple[int, int, int]
    attention: tuple[int, int]
    attention_splits: int
    delta_rule: tuple[int, int, int]
    local_size: int
    prefill_chunk: int
    submission_flop: float
    shuffle: bool = False


# A CPU device runs the subgroups of a workgroup one after another: large register tiles, no splitting, few barriers. A
# load costs as much for each lane, also where all read the same word: hence the shuffles.
# It has no watchdog; the bound keeps Ctrl-C and the progress bar prompt.
_CPU = Profile(
    "cpu",
    matmul=(16, 16, 8),
    matvec=(16, 1, 4),
    attention=(8, 4),
    attention_splits=1,
    delta_rule=(16, 1, 1),
    local_size=32,
    prefill_chunk=128,
    submission_flop=2e9,
    shuffle=True,
)
# Bounds: 250 ms at the speed that is certain to be reached (0.4 TFLOP/s on a 15 W integrated GPU).
_AMD = Profile(
    "amd",
    matmul=(32, 32, 2),
    matvec=(32, 8, 1),
    attention=(8, 4),
    attention_splits=16,
    delta_rule=(32, 4, 1),
    local_size=64,
    prefill_chunk=512,
    submission_flop=1e11,
)
_NVIDIA = Profile(
    "nvidia",
    matmul=(64, 16, 4),
    matvec=(32, 8, 1),
    attention=(8, 4),
    attention_splits=32,
    delta_rule=(32, 4, 1),
    local_size=64,
    prefill_chunk=512,
    submission_flop=1e11,
)
_INTEL = Profile(
    "intel",
    matmul=(32, 16, 2),
    matvec=(32, 8, 1),
    attention=(4, 4),
    attention_splits=16,
    delta_rule=(32, 4, 1),
    local_size=64,
    prefill_chunk=256,
    submission_flop=2.5e10,
)
_UNKNOWN = Profile(
    "unknown",
    matmul=(32, 8, 4),
    matvec=(32, 8, 1),
    attention=(4, 4),
    attention_splits=8,
    delta_rule=(32, 4, 1),
    local_size=64,
    prefill_chunk=128,
    submission_flop=1e10,
)


def profile_for(info: DeviceInfo) -> Profile:
    """The profile of a device's class."""
    if info.type == "cpu" and info.subgroup_size in (4, 8, 16):  # what the tiles of the shuffling kernels divide into
        return _CPU
    return {AMD: _AMD, NVIDIA: _NVIDIA, INTEL: _INTEL}.get(info.vendor_id, _UNKNOWN)
