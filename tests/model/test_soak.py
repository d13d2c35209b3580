"""A hundred requests in one process: never silently off, no memory that grows."""

from pathlib import Path

import numpy as np
import pytest

import vkprefill
from tests.model.conftest import BUILT_IN
from vkprefill import SpecPrefill, SpecPrefillConfig
from vkprefill.specprefill import guards

REQUESTS, WARM_UP, LENGTH = 100, 10, 150
GROWTH_LIMIT = (
    8 << 20
)  # bytes of RSS over the requests after the warm-up; a lost cache of the pair would be 2.4 MB each


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
def test_hundred_requests(capsys):
    sparse = {"select_mode": "chunk", "keep_ratio": 0.2, "protect_question": False}
    config = SpecPrefillConfig(break_even=False, lookahead=2, **sparse)
    rng = np.random.Generator(np.random.SFC64(8))
    with (
        vkprefill.load(BUILT_IN, max_context=512) as target,
        vkprefill.load(BUILT_IN.with_name("draft.gguf"), max_context=512) as draft,
    ):
        speculative = SpecPrefill(target, draft, config)
        allocated, resident = [], []
        for _ in range(REQUESTS):
            out = speculative.prefill(rng.integers(0, target.config.vocab_size, LENGTH).tolist())
            target.decode(int(out.logits.argmax()), out.cache)
            assert out.status == guards.ACTIVE, out.report.reason
            out.cache.close()
            allocated.append((target.device.allocated.total(), draft.device.allocated.total()))
            resident.append(resident_bytes())
        speculative.close()
    first, last = resident[WARM_UP], resident[-1]
    with capsys.disabled():
        print(
            f" RSS {first / 2**20:.1f} MiB after {WARM_UP} requests, {last / 2**20:.1f} MiB after {REQUESTS} ", end=""
        )
    assert len(set(allocated)) == 1, "device memory"
    assert last - first < GROWTH_LIMIT
