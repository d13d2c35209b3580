"""A model with half as many key heads as value heads in its delta-net layers, and a recording of all of its points."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is fetched
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest  # noqa: E402

import vkprefill  # noqa: E402
from tests.reference.fixtures import model_path  # noqa: E402

IDS = [5, 17, 2, 99, 31, 8, 64, 300, 12, 7, 41]


@pytest.fixture(scope="session")
def model():
    with vkprefill.load(model_path("tiny-c-q4km"), kv_type="f32", max_context=256) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def recorded(model):
    return model.record(IDS, list(model.points), tokens="all")


@pytest.fixture(scope="session")
def tokens(model) -> list[str]:
    return [model.tokenizer.token_text(token) for token in IDS]
