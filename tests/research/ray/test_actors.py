"""Ray's actors find vkprefill, and a model in one gives what it gives here."""

import numpy as np
import pytest
import ray

import vkprefill
from tests.reference.fixtures import model_path

PATH = str(model_path("tiny-c-q4km"))
IDS = [1, 2, 3, 5, 8]


@pytest.fixture(scope="module")
def local_ray():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@ray.remote
class Holder:
    def __init__(self, path: str) -> None:
        self.model = vkprefill.load(path, max_context=64)

    def record(self, ids: list[int]) -> dict[str, np.ndarray]:
        return dict(self.model.record(ids, "resid_post").items())


def test_an_actor_records_the_same_bits(local_ray):
    found = ray.get(Holder.remote(PATH).record.remote(IDS))
    with vkprefill.load(PATH, max_context=64) as model:
        want = model.record(IDS, "resid_post")
    assert found.keys() == dict(want.items()).keys()
    assert all(np.array_equal(found[name], rows) for name, rows in want.items())
