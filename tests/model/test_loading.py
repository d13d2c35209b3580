"""Weights on their way from the file to the device: in place or through uploads, and what an interrupt leaves."""

import gc
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

import vkprefill
from tests.model.conftest import BUILT_IN
from tests.model.draft_scripts import NGRAM
from tests.model.sparse_requests import GREEDY, SPARSE
from tests.reference.fixtures import FIXTURES, model_path
from tools.make_model import parts_of
from vkprefill import AttentionCapture, Session
from vkprefill.engine import weights
from vkprefill.engine.runner import SHORT_ROWS
from vkprefill.generation.options import AnswerOptions
from vkprefill.gguf.file import GGUFFile
from vkprefill.vulkan.device import Device


def matrices(loaded: weights.ModelWeights) -> list[weights.Matrix]:
    groups = [vars(group) for layer in loaded.layers for group in (layer.mixer, layer.mlp)]
    found = [value for group in groups for value in group.values() if isinstance(value, weights.Matrix)]
    return [loaded.token_embd, loaded.output, *found]


@pytest.mark.parametrize("name", FIXTURES)
def test_in_place_and_uploaded_weights_are_the_same(name, monkeypatch):
    """A CPU's memory is written in place, a GPU's through uploads."""
    with vkprefill.load(model_path(name), max_context=64) as model:
        before = [part.buffer.read() for matrix in matrices(model.runner._weights) for part in matrix.parts]
        in_place = model.runner._weights.pools[0].visible
        logits = model.prefill([1, 2, 3])
    original = Device.buffer
    monkeypatch.setattr(Device, "buffer", lambda *args, filled_by_cpu=False, **options: original(*args, **options))
    with vkprefill.load(model_path(name), max_context=64) as model:
        assert not model.runner._weights.pools[0].visible
        assert in_place == (model.device.info.type == "cpu")
        parts = [part for matrix in matrices(model.runner._weights) for part in matrix.parts]
        for part, words in zip(parts, before, strict=True):
            np.testing.assert_array_equal(part.buffer.read(), words)
        np.testing.assert_array_equal(model.prefill([1, 2, 3]), logits)


def test_a_split_model_is_the_whole_one(tmp_path):
    path = model_path("tiny-c-q4km")
    logits = []
    for given in (path, parts_of(path, tmp_path / "split", 3)[1]):
        with vkprefill.load(given, max_context=64) as model:
            logits.append(model.prefill([1, 2, 3]))
    np.testing.assert_array_equal(*logits)


def test_pages_of_the_file_are_released(monkeypatch):
    """Each row of a matrix once: what was read does not count to the process."""
    released: dict[str, int] = {}

    def release(self: GGUFFile, name: str, rows: slice) -> None:
        released[name] = released.get(name, 0) + rows.stop - rows.start
        original(self, name, rows)

    original = GGUFFile.release
    monkeypatch.setattr(GGUFFile, "release", release)
    with vkprefill.load(model_path("tiny-c-q4km"), max_context=64) as model:
        assert all(released[matrix.name] == matrix.rows for matrix in matrices(model.runner._weights))


def test_threads_have_ended_before_memory_goes_back(monkeypatch):
    """Ctrl-C while slices are packed, and again while their threads are waited for."""
    device = Device.open(None)
    try:
        packing, may_end, after = threading.Event(), threading.Event(), []

        def pack(*args):
            packing.set()
            may_end.wait(60)
            after.append(device.allocated["weights"])
            return original(*args)

        class Threads(weights.ThreadPoolExecutor):
            interrupts = 2

            def shutdown(self, *args, **options):
                if self.interrupts:
                    self.interrupts -= 1
                    may_end.set()
                    raise KeyboardInterrupt("again")
                super().shutdown(*args, **options)

        def interrupted(pool, work, items):
            pool.submit(work, next(iter(items)))
            packing.wait(60)
            raise KeyboardInterrupt

        original = weights._pack
        monkeypatch.setattr(weights, "_pack", pack)
        monkeypatch.setattr(weights, "_ahead", interrupted)
        monkeypatch.setattr(weights, "ThreadPoolExecutor", Threads)
        with pytest.raises(KeyboardInterrupt):
            vkprefill.load(model_path("tiny-c-q4km"), device, max_context=64)
        assert after == [after[0]] and after[0] > 0, "the weights' memory was still there"
        assert device.allocated["weights"] == 0
    finally:
        device.close()


def test_a_short_prompt_has_a_program_of_its_own(prompt):
    """With fewer workgroups of the same kernels: the same bits, and no pipeline more."""
    with vkprefill.load(model_path("tiny-c-q4km"), max_context=256, prefill_chunk=128) as model:
        run, pipelines = model.runner, len(model.device.pipelines)
        short = run.plain_program(SHORT_ROWS)
        assert run.plain_program(SHORT_ROWS + 1) is run.prefill_program
        assert (short is not run.prefill_program) == model.device.shares_pipelines
        found = [model.prefill(prompt[:count]) for count in (1, 15, SHORT_ROWS)]
        assert len(model.device.pipelines) - pipelines <= 2, "those that clear a cache"
        run.plain_program = lambda count: run.prefill_program
        for count, logits in zip((1, 15, SHORT_ROWS), found, strict=True):
            np.testing.assert_array_equal(model.prefill(prompt[:count]), logits)


@pytest.mark.parametrize("shares_device", [False, True])
def test_a_closed_model_goes_with_its_last_name(shares_device):
    """Nothing of what it was used for refers back to it, so that no pipeline waits for the collector."""
    gc.collect()
    gc.disable()
    try:
        with vkprefill.load(BUILT_IN, max_context=1024) as other:
            given = other.device if shares_device else None
            with vkprefill.load(BUILT_IN, device=given, max_context=1024) as model:
                session = Session(model, spec=replace(SPARSE, scorer="self"), decode=NGRAM, max_context=256)
                list(session.stream_ids([*range(1, 20)], AnswerOptions(4, GREEDY)))
                model.record([1, 2, 3], list(model.points))
                capture = AttentionCapture(delta_layers=None)
                model.prefill([1, 2, 3], capture=capture)
                session.close()
            left = weakref.ref(model.runner)
            del model, session, capture
            assert left() is None
    finally:
        gc.enable()
