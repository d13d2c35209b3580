"""The process around the self-test: drivers that crash, hang or are not there; what the report says and leaves out."""

import json
import sys

import pytest

from vkprefill.selftest import run
from vkprefill.selftest.facts import without_paths
from vkprefill.selftest.report import as_json, as_text, split_name, worst_by_kernel
from vkprefill.selftest.run import Examination, Outcome, examine
from vkprefill.selftest.trial import Finding

NAMES = ("one", "two", "three")
# Stands in for worker.py: `behave(n)` comes before the news of check n.
SCRIPT = """
import json, os, signal, sys, time
first = json.loads(sys.argv[1])["first"]
def tell(**news): print(json.dumps(news), flush=True)
def crash():
    print("driver: an assertion failed in /home/jane/mesa/nir.c", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
{before}
tell(facts={{"memory": "/home/jane/x is full"}})
tell(checks=["one", "two", "three"], not_here={{}})
for n in range(first, 3):
    tell(begin=n)
    {behave}
    finding = dict(kernels=["k%d" % n], error=0.0, limit=1.0, reason="", where="")
    tell(findings=[finding], failure="")
tell(end=True)
"""


def examined(before: str = "", behave: str = "pass") -> tuple[Examination, list[tuple[int, int, str]]]:
    seen = []
    script = SCRIPT.format(before=before, behave=behave)
    return examine(None, lambda *news: seen.append(news), [sys.executable, "-c", script]), seen


def test_all_well():
    found, seen = examined()
    assert found.well and [outcome.findings[0].kernels[0] for outcome in found.outcomes] == ["k0", "k1", "k2"]
    assert seen == [(n, 3, name) for n, name in enumerate(NAMES)]
    assert found.facts == {"memory": "x is full"}


def test_a_driver_that_crashes_costs_one_check():
    found, _ = examined(behave="crash() if n == 1 else None")
    assert not found.well and [outcome.ok for outcome in found.outcomes] == [True, False, True]
    failure = found.outcomes[1]
    assert failure.check == "two"
    how = "the process ended with signal SIGSEGV (driver: an assertion failed in nir.c)"
    assert failure.failure == f"cannot run: {how}"
    assert "FAILED: two: cannot run: the process ended with signal SIGSEGV" in as_text_without_facts(found)


def test_a_lost_device_is_followed_by_another_process():
    """The worker ends after the check's news."""
    found, _ = examined(behave="sys.exit() if n > first else None")
    assert [outcome.check for outcome in found.outcomes] == [*NAMES] and not found.outcomes[1].ok


def test_a_driver_that_crashes_always_is_given_up(monkeypatch):
    monkeypatch.setattr(run, "MAX_RESTARTS", 1)
    found, _ = examined(behave="crash()")
    assert not found.well and [outcome.check for outcome in found.outcomes] == ["one", "two"]
    assert found.failure.startswith("given up after 2 processes, the last with: the process ended with signal SIGSEGV")


def test_a_driver_that_crashes_at_once():
    found, _ = examined(before="crash()")
    assert not found.well and not found.outcomes
    assert found.failure.endswith("when Vulkan's drivers were asked for devices") and "SIGSEGV" in found.failure
    assert as_text(found).endswith("result: 1 failure") and json.dumps(as_json(found))


def test_a_worker_that_ends_with_an_exit_status():
    found, _ = examined(before="raise ImportError('numpy')")
    assert "exit status 1 (ImportError: numpy)" in found.failure


def test_a_driver_that_hangs(monkeypatch):
    monkeypatch.setattr(run, "SILENCE_S", 0.5)
    found, _ = examined(behave="time.sleep(1000) if n == 2 else None")
    assert found.outcomes[-1].failure == "cannot run: the process did nothing for 0.5 s and was ended"


def test_no_device():
    """What was told before stays."""
    found, seen = examined(before="tell(facts={'a': 1}); tell(facts={'b': 2}); tell(error='no driver'); sys.exit()")
    assert not found.well and found.failure == "no driver" and found.facts == {"a": 1, "b": 2} and seen == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("not available: /home/jane/.venv/lib/_companion.so: bad ELF", "not available: _companion.so: bad ELF"),
        ("/opt/jane/one and (/srv/jane/two)", "one and (two)"),
        ("/users/Jane Doe/files/x.so", "x.so"),
        ("GFLOP/s, x86_64/linux, 3/4 of 1/2", "GFLOP/s, x86_64/linux, 3/4 of 1/2"),
        ("nothing", "nothing"),
    ],
)
def test_paths_are_left_out(text, shown):
    assert without_paths({"a": [text, 3, None]}, home="/users/Jane Doe") == {"a": [shown, 3, None]}


def as_text_without_facts(found: Examination) -> str:
    found.facts = {}
    return as_text(found)


def finding(error: float, limit: float, *kernels: str) -> Finding:
    return Finding(kernels, error, limit, "sums", "worst at [1]")


def test_report_names_the_kernel_that_differs():
    found = Examination(checks=("a", "b"))
    found.outcomes = [
        Outcome("a", (finding(1e-6, 1e-4, "x_q4_k", "y"), finding(2e-4, 1e-4, "x_q4_k"))),
        Outcome("b", (finding(0.0, 0.0, "x_f16"),)),
    ]
    text = as_text(found)
    assert "FAILED  x  2.0e-04 of 1.0e-04  f16 q4_k" in text and "ok      y  1.0e-06 of 1.0e-04" in text
    assert "FAILED: x_q4_k: error 0.0002 found, at most 0.0001 wanted (sums); worst at [1]" in text
    assert text.endswith("result: 1 failure")
    data = as_json(found)
    assert data["well"] is False and data["selftest"]["kernels"]["x_q4_k"]["ok"] is False
    assert data["selftest"]["kernels"]["y"] == {
        "error": 1e-6,
        "limit": 1e-4,
        "reason": "sums",
        "where": "worst at [1]",
        "ok": True,
    }


def test_errors_that_are_no_number_are_null_in_json():
    found = Examination(outcomes=[Outcome("a", (finding(float("inf"), 1e-4, "x"),))])
    assert json.loads(json.dumps(as_json(found), allow_nan=False))["selftest"]["kernels"]["x"]["error"] is None


def test_worst_is_what_comes_nearest_to_its_limit():
    found = [Outcome("a", (finding(1e-5, 1e-4, "x"), finding(9e-6, 1e-5, "x"), finding(0.0, 0.0, "x")))]
    assert worst_by_kernel(found)["x"].error == 9e-6
    found.append(Outcome("b", (finding(1e-9, 0.0, "x"),)))
    assert worst_by_kernel(found)["x"].error == 1e-9


def test_names():
    assert split_name("matmul_hybrid_q4_k") == ("matmul_hybrid", "q4_k")
    assert split_name("kv_store_f16") == ("kv_store", "f16") and split_name("top_k") == ("top_k", "")
