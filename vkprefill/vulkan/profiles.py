"""Device class -> tile sizes and bounds. Nothing here changes a result beyond rounding; it changes how fast it comes.

The figures for CPU devices are measured (benchmarks/), those for GPUs come from the instruction counts of RADV's
compiler for RDNA3 and from the limits of the Vulkan specification.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from vkprefill.vulkan.probe import DeviceInfo

AMD, NVIDIA, INTEL = 0x1002, 0x10DE, 0x8086
INT64 = "shaderInt64"  # the feature that wide loads need
SHUFFLE_SUBGROUPS = (4, 8, 16)  # sizes that the tiles of the kernels with shuffles divide into


@dataclass(frozen=True)
class Profile:
    """Tile sizes of the kernels (their specialisation constants) and bounds.

    matmul: (LOCAL_SIZE, TM, TN); half_matmul: (LOCAL_SIZE, TM) of matmul_hybrid for halves, whatever the device;
    matvec: (ROW_LANES, SLICES, TN); attention: (LOCAL_SIZE, TQ, KP); for few rows attention_few: (TQ, KP, words of the
    cache that an invocation asks for before it uses the first) and attention_splits: parts the keys are cut into;
    delta_rule: (LOCAL_SIZE, LANES, ROWS); local_size: invocations of the small kernels; prefill_chunk: tokens
    that go through all layers together; submission_flop: work after which a submission ends. shuffle: words that all
    lanes of a subgroup need are loaded once and handed on by shuffles (matmul.comp; SLICES, LANES and ROWS are 1);
    wide, with shuffle: products load two words as one (words.glsl);
    hybrid: the workgroup shares its dequantised weights (matmul_hybrid.comp; TN is 1). expert_rows: TM of products with
    the matrices of experts, of which each has few rows.
    """

    name: str
    matmul: tuple[int, int, int]
    matvec: tuple[int, int, int]
    attention: tuple[int, int, int]
    attention_few: tuple[int, int, int]
    attention_splits: int
    delta_rule: tuple[int, int, int]
    local_size: int
    prefill_chunk: int
    submission_flop: float
    shuffle: bool = False
    wide: bool = False
    hybrid: bool = False
    half_matmul: tuple[int, int] = (128, 64)
    expert_rows: int = 16


# A CPU device runs the subgroups of a workgroup one after another: large register tiles, no splitting, few barriers. A
# load costs as much for each lane, also where all read the same word: hence the shuffles.
# It has no watchdog; the bound keeps Ctrl-C and the progress bar prompt.
# expert_rows: of 8, not 16, prefill of a mixture with the widths of 35B-A3B is 1.09, 1.09, 1.17 times as fast for
# prompts of 128, 512, 1,024 tokens, though each weight is dequantised more often: an expert's last tile is half empty.
CPU = Profile(
    "cpu",
    matmul=(16, 16, 8),
    matvec=(16, 1, 4),
    attention=(16, 16, 4),
    attention_few=(4, 2, 16),
    attention_splits=1,
    delta_rule=(16, 1, 1),
    local_size=32,
    prefill_chunk=128,
    submission_flop=2e9,
    shuffle=True,
    expert_rows=8,
)
# Where each word loaded goes into its vector register through memory (lavapipe with LLVM 15 on a CPU without AVX-512),
# larger tiles and half as many words: matmul of Q4_K 1.6 times, matvec 1.7 times as fast.
CPU_WIDE = replace(CPU, name="cpu-wide", matmul=(16, 16, 16), matvec=(16, 1, 8), wide=True)
# Bounds: 250 ms at the speed that is certain to be reached (0.4 TFLOP/s on a 15 W integrated GPU).
#
# matmul: vector instructions for each multiply-add that the Radeon 780M's compiler makes (Mesa 25, waves of 32; 0.5
# where all pair): matmul_hybrid 0.55 for Q4_K, 0.56 Q5_K, 0.56 Q6_K, 0.54 Q8_0, 0.52 F16, 0.65 IQ4; matmul at its
# best, with (32, 32, 2), 0.60, 0.62, 0.64, 0.60, 1.01, 0.81. For a weight is dequantised once for 64 tokens, not for
# 32; weights and activations are read half as often. The price is 16 KiB of shared memory, read at a fifth of its
# rate, and two barriers for 2,048 multiply-adds of an invocation, in which other workgroups compute: 8 fit the 128
# KiB of a workgroup processor, 8 waves on each of its 4 SIMDs (matmul: 8 to 12). Both forms make equally many waves
# of equal work; the 6 processors are busy for 67, 89, 89, 97 % of the time with 64, 128, 256, 512 tokens and 1,024
# rows, 83, 95, 95, 99 % with 2,560, 100 % with 9,216. Hence matmul_hybrid for every layout.
#
# expert_rows, by the same compiler: with tiles of 16, 32 and 64 rows 0.69, 0.60, 0.55 vector instructions for each
# multiply-add of Q4_K, of halves 0.44, 0.35, 0.30, and 2.5, 1.25, 0.6 bytes of shared memory, of which a processor
# gives 128 in a cycle. An expert's last tile is half empty: of 64 rows for each (2,048 tokens, 8 of 256 experts) 72, 80
# and 96 are computed. So 32: with 16 shared memory binds, with 64 what is empty.
_AMD = Profile(
    "amd",
    matmul=(128, 64, 1),
    matvec=(32, 8, 1),
    attention=(32, 8, 2),
    attention_few=(4, 2, 16),
    attention_splits=64,
    delta_rule=(32, 8, 2),
    local_size=64,
    prefill_chunk=512,
    submission_flop=1e11,
    hybrid=True,
    expert_rows=32,
)
# GPUs before RDNA have waves of 64 only, and issue one instruction at a time. matmul_hybrid with a wave for each
# quarter of the tokens: 1.05 instructions for each multiply-add.
_AMD_GCN = replace(
    _AMD,
    name="amd-gcn",
    matmul=(256, 64, 1),
    matvec=(64, 4, 1),
    attention=(64, 8, 2),
    attention_splits=32,
    delta_rule=(64, 8, 2),
)
_NVIDIA = Profile(
    "nvidia",
    matmul=(64, 16, 4),
    matvec=(32, 8, 1),
    attention=(64, 8, 4),
    attention_few=(4, 2, 16),
    attention_splits=64,
    delta_rule=(32, 4, 1),
    local_size=64,
    prefill_chunk=512,
    submission_flop=1e11,
)
_INTEL = Profile(
    "intel",
    matmul=(32, 16, 2),
    matvec=(32, 8, 1),
    attention=(64, 4, 4),
    attention_few=(4, 2, 16),
    attention_splits=32,
    delta_rule=(32, 4, 1),
    local_size=64,
    prefill_chunk=256,
    submission_flop=2.5e10,
)
_UNKNOWN = Profile(
    "unknown",
    matmul=(32, 8, 4),
    matvec=(64, 4, 1),
    attention=(64, 4, 4),
    attention_few=(4, 2, 16),
    attention_splits=16,
    delta_rule=(32, 4, 1),
    local_size=64,
    prefill_chunk=128,
    submission_flop=1e10,
)


PROFILES = (CPU, CPU_WIDE, _AMD, _AMD_GCN, _NVIDIA, _INTEL, _UNKNOWN)
# For a bill that is made before a device is open.
LARGEST = replace(
    _UNKNOWN,
    name="any",
    prefill_chunk=max(profile.prefill_chunk for profile in PROFILES),
    attention_splits=max(profile.attention_splits for profile in PROFILES),
)


def can_run(profile: Profile, info: DeviceInfo, features: Collection[str]) -> bool:
    """Whether a device that is open with these features of Vulkan has what the profile's forms of kernels need."""
    return (not profile.shuffle or info.subgroup_size in SHUFFLE_SUBGROUPS) and (not profile.wide or INT64 in features)


def profile_for(info: DeviceInfo) -> Profile:
    """The profile of a device's class."""
    if info.type == "cpu" and info.subgroup_size in SHUFFLE_SUBGROUPS:
        return CPU
    if info.vendor_id == AMD and info.min_subgroup_size == 64:
        return _AMD_GCN
    return {AMD: _AMD, NVIDIA: _NVIDIA, INTEL: _INTEL}.get(info.vendor_id, _UNKNOWN)
