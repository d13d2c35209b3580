"""Free memory of machines and containers made up by hand."""

import os

import pytest

from vkprefill.vulkan.host_memory import free_ram_bytes
from vkprefill.vulkan.processor import processor

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path):
    """8 GiB are free on it."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemAvailable: {8 << 20} kB\n")
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    return tmp_path


def second_version(machine, limit, used, **statistics):
    write(machine / "sys/fs/cgroup", {"memory.max": limit, "memory.current": used}, statistics)


def first_version(machine, limit, used, **statistics):
    files = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used}
    write(machine / "sys/fs/cgroup/memory", files, {f"total_{name}": value for name, value in statistics.items()})


def write(folder, files, statistics):
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text("".join(f"{name} {value}\n" for name, value in statistics.items()))


def test_a_machine_without_control_groups(machine):
    assert free_ram_bytes(machine) == 8 << 30


def test_a_group_without_a_limit(machine):
    second_version(machine, "max", 4 << 30)
    assert free_ram_bytes(machine) == 8 << 30


@pytest.mark.parametrize("group", [second_version, first_version])
def test_a_group_with_a_limit(machine, group):
    group(machine, 2 << 30, 500 * MIB, anon=500 * MIB)
    assert free_ram_bytes(machine) == (2 << 30) - 500 * MIB
    group(machine, 64 << 30, 500 * MIB, anon=500 * MIB)
    assert free_ram_bytes(machine) == 8 << 30, "the machine has less"


@pytest.mark.parametrize("group", [second_version, first_version])
def test_files_that_were_read_make_room(machine, group):
    """A group that has read a large file uses all it may, of which the kernel takes back what is asked for."""
    group(machine, 2 << 30, 2 << 30, anon=300 * MIB, inactive_file=1000 * MIB, active_file=500 * MIB)
    assert free_ram_bytes(machine) == 1500 * MIB


def test_processor(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("model name\t: Some CPU\nflags\t\t: sse avx avx2\n\nmodel name\t: Some CPU\nflags : sse avx avx2\n")
    found = processor(file)
    assert (found.name, found.vectors) == ("Some CPU", "AVX2") and str(
        found
    ) == f"Some CPU, {found.threads} threads, AVX2"
    file.write_text("processor : 0\nFeatures : fp asimd\n")
    assert processor(file).vectors == "NEON"
    assert not processor(tmp_path / "none").vectors


def test_without_proc(tmp_path):
    """As in a root that nobody has mounted it in."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_ram_bytes(tmp_path) <= total
