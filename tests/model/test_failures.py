"""Failing at the n-th call: of what takes memory, of what is recorded, of what runs; while a model loads, and in all
that it does afterwards, on a device of its own and on a shared one.

After each failure nothing is left in the accounts, and the same call gives the right answer. One n of each kind is in
every run of the tests, all of them are in `make test-all`.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace

import numpy as np
import pytest

import vkprefill
from tests.reference.fixtures import model_path
from vkprefill.engine.capture import AttentionCapture
from vkprefill.engine.model import Model
from vkprefill.engine.step_input import Best
from vkprefill.errors import OutOfMemoryError
from vkprefill.specprefill.scorer import Scorer
from vkprefill.specprefill.self_scorer import SelfScorer
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program

FILE = "moe-b-q4km"  # all that a dense one with a block has, and experts
PACKAGE = str(Path(vkprefill.__file__).parent)
PROMPT = [(7 * i) % 250 for i in range(40)]
CALLS = {"allocation": (Device, "buffer"), "recording": (Program, "dispatch"), "run": (Program, "run")}
# (error, whether the call is made before it is raised, as with an interrupt)
ERRORS = [(OutOfMemoryError, False), (MemoryError, False), (KeyboardInterrupt, True), (KeyboardInterrupt, False)]


@contextmanager
def failing(kind: str, at: int, error: type[BaseException], after: bool) -> Iterator[SimpleNamespace]:
    """The at-th call of this kind raises the error; 0: none does. `count` of what is yielded: calls so far."""
    owner, name = CALLS[kind]
    original, state = getattr(owner, name), SimpleNamespace(count=0)

    def call(*arguments, **options):
        state.count += 1
        number = state.count
        if number == at and not after:
            raise error("made up")
        result = original(*arguments, **options)
        if number == at:
            raise error("made up")
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield state


def load(device: Device | None) -> Model:
    return vkprefill.load(model_path(FILE), device, max_context=1024, kv_type="f32", prefill_chunk=32)


def prefill(model: Model) -> np.ndarray:
    return model.prefill(PROMPT)


def decode(model: Model) -> np.ndarray:
    cache = model.new_cache()
    first, _ = model.prefill_candidates(PROMPT, cache, Best(2))
    return np.concatenate([first, model.decode(5, cache), *model.decode_candidates(6, cache, Best(3))])


def rows(model: Model) -> np.ndarray:
    """Run together and accepted in part, with all that takes them into the state in between."""
    run, cache, other = model.runner, model.new_cache(), model.new_cache()
    model.extend(PROMPT[:20], cache)
    found = []
    for ids, accepted in (([5, 6, 7], 2), ([8, 9, 10, 11], 4), ([12], 0), ([13, 14], 1)):
        found.append(run.run_rows(ids, cache, run.logits))
        run.accept(cache, accepted)
    snapshot = cache.snapshot()
    run.run_rows([15, 16], cache, run.logits)
    run.accept(cache, 2)
    found += [
        model.prefill(PROMPT[20:30], cache=cache),
        model.decode(17, cache),
        model.prefill(PROMPT[:9], cache=other),
    ]
    cache.restore(snapshot)
    return np.stack([*found, model.decode(18, cache)])


def snapshot_and_restore(model: Model) -> np.ndarray:
    """With another cache in between, whose state is kept aside."""
    cache, other = model.new_cache(), model.new_cache()
    model.extend(PROMPT[:20], cache)
    snapshot = cache.snapshot()
    model.extend(PROMPT[5:], other)
    after = [model.prefill(PROMPT[20:], cache=cache), model.decode(1, other)]
    cache.restore(snapshot)
    after.append(model.prefill(PROMPT[20:], cache=cache))
    other.start_from(cache, snapshot)
    return np.stack([*after, model.decode(2, other), model.decode(3, cache.copy_rows([0, 1, 5]))])


def score(model: Model) -> np.ndarray:
    scorer = Scorer(model)
    try:
        return scorer.score(PROMPT, SpecPrefillConfig()).values
    finally:
        scorer.close()


def capture(model: Model) -> np.ndarray:
    cache, rows = model.new_cache(), AttentionCapture(queries=(-1, 0))
    model.prefill(PROMPT, cache=cache, capture=rows)
    first = [row.reshape(-1) for row in rows.pattern.values()]
    model.decode(1, cache, capture=rows)
    return np.concatenate([*first, *(row.reshape(-1) for row in rows.pattern.values())])


def capture_of_delta_nets(model: Model) -> np.ndarray:
    """From a state that is not zero on."""
    cache, rows, found = model.new_cache(), AttentionCapture((), (-1, 0), None), []
    model.extend(PROMPT[:20], cache)
    for call in (lambda: model.prefill(PROMPT[20:], cache=cache, capture=rows), lambda: model.decode(1, cache, rows)):
        call()
        found += [array.reshape(-1) for kind in (rows.delta_pattern, rows.delta_rest) for array in kind.values()]
    return np.concatenate(found)


def all_logits(model: Model) -> np.ndarray:
    return model.logits(PROMPT)


def drafts(model: Model) -> np.ndarray:
    cache = model.new_cache()
    model.extend(PROMPT, cache)
    drafted = model.drafter(64).draft(5, cache, 3, p_min=1e-9)
    return np.concatenate([drafted, model.decode(5, cache), model.drafter(64).draft(drafted[0], cache, 2)])


def two_parts(model: Model) -> np.ndarray:
    """A prompt that the early layers read and score and the late ones run a part of, with a mark inside."""
    cache, scorer = model.new_cache(), SelfScorer(model)
    try:
        config = SpecPrefillConfig(scorer="self")
        found = [scorer.score(PROMPT, config, cache, queries=8, mark_at=(20,)).values]
        found.append(model.prefill([PROMPT[3], PROMPT[12]], [3, 12], cache))
        snapshot = cache.snapshot(before=20)
        found += [model.prefill([PROMPT[25], PROMPT[39]], [25, 39], cache), model.decode(5, cache)]
        cache.restore(snapshot)
        return np.concatenate([*found, model.decode(6, cache)])
    finally:
        scorer.close()


TASKS: list[Callable[[Model], np.ndarray]] = [
    prefill,
    decode,
    rows,
    snapshot_and_restore,
    score,
    capture,
    capture_of_delta_nets,
    all_logits,
    drafts,
    two_parts,
]
# that a task takes no memory for, or records nothing for
NONE = {("allocation", prefill), ("allocation", decode), ("allocation", drafts)}
CASES = [pytest.param(k, t, id=f"{k}-{t.__name__}") for t in TASKS for k in CALLS if (k, t) not in NONE]


@pytest.fixture(scope="module")
def shared() -> Iterator[Model]:
    """A model whose device others load on too."""
    with load(None) as model:
        yield model


@pytest.fixture(scope="module")
def own() -> Iterator[Model]:
    """A model on its own device, as `shared` is, but for the tasks: they may leave what they keep in it."""
    with load(None) as model:
        yield model


@pytest.fixture(scope="module")
def expected(own) -> dict[Callable, np.ndarray]:
    return {task: task(own) for task in TASKS}


def check_load(kind: str, at: int, error: type[BaseException], after: bool, device: Device | None) -> bool:
    """Whether a load that fails there gave back all; False: it has fewer calls."""
    opened, before = [], +device.allocated if device else Counter()
    original = Device.open
    with pytest.MonkeyPatch.context() as patch, failing(kind, at, error, after) as state:
        patch.setattr(Device, "open", lambda wanted: opened.append(original(wanted)) or opened[-1])
        try:
            load(device).close()
        except error:
            failed = True
            assert +(device or opened[0]).allocated == before, f"{kind} {at}: while the traceback is alive"
        else:
            failed = False
    assert failed == (0 < at <= state.count), f"{kind} {at}: swallowed"
    assert all(one.closed for one in opened) and len(opened) == (device is None)
    assert +(device or opened[0]).allocated == before
    return failed


def check_right_load(device: Device | None, want: np.ndarray) -> None:
    with load(device) as model:
        assert np.array_equal(prefill(model), want)


def count_of(kind: str, action: Callable[[], object]) -> int:
    with failing(kind, 0, OutOfMemoryError, False) as state:
        action()
    return state.count


@pytest.mark.parametrize("where", ["own", "shared"])
@pytest.mark.parametrize("kind", CALLS)
def test_a_load_that_fails(kind, where, shared, expected):
    device = shared.device if where == "shared" else None
    most = count_of(kind, lambda: load(device).close())
    assert most > 2
    assert check_load(kind, most * 2 // 3, KeyboardInterrupt, True, device)
    check_right_load(device, expected[prefill])
    assert np.array_equal(prefill(shared), expected[prefill]), "the model that shares its device is untouched"


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", ["own", "shared"])
@pytest.mark.parametrize("kind", CALLS)
def test_a_load_that_fails_anywhere(kind, where, shared, expected):
    device = shared.device if where == "shared" else None
    for at, (error, after) in enumerate(itertools.cycle(ERRORS), 1):
        if not check_load(kind, at, error, after, device):
            break
        check_right_load(device, expected[prefill])
    assert at > 3


def check_task(task: Callable, kind: str, at: int, error: type[BaseException], after: bool, model: Model, want) -> bool:
    before = forget_and_account(model)
    with failing(kind, at, error, after):
        try:
            task(model)
        except error:
            failed = True
        else:
            failed = False
    assert np.array_equal(task(model), want), f"{kind} {at}: a right answer afterwards"
    assert forget_and_account(model) == before, f"{kind} {at}"
    return failed


def forget_and_account(model: Model) -> tuple[Counter, list[int]]:
    """(bytes by kind, free pages), without what a model keeps on purpose once it was needed."""
    runner, model._drafter = model.runner, None
    runner._logits_program = None
    if runner._all_logits is not None:
        runner._all_logits.free()
        runner._all_logits = None
    if split := runner.companions.pop("split", None):
        split.close()
    return +model.device.allocated, sorted(runner.pool.free_pages)


@pytest.mark.parametrize(("kind", "task"), CASES)
def test_a_call_that_fails(kind, task, own, expected):
    most = count_of(kind, lambda: task(own))
    assert most
    for at, (error, after) in zip(sorted({1, (most + 1) // 2, most}), itertools.cycle(ERRORS), strict=False):
        assert check_task(task, kind, at, error, after, own, expected[task])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "task"), CASES)
@pytest.mark.parametrize("where", ["own", "shared"])
def test_a_call_that_fails_anywhere(kind, task, where, own, shared, expected):
    before = +shared.device.allocated
    model = load(shared.device) if where == "shared" else own
    try:
        for at, (error, after) in zip(
            range(1, 1 + count_of(kind, lambda: task(model))), itertools.cycle(ERRORS), strict=False
        ):
            check_task(task, kind, at, error, after, model, expected[task])
    finally:
        if model is not own:
            model.close()
    assert +shared.device.allocated == before


class InterruptedAt:
    """Inside, KeyboardInterrupt comes before the at-th line of the package, as Ctrl-C may. lines: those so far."""

    def __init__(self, at: int) -> None:
        self._at, self.lines = at, 0

    def __enter__(self) -> InterruptedAt:
        # Of one that comes in a finaliser pytest would keep the traceback, and with it all that the task has made.
        self._hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        sys.unraisablehook = self._hook

    def _enter(self, frame: FrameType, event: str, argument: object) -> Callable | None:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Callable:
        self.lines += event == "line"
        if self.lines == self._at:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self._line


def leave_turn(model: Model) -> None:
    """The tracer also raises between the end of a with block and its __exit__, where Python looks for no signal: what
    no interrupt leaves behind, and other threads would be refused for.
    """
    while model.runner.turn._is_owned():
        model.runner.turn.release()


def check_interrupts(task: Callable, places: int, model: Model, want: np.ndarray) -> None:
    """At so many lines, evenly spread over those that the task runs."""
    with InterruptedAt(0) as counting:
        task(model)
    assert counting.lines > 100
    before = forget_and_account(model)
    for at in np.linspace(1, counting.lines, places + 2, dtype=int)[1:-1].tolist():
        try:
            with InterruptedAt(at):
                task(model)
        except KeyboardInterrupt:
            pass  # in a finaliser, Python goes on
        leave_turn(model)
        assert np.array_equal(task(model), want), f"line {at}: a right answer afterwards"
        assert forget_and_account(model) == before, f"line {at}"


@pytest.mark.parametrize("task", TASKS)
def test_an_interrupt_between_any_two_lines(task, own, expected):
    check_interrupts(task, 3, own, expected[task])


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", TASKS)
def test_interrupts_between_many_lines(task, own, expected):
    check_interrupts(task, 200, own, expected[task])


def test_no_room_for_a_draft_on_a_shared_device(shared):
    before = +shared.device.allocated
    with pytest.raises(OutOfMemoryError, match=r"^context of 100000000 tokens: .* MiB in one buffer"):
        vkprefill.load(model_path(FILE), shared.device, max_context=10**8)
    assert +shared.device.allocated == before


def test_a_model_that_is_closed_says_so_on_a_shared_device(shared):
    model = load(shared.device)
    cache = model.new_cache()
    model.extend(PROMPT, cache)
    model.close()
    model.close()
    for use in (lambda: model.prefill(PROMPT), lambda: model.decode(1, cache), cache.snapshot):
        with pytest.raises(vkprefill.DeviceError, match="was freed"):
            use()
