"""Thousands of damaged copies of a tiny model: each is either read or refused with one short line.

The copies are opened in a child process whose memory is limited, so that a length believed too early shows as a
MemoryError instead of eating the machine.
"""

import json
import random
import re
import resource
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.make_model import make_config, make_model
from vkprefill.errors import VkPrefillError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.gguf.tensors import check_finite, check_tensors, tensor_specs

ROOT = Path(__file__).resolve().parents[2]
NUM_MUTANTS = 5000
EXTRA_MEMORY_BYTES = 128 << 20  # above what the child uses before the first file
MAX_SECONDS_PER_FILE = 1.0  # of CPU time; a sound file takes 2 ms
MAX_MESSAGE = 300
INTERESTING = (
    0,
    1,
    2,
    3,
    5,
    8,
    9,
    12,
    13,
    31,
    32,
    255,
    1 << 16,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    1 << 63,
    (1 << 64) - 1,
)


def test_mutants_and_truncations(tmp_path):
    config = make_config(
        vocab_size=270,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_nextn_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        full_attention_interval=2,
    )
    path = make_model(tmp_path / "model.gguf", config, mix="q4_0")
    child = subprocess.run(
        [sys.executable, "-m", "tests.unit.test_gguf_fuzz", path, str(NUM_MUTANTS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    result = json.loads(child.stdout)
    assert result["failures"] == []
    assert result["slowest_s"] < MAX_SECONDS_PER_FILE
    assert result["truncations_read"] == 0
    assert result["mutants_read"] > NUM_MUTANTS // 50  # not everything is refused ...
    assert result["mutants_refused"] > NUM_MUTANTS // 2
    assert len(result["messages"]) > 30, result["messages"]  # ... nor for the same reason


def mutants(sound: bytes, header_bytes: int, count: int) -> Iterator[bytes]:
    """Damaged copies. Half of the damage is next to a name, where counts, types and lengths are."""
    rng = random.Random(20)
    names = [m.start() for m in re.finditer(rb"qwen35\.|general\.|tokenizer\.|split\.|blk\.|output|token_embd", sound)]
    names = [position for position in names if position < header_bytes]
    for _ in range(count):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            near_name = rng.choice(names) + rng.randrange(-12, 70)
            position = min(max(rng.choice((near_name, rng.randrange(header_bytes))), 0), header_bytes - 8)
            kind = rng.randrange(7)
            if kind == 0:
                data[position] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[position] = rng.randrange(256)
            elif kind == 2:
                data[position : position + 4] = struct.pack("<I", rng.choice(INTERESTING) & 0xFFFFFFFF)
            elif kind == 3:
                data[position : position + 8] = struct.pack("<Q", rng.choice(INTERESTING))
            elif kind == 4:
                del data[position : position + rng.choice((1, 4, 8, 32))]
            elif kind == 5:
                data[position:position] = rng.randbytes(rng.choice((1, 4, 8, 32)))
            else:
                source = rng.randrange(header_bytes)
                length = rng.choice((4, 8, 16, 64))
                data[position : position + length] = data[source : source + length]
        yield bytes(data)


def truncations(sound: bytes, header_bytes: int) -> Iterator[bytes]:
    """Every length up to the end of the header, then some into the data."""
    for length in [*range(header_bytes), *range(header_bytes, len(sound), 97), len(sound) - 1]:
        yield sound[:length]


def load(path: Path) -> None:
    """What happens to a file before anything is uploaded."""
    file = open_gguf(path)
    config = ModelConfig.from_gguf(file)
    check_tensors(file, config)
    for spec in tensor_specs(config):
        check_finite(file, spec.name)


def child_main(path: Path, count: int) -> None:
    """Open all damaged copies and print the outcomes as JSON."""
    sound = path.read_bytes()
    load(path)
    header_bytes = min(info.offset for info in open_gguf(path).tensors.values())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_MEMORY_BYTES, resource.RLIM_INFINITY))

    slowest = 0.0
    failures: list[str] = []
    messages: Counter[str] = Counter()

    def outcome(data: bytes, what: str) -> bool:
        """Whether the copy was read."""
        nonlocal slowest
        path.write_bytes(data)
        start = time.process_time()
        try:
            load(path)
            return True
        except VkPrefillError as error:
            text = str(error)
            if not text.isprintable() or len(text) >= MAX_MESSAGE:
                failures.append(f"{what}: message {text!r}")
            messages[re.sub(r"[\d\W_]+", " ", text.partition("model.gguf: ")[2].partition(": ")[2])] += 1
        except Exception as error:  # the one thing this test looks for
            failures.append(f"{what}: {type(error).__name__}: {error}")
        finally:
            slowest = max(slowest, time.process_time() - start)
        return False

    truncations_read = sum(outcome(data, f"cut at {len(data)}") for data in truncations(sound, header_bytes))
    messages.clear()
    mutants_read = sum(outcome(data, f"mutant {i}") for i, data in enumerate(mutants(sound, header_bytes, count)))
    result = {
        "failures": failures[:20],
        "slowest_s": slowest,
        "truncations_read": truncations_read,
        "mutants_read": mutants_read,
        "mutants_refused": sum(messages.values()),
        "messages": messages,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    child_main(Path(sys.argv[1]), int(sys.argv[2]))
