"""What tools/test_780m.py runs on the emulated device: which test files, and how often in which way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.emulated.record import CHIP, ROOT
from tools.shader_sources import SHADERS, source_text

# Variables by which a job's process knows where to report, which waves to ask for, which tests are done.
REPORT, WAVES, DONE = "TEST_780M_REPORT", "TEST_780M_WAVES", "TEST_780M_DONE"

# It asks for orders itself, and a barrier in a workgroup of one wave of 64 is not missed.
ONCE = "tests/shaders/test_planted_mistakes.py"

SEEDS = (1, 2)  # of the orders that waves run in between barriers

# A file, or the start of a test's name -> why it does not run there; the rest of tests/shaders and tests/model does.
# Every entry must match something, or the run fails.
HOST = "work of the host's, with models that other files run here"
LEFT_OUT: dict[str, str] = {
    "tests/shaders/test_amd_compile.py": "compiles on a device without hardware, not on this one",
    "tests/shaders/test_executed.py": "starts the emulated device itself",
    "tests/shaders/test_subgroup_sizes.py": "other sizes can be asked for of Mesa's CPU driver only",
    "tests/model/test_benchmarks.py": HOST,
    "tests/model/test_checked.py": HOST,
    "tests/model/test_checked_session.py": HOST,
    "tests/model/test_delta_capture.py": HOST,
    "tests/model/test_drafts.py": HOST,
    "tests/model/test_drafts_public.py": HOST,
    "tests/model/test_drafts_stopped.py": HOST,
    "tests/model/test_errors.py": HOST,
    "tests/model/test_evaluation.py": HOST,
    "tests/model/test_examples.py": HOST,
    "tests/model/test_failures.py": HOST,
    "tests/model/test_generate.py": HOST,
    "tests/model/test_layer_map.py": HOST,
    "tests/model/test_host_work.py": HOST,
    "tests/model/test_memory.py": "where a GPU's memory is, is the driver's affair",
    "tests/model/test_mixture_uses.py": HOST,
    "tests/model/test_odd_widths.py": HOST,
    "tests/model/test_prompt_store.py": HOST,
    "tests/model/test_pruned_states.py": HOST,
    "tests/model/test_edits.py": HOST,
    "tests/model/test_edits_of_heads.py": HOST,
    "tests/model/test_record.py": HOST,
    "tests/model/test_record_prompts.py": HOST,
    "tests/model/test_steering.py": HOST,
    "tests/model/test_rows_before_rotary.py": HOST,
    "tests/model/test_rows_cut_off.py": HOST,
    "tests/model/test_score_depth.py": HOST,
    "tests/model/test_scorer.py": HOST,
    "tests/model/test_scorer_failures.py": HOST,
    "tests/model/test_scorer_memory.py": HOST,
    "tests/model/test_self_layers.py": HOST,
    "tests/model/test_self_scoring.py": HOST,
    "tests/model/test_server_slots.py": HOST,
    "tests/model/test_session.py": HOST,
    "tests/model/test_session_specprefill.py": HOST,
    "tests/model/test_shared_beginning.py": HOST,
    "tests/model/test_small_types.py": HOST,
    "tests/model/test_soak.py": HOST,
    "tests/model/test_specprefill_break_even.py": HOST,
    "tests/model/test_specprefill_failures.py": HOST,
    "tests/model/test_specprefill_memo.py": HOST,
    "tests/model/test_specprefill_protected.py": HOST,
    "tests/model/test_specprefill_requests.py": HOST,
    "tests/model/test_choices.py": HOST,
    "tests/model/test_random_schemas.py": HOST,
    "tests/model/test_turns.py": HOST,
    "tests/model/test_structured.py": HOST,
    "tests/model/test_threads.py": HOST,
    "tests/model/test_unused_settings.py": HOST,
    "tests/model/test_validation.py": "the layer that is installed is older than this driver",
}


@dataclass(frozen=True)
class Job:
    """A file of tests, run in a process of its own. waves: 32, or the driver's choice (64) where workgroups are larger;
    seed: of the waves' order, none for that of their numbers.
    """

    file: str
    waves: int = 32
    seed: int | None = None

    @property
    def name(self) -> str:
        order = "" if self.seed is None else f", order {self.seed}"
        return self.file + ("" if self.waves == 32 else f", waves of {self.waves}") + order


@cache
def shaders_with_barriers() -> frozenset[str]:
    return frozenset(
        shader.stem for shader in SHADERS.rglob("*.comp") if re.search(r"\bbarrier\(\)", source_text(shader))
    )


def has_barriers(test: Path) -> bool:
    """Whether a test file speaks of a kernel that has them."""
    text = test.read_text()
    return any(re.search(rf"\b{name}", text) for name in shaders_with_barriers())


def files(folder: str) -> Iterator[Path]:
    """Files of tests of which some run."""
    for path in sorted((ROOT / "tests" / folder).glob("test_*.py")):
        if str(path.relative_to(ROOT)) not in LEFT_OUT:
            yield path


def jobs(chip: str = CHIP) -> Iterator[Job]:
    """Of other chips than the 780M the kernels alone, once."""
    for path in files("shaders"):
        file = str(path.relative_to(ROOT))
        yield Job(file)
        if chip != CHIP or file == ONCE:
            continue
        yield Job(file, waves=64)
        if has_barriers(path):
            yield from (Job(file, seed=seed) for seed in SEEDS)
    if chip == CHIP:
        for path in (*files("model"), *files("emu780m/on_device")):
            yield Job(str(path.relative_to(ROOT)))
