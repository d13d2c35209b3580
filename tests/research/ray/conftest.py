"""Ray's workers run at the priority of the test, not at the low one that Ray gives them; no test goes on for ever."""

import os
import signal

import pytest

BOUND_S = 900  # a test takes a minute where two cores are shared with much else

os.environ["RAY_worker_niceness"] = "0"


@pytest.fixture(autouse=True)
def bound():
    def too_long(*_):
        pytest.fail(f"took more than {BOUND_S} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(BOUND_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
