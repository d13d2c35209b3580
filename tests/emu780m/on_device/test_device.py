"""The stand-in for libdrm: what it answers where a wrong answer would go unnoticed, and that it refuses the unknown.

It is called as the driver calls it; it stands in this process before the real library.
"""

import ctypes
import os
import subprocess
import sys

import pytest

LIBRARY = ctypes.CDLL(None)
INFO, MAX_BUFFERS = 0xC0206445, 0x22  # numbers of the kernel's calls and queries
GRAPHICS, COMPUTE = 0, 1
ADDRESS32_HI, SPARSE_BIT = 0, 1
RANGE_32_BIT, RANGE_HIGH = 1, 2
MIB = 1 << 20
REFUSED = 70  # status of a process that the device ends


class Query(ctypes.Structure):
    _fields_ = [
        ("to", ctypes.c_uint64),
        ("bytes", ctypes.c_uint32),
        ("what", ctypes.c_uint32),
        ("rest", ctypes.c_uint32 * 4),
    ]


class Request(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("bytes", "alignment", "heap", "flags")]


@pytest.fixture(scope="module")
def handle() -> ctypes.c_void_p:
    made, version = ctypes.c_void_p(), ctypes.c_uint32()
    descriptor = os.open("/dev/null", os.O_RDWR)
    assert (
        LIBRARY.amdgpu_device_initialize(descriptor, ctypes.byref(version), ctypes.byref(version), ctypes.byref(made))
        == 0
    )
    yield made
    assert LIBRARY.amdgpu_device_deinitialize(made) == 0
    os.close(descriptor)


def make_buffer(handle: ctypes.c_void_p, num_bytes: int) -> ctypes.c_void_p:
    buffer = ctypes.c_void_p()
    assert LIBRARY.amdgpu_bo_alloc(handle, ctypes.byref(Request(num_bytes, 4096, 4, 0)), ctypes.byref(buffer)) == 0
    return buffer


def addresses(handle: ctypes.c_void_p, num_bytes: int, flags: int) -> tuple[int, ctypes.c_void_p]:
    start, piece = ctypes.c_uint64(), ctypes.c_void_p()
    arguments = map(ctypes.c_uint64, (num_bytes, 0, 0))
    status = LIBRARY.amdgpu_va_range_alloc(
        handle, 0, *arguments, ctypes.byref(start), ctypes.byref(piece), ctypes.c_uint64(flags)
    )
    assert status == 0
    return start.value, piece


def test_submissions_may_have_as_many_buffers_as_linux_takes():
    most = (ctypes.c_uint32 * 10)()
    query = Query(ctypes.addressof(most), ctypes.sizeof(most), MAX_BUFFERS)
    assert LIBRARY.drmIoctl(0, ctypes.c_ulong(INFO), ctypes.byref(query)) == 0
    assert (most[GRAPHICS], most[COMPUTE]) == (192, 125) and min(most) > 0


def test_no_address_has_the_bit_of_sparse_buffers(handle):
    """Drivers clear it in the addresses of scalar loads: one that had it would be read elsewhere."""
    bit, word = ctypes.c_uint32(), ctypes.c_uint32()
    assert LIBRARY.amdgpu_query_sw_info(handle, SPARSE_BIT, ctypes.byref(bit)) == 0
    assert LIBRARY.amdgpu_query_sw_info(handle, ADDRESS32_HI, ctypes.byref(word)) == 0
    assert bit.value == (0xFFFF800000000000 ^ 0xFFFFFFFFFFFFE000).bit_length() - 1
    for flags in (0, RANGE_32_BIT, RANGE_HIGH):
        start, piece = addresses(handle, MIB, flags)
        assert not start >> bit.value & 1
        assert not flags & RANGE_32_BIT or start >> 32 == word.value
        LIBRARY.amdgpu_va_range_free(piece)


def test_freed_buffers_make_room(handle):
    """More than there are handles in a table of 65,536, and more bytes than the device has addresses for."""
    kept = make_buffer(handle, MIB)
    for _ in range(70_000):
        assert LIBRARY.amdgpu_bo_free(make_buffer(handle, 2 * MIB)) == 0
    assert LIBRARY.amdgpu_bo_free(kept) == 0


def test_freed_addresses_come_again_as_late_as_can_be(handle):
    """So that a use of something freed is found as an access to nothing."""
    first, piece = addresses(handle, MIB, RANGE_32_BIT)
    LIBRARY.amdgpu_va_range_free(piece)
    seen = set()
    while True:
        start, piece = addresses(handle, MIB, RANGE_32_BIT)
        LIBRARY.amdgpu_va_range_free(piece)
        if start in seen:
            break
        seen.add(start)
    assert len(seen) > 4000, "of 4 GiB"


REFUSALS = {
    "a call": (
        "drmIoctl(0, ctypes.c_ulong(0xC0206477), ctypes.byref(ctypes.c_uint64(0)))",
        "call 0x77 of the kernel's",
    ),
    "a buffer": ("amdgpu_bo_free(ctypes.c_void_p(12345))", "buffer 12345: no such buffer"),
    "a fence": ("drmSyncobjDestroy(0, 77)", "fence 77: no such fence"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_it_does_not_know_ends_the_process_and_is_named(what):
    """On the standard error that the process started with, also where another was put in its place, as pytest does."""
    call, message = REFUSALS[what]
    program = f"import ctypes, os; os.dup2(os.open('/dev/null', os.O_WRONLY), 2); ctypes.CDLL(None).{call}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == REFUSED
    assert result.stderr.startswith("emu780m: ") and message in result.stderr and result.stderr.count("\n") == 1


def test_an_unknown_chip_is_named():
    environment = {**os.environ, "EMU_CHIP": "gfx9"}
    command = [sys.executable, "-m", "vkprefill", "devices"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == REFUSED
    assert "EMU_CHIP: gfx9 is not among the chips: gfx1103, gfx1150, gfx1151, gfx1100" in result.stderr
