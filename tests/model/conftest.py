"""Models that the tests of the whole engine share, each on a device of its own."""

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import vkprefill
from tests.model.draft_scripts import SAMPLINGS, plain
from tests.model.sparse_requests import SPARSE
from tests.model.turns_script import serve  # noqa: F401
from tests.reference import fixtures
from vkprefill import SpecPrefill
from vkprefill.engine.model import Model
from vkprefill.vulkan.probe import choose

pytest.register_assert_rewrite("tests.model.scoring")

from tests.model.scoring import eight_layers, scorer_of  # noqa: E402, F401

BUILT_IN = Path(vkprefill.__file__).parent / "data" / "target.gguf"


@contextmanager
def loader() -> Iterator[Callable[..., Model]]:
    """load(name, **options of load): a fixture model or "built-in", the same one for the same arguments; closed at the
    end.
    """
    try:
        choose(None)
    except vkprefill.DeviceError as error:
        pytest.skip(f"no Vulkan device: {error}")
    opened: list[Model] = []

    @functools.cache
    def load(name: str, **options: object) -> Model:
        path = BUILT_IN if name == "built-in" else fixtures.model_path(name)
        options = {"max_context": 512, **options}
        opened.append(vkprefill.load(path, **options))
        return opened[-1]

    yield load
    for model in opened:
        model.close()


@pytest.fixture(scope="session")
def load_for_all() -> Iterator[Callable[..., Model]]:
    """Of the few models that most files use."""
    with loader() as load:
        yield load


@pytest.fixture(scope="module")
def load_model() -> Iterator[Callable[..., Model]]:
    """Of those that go when a file's tests are over: with all of a session's the process would hold gigabytes."""
    with loader() as load:
        yield load


@pytest.fixture(scope="module")
def draft() -> Iterator[Model]:
    """The built-in one."""
    with vkprefill.load(BUILT_IN.with_name("draft.gguf"), max_context=4096) as model:
        yield model


@pytest.fixture(scope="session")
def tiny(load_for_all) -> Model:
    """Attention and delta net, several heads of each kind, float32 cache."""
    model = load_for_all("tiny-c-q4km", kv_type="f32", max_context=1536)
    model.logits([1])  # takes memory of its own, once
    return model


@pytest.fixture(scope="session")
def answers(tiny) -> Callable[[Sequence[int], str], list[int]]:
    """The plain answers to a prompt, made once."""
    known: dict[tuple[tuple[int, ...], str], list[int]] = {}

    def of(prompt: Sequence[int], sampling: str) -> list[int]:
        key = tuple(prompt), sampling
        if key not in known:
            known[key] = plain(tiny, prompt, SAMPLINGS[sampling])
        return known[key]

    return of


@pytest.fixture(scope="session")
def built_in(load_for_all) -> Model:
    return load_for_all("built-in", max_context=4096)


@pytest.fixture
def prompt() -> list[int]:
    """Random tokens; cut off what is too long."""
    return np.random.Generator(np.random.SFC64(5)).integers(0, 256, 300).tolist()


@pytest.fixture(scope="module")
def tiny_draft(load_model):
    return load_model("tiny-a-f32", kv_type="f32")


@pytest.fixture
def pair(tiny, tiny_draft):
    """Random models; what it took is given back."""
    tiny_draft.logits([1])
    gc.collect()  # what the tracebacks of earlier tests hold
    before = [(m.device.allocated.total(), len(m.runner.pool.free_pages)) for m in (tiny, tiny_draft)]
    made = SpecPrefill(tiny, tiny_draft, SPARSE)
    yield made
    made.close()
    assert [(m.device.allocated.total(), len(m.runner.pool.free_pages)) for m in (tiny, tiny_draft)] == before
