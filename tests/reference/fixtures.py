"""The tiny models in tests/data/models and llama.cpp's arrays for them; which limits a comparison uses."""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MODELS_DIR = Path(__file__).parent.parent / "data" / "models"
FIXTURES = ("tiny-a-f32", "tiny-b-f32", "tiny-c-q4km", "tiny-d-mixed")
MTP_FIXTURES = ("mtp-a-f32", "mtp-b-q4km", "mtp-c-mixed")  # with a multi-token-prediction block
MOE_FIXTURES = ("moe-a-f32", "moe-b-q4km", "moe-c-fused", "moe-d-256")  # mixtures of experts
MOE_MTP_FIXTURES = ("moe-b-q4km", "moe-c-fused")  # with both
PROMPT_OF_ROUNDS = 40  # first tokens of p65
CASES = ("p1", "p7", "p65", "p200", "gaps")

# The engine's limits, as parts of the RMS of llama.cpp's array unless said. A float32 kernel on the same input:
SAME_INPUT_ELEMENTWISE = 1e-5
SAME_INPUT_REDUCTION = 1e-4  # matmul, attention, delta rule
# inside or at the end of the model, where the rounding of earlier layers adds up:
INTERMEDIATE = 5e-4
LOGITS = 1e-3
SOFTMAX_ROWS = 1e-4  # absolute
# llama.cpp multiplies rotary angles step by step in float32, so its own q and k drift with the position (absolute):
ROTARY_BASE, ROTARY_PER_POSITION = 1e-5, 3e-7


@dataclass(frozen=True)
class Case:
    """One prompt, cut into `calls` (tokens per call), and llama.cpp's arrays (float32, last rows) by name: of the
    trunk, of the multi-token-prediction block over the same calls, of a chain of drafts after them.
    """

    model: str
    name: str
    token_ids: np.ndarray  # int32 [T]
    positions: np.ndarray  # int32 [T]
    calls: tuple[int, ...]
    arrays: dict[str, np.ndarray]
    block: dict[str, np.ndarray]
    chain: dict[str, np.ndarray]

    def parts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """token_ids and positions of each call."""
        start = 0
        for count in self.calls:
            yield self.token_ids[start : start + count], self.positions[start : start + count]
            start += count

    def select(self, name: str, outputs: list[dict[str, np.ndarray]]) -> np.ndarray:
        """Cut from the intermediates of all calls what the stored array `name` holds."""
        if name.startswith("call0/"):
            return selected(self.arrays[name], name.removeprefix("call0/"), outputs[:1])
        return selected(self.arrays[name], name, outputs)


def selected(stored: np.ndarray, name: str, outputs: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Cut from the intermediates `name` of all calls what was stored of them."""
    if name.startswith("kq_soft_max"):
        return outputs[-1][name][:, -stored.shape[1] :]
    if name.startswith(("new_state", "conv_state_last")):
        return outputs[-1][name]
    return np.concatenate([output[name] for output in outputs])[-len(stored) :]


@dataclass(frozen=True)
class Rounds:
    """Greedy decoding with drafts in llama.cpp. rounds int [R, 3 + num_drafts]: last token, its position, accepted
    drafts, the drafts; text: what was emitted; plain: the same one token at a time; arrays: see the models' README.
    """

    prompt: np.ndarray
    positions: np.ndarray
    rounds: np.ndarray
    text: np.ndarray
    plain: np.ndarray
    arrays: dict[str, np.ndarray]

    @property
    def num_drafts(self) -> int:
        return self.rounds.shape[1] - 3


def model_path(name: str) -> Path:
    return MODELS_DIR / f"{name}.gguf"


@functools.cache
def _archive(model: str) -> dict[str, np.ndarray]:
    with np.load(MODELS_DIR / f"{model}.npz") as archive:
        return {name: archive[name] for name in archive.files}


def load_case(model: str, case: str) -> Case:
    """case: one of CASES, or "mtp" for tiny-d-mixed. Logits of the quantised file itself (`direct`) are left out."""
    own = _group(model, case)
    token_ids, positions = own.pop("tokens"), own.pop("positions")
    calls = tuple(int(n) for n in own.pop("calls", [len(token_ids)]))
    groups = ("direct", "mtp/", "chain/")
    arrays = {k: v for k, v in own.items() if not k.startswith(groups)}
    return Case(
        model, case, token_ids, positions, calls, arrays, _group(model, f"{case}/mtp"), _group(model, f"{case}/chain")
    )


def load_rounds(model: str) -> Rounds:
    """Of one of MTP_FIXTURES."""
    own, prompt = _group(model, "spec"), load_case(model, "p65")
    count = PROMPT_OF_ROUNDS
    fields = {name: own.pop(name) for name in ("rounds", "text", "plain")}
    return Rounds(prompt.token_ids[:count], prompt.positions[:count], **fields, arrays=own)


def _group(model: str, name: str) -> dict[str, np.ndarray]:
    """The arrays NAME/..., without that."""
    return {k.removeprefix(name + "/"): v for k, v in _archive(model).items() if k.startswith(name + "/")}


def array_kind(name: str) -> str:
    """`call0/kq_soft_max-3` -> `kq_soft_max`."""
    return re.sub(r"-\d+$", "", name.rsplit("/", 1)[-1])


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def engine_limit(case: Case, name: str) -> float:
    """Largest absolute difference from the stored array that the engine's whole-model tests accept."""
    kind, stored = array_kind(name), case.arrays[name]
    if kind == "kq_soft_max":
        return SOFTMAX_ROWS
    if kind == "result_output":
        return LOGITS * rms(stored)
    limit = INTERMEDIATE * rms(stored)
    if kind in ("Qcur", "Kcur"):
        limit = max(limit, ROTARY_BASE + ROTARY_PER_POSITION * float(case.positions.max()))
    return limit
