"""The forms of a kernel that a device can run: its own profile's, and those that other profiles choose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

from vkprefill.vulkan.companion import DOT2
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.profiles import PROFILES, Profile, can_run


def profiles(device: Device) -> list[Profile]:
    """One for each set of switches that the device can have, its own first."""
    found = {switches(device.profile): device.profile}
    for profile in PROFILES:
        if can_run(profile, device.info, device.abilities.features):
            found.setdefault(switches(profile), profile)
    return list(found.values())


def switches(profile: Profile) -> tuple[bool, ...]:
    """What chooses a kernel's form, beside tile sizes."""
    values = (getattr(profile, field.name) for field in fields(profile))
    return tuple(value for value in values if isinstance(value, bool))


def form_name(profile: Profile) -> str:
    """In words: the switches that are on."""
    on = [field.name for field in fields(profile) if getattr(profile, field.name) is True]
    return " and ".join(on) or "plain"


@contextmanager
def using(device: Device, profile: Profile, dot2: bool = True) -> Iterator[None]:
    """The device with another profile; without dot2: as if it had no instruction for sums of products of halves."""
    before = device.profile, device.abilities
    device.profile = profile
    if not dot2:
        device.abilities = replace(device.abilities, features=device.abilities.features - DOT2)
    try:
        yield
    finally:
        device.profile, device.abilities = before
