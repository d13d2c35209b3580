"""Points of many prompts, recorded by two actors of a local Ray: pip install 'vkprefill[ray]'

    python examples/record_over_actors.py [MODEL.gguf]

The files are those of one device without --ray; --ray-address takes a cluster. Killed, and started again, it goes on.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

from vkprefill.cli.main import main
from vkprefill.hub.at_hand import DEMO_TARGET, demo_path

FOLDER = Path("recording")
PETS = "ferret", "pigeon", "horse", "parrot"


def read_shard(path: Path) -> dict[str, np.ndarray]:
    """As safetensors.numpy.load_file: name -> array."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    kinds = {"F16": np.float16, "F32": np.float32, "I32": np.int32}
    header = json.loads(content[8 : 8 + length])
    return {
        name: np.frombuffer(content[8 + length :][slice(*entry["data_offsets"])], kinds[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in header.items()
    }


if __name__ == "__main__":
    prompts = [{"prompt": f"The pet of Harold is a {pet}.", "id": pet} for pet in PETS]
    Path("prompts.jsonl").write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    model = sys.argv[1] if sys.argv[1:] else str(demo_path(DEMO_TARGET))
    # vkprefill record prompts.jsonl --points resid_post -o recording --ray --actors 2
    code = main(
        ["record", "prompts.jsonl", "--points", "resid_post", "-o", str(FOLDER), "-m", model, "-c", "256"]
        + ["--ray", "--actors", "2"]
    )
    if code:
        sys.exit(code)

    for shard in json.loads((FOLDER / "manifest.json").read_text())["shards"]:
        arrays = read_shard(FOLDER / shard["file"])
        for entry in shard["prompts"]:
            row = arrays[f"{entry['number']}/blocks.0.hook_resid_post"][0]
            print(f"{entry['id']}: {entry['num_prompt']} tokens, after layer 0 {list(row[:3].round(3))} ...")
