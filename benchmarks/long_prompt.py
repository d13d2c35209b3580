"""Score a long prompt in one window with the built-in draft: memory by kind, the longest submission, the time it takes.

python benchmarks/long_prompt.py [--tokens 16384] [-m DRAFT.gguf] [--json FILE]
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import vkprefill
from vkprefill.specprefill.scorer import Scorer
from vkprefill.vulkan.program import Program

BUILT_IN = Path(vkprefill.__file__).parent / "data" / "draft.gguf"
MIB = 2**20


def anonymous_bytes() -> int:
    """RssAnon of this process: the heap, and what a Vulkan driver for the CPU takes for device memory."""
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024


@contextmanager
def timed_submissions() -> Iterator[list[tuple[float, str]]]:
    """(seconds, program) of each submission inside."""
    times: list[tuple[float, str]] = []
    run = Program.run

    def timed(program: Program, between: Callable[[], None] | None = None) -> None:
        start = time.perf_counter()

        def note() -> None:
            nonlocal start
            times.append((time.perf_counter() - start, program.name))
            if between:
                between()
            start = time.perf_counter()

        run(program, note)

    Program.run = timed
    try:
        yield times
    finally:
        Program.run = run


def measure(path: Path, num_tokens: int) -> dict[str, object]:
    config = vkprefill.SpecPrefillConfig()
    with vkprefill.load(path, max_context=num_tokens + config.lookahead) as draft:
        ids = np.random.Generator(np.random.SFC64(1)).integers(0, draft.config.vocab_size, num_tokens).tolist()
        scorer = Scorer(draft)
        scorer.score(ids[-32:], config)  # pipelines are compiled here, not below
        rss_before, start = anonymous_bytes(), time.perf_counter()
        with timed_submissions() as times:
            found = scorer.score(ids, config)
        seconds, rss_after = time.perf_counter() - start, anonymous_bytes()
        assert found.cached_n == 0 and np.isfinite(found.values).all()
        longest, program = max(times)
        return {
            "device": draft.device.info.name,
            "draft": path.name,
            "prompt_tokens": num_tokens,
            "window": "one",
            "prefill_chunk": draft.prefill_chunk,
            "seconds": round(seconds, 2),
            "tokens_per_s": round(num_tokens / seconds, 1),
            "score_ms": round(found.score_ms, 1),
            "lookahead_ms": round(found.lookahead_ms, 1),
            "lookahead_steps": found.num_steps - 1,
            "submissions": len(times),
            "longest_submission_ms": round(longest * 1e3, 1),
            "longest_submission_of": program,
            "memory_mib": {kind: round(size / MIB, 2) for kind, size in sorted(draft.device.allocated.items()) if size},
            "rss_anon_before_mib": round(rss_before / MIB, 1),
            "rss_anon_after_mib": round(rss_after / MIB, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384, help="length of the prompt (default: 16384)")
    parser.add_argument("-m", "--model", type=Path, default=BUILT_IN, help="GGUF file (default: the built-in draft)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    figures = measure(arguments.model, arguments.tokens)
    for name, value in figures.items():
        print(f"{name}: {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
