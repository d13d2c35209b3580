"""The interpreter of the emulated GPU, built on demand, for waves of 32 and of 64."""

import ctypes
import platform

import pytest

from tests.emu780m.machine import Machine, build


@pytest.fixture(scope="session")
def interpreter() -> ctypes.CDLL:
    """It sets the processor's own treatment of denormals, as only an x86-64 has it."""
    if platform.machine() != "x86_64":
        pytest.skip(f"the emulated GPU's interpreter runs on x86-64, this is {platform.machine()}")
    return ctypes.CDLL(str(build()))


@pytest.fixture(params=[32, 64], ids=["wave32", "wave64"])
def machine(interpreter, request) -> Machine:
    return Machine(interpreter, request.param)
