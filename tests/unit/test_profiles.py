import dataclasses

import pytest

from vkprefill.engine.halves import SHORT_RUN
from vkprefill.engine.sizes import PAGE, ROW_TILE
from vkprefill.vulkan.probe import MIN_INVOCATIONS, MIN_SHARED_BYTES, DeviceInfo
from vkprefill.vulkan.profiles import AMD, INTEL, NVIDIA, PROFILES, SHUFFLE_SUBGROUPS, profile_for

DEVICE = DeviceInfo(0, "", "discrete", 0, "", "", (), 0, 0, 32, 32, 0, 0, 0, ())


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_tiles_are_what_the_shaders_can_do(profile):
    p = profile
    local, tm, tn = p.matmul
    rows_read = tm // 4 if p.hybrid else tm
    assert ROW_TILE % rows_read == 0 and ROW_TILE % p.attention[1] == 0, "activations are padded to whole tiles"
    assert not (p.hybrid and p.shuffle) and (tn == 1 or not p.hybrid)
    attention_local, _, keys = p.attention
    assert PAGE % (attention_local * keys) == 0
    lanes, slices, weight_rows = p.matvec
    delta_local, delta_lanes, delta_rows = p.delta_rule
    assert delta_local % delta_lanes == 0
    assert max(local, lanes * slices, attention_local, delta_local, p.local_size) <= MIN_INVOCATIONS
    assert 128 * local * p.hybrid <= MIN_SHARED_BYTES
    assert p.shuffle or not p.wide
    assert 4 * lanes * slices * SHORT_RUN * weight_rows <= MIN_SHARED_BYTES
    assert p.expert_rows % 4 == 0
    if p.shuffle:
        assert all(2 * p.expert_rows % size == 0 for size in SHUFFLE_SUBGROUPS)
        assert slices == delta_lanes == delta_rows == 1
        for size in SHUFFLE_SUBGROUPS:
            assert local % size == lanes % size == attention_local % size == delta_local % size == 2 * tm % size == 0


def test_classes_of_devices():
    def name(**changes: object) -> str:
        return profile_for(dataclasses.replace(DEVICE, **changes)).name

    assert [name(vendor_id=vendor) for vendor in (AMD, NVIDIA, INTEL, 0x13B5)] == ["amd", "nvidia", "intel", "unknown"]
    assert name(vendor_id=AMD, subgroup_size=64) == "amd" and name(vendor_id=AMD, min_subgroup_size=64) == "amd-gcn"
    assert [name(type="cpu", subgroup_size=size) for size in (4, 8, 16)] == ["cpu"] * 3
    assert name(type="cpu", subgroup_size=32) == "unknown", "no tile of the kernels with shuffles fits"
