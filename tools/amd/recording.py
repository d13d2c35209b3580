"""What the product dispatches on an AMD GPU, recorded without one.

The programs of whole models are recorded on a device that only takes notes, with the profile for AMD GPUs, for each
shape of model, weight format and type of cache.
"""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
from gguf import GGMLQuantizationType as TensorType

from tools.model.shapes import make_config
from vkprefill.benchmark.kernels import ceiling_programs
from vkprefill.engine import memory, outline, weights
from vkprefill.engine import model as model_module
from vkprefill.engine.capture import AttentionCapture
from vkprefill.engine.halves import SHORT_RUN
from vkprefill.engine.microscope.edits import Edit
from vkprefill.engine.model import Model
from vkprefill.engine.sizes import HEAD_ROWS, KV_TYPES, MAX_CANDIDATES, MAX_DRAFTS
from vkprefill.engine.step_input import Best
from vkprefill.gguf.mtp import MTPBlock
from vkprefill.gguf.quants import LAYOUT_OF, LAYOUTS
from vkprefill.gguf.tensors import mtp_specs
from vkprefill.specprefill.scorer import Scorer
from vkprefill.specprefill.self_scorer import SelfScorer
from vkprefill.specprefill.settings import NOPE, ROPE, SpecPrefillConfig
from vkprefill.vulkan.allocation import Allocation
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.companion import DOT2, Abilities
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.pipelines import Pipelines
from vkprefill.vulkan.probe import DeviceInfo, Heap
from vkprefill.vulkan.profiles import AMD
from vkprefill.vulkan.program import Program
from vkprefill.vulkan.shaders import load_shader, manifest, pack_words

SHAPES = ("0.8B", "4B", "35B-A3B")
CONTEXT = 20480
# Forms of the matmul beside that of the profile: kernel, tile, waves of 64.
MATMUL_FORMS = (
    ("matmul", {"LOCAL_SIZE": 32, "TM": 32, "TN": 2}, False),
    ("matmul", {"LOCAL_SIZE": 64, "TM": 32, "TN": 2}, True),
    ("matmul_hybrid", {"LOCAL_SIZE": 256, "TM": 64}, True),
    ("matmul_experts", {"LOCAL_SIZE": 32, "TM": 16, "TN": 2}, False),
)

FULL = {"precision": "full"}

Key = tuple[str, tuple[tuple[str, float], ...]]

HEAPS = Heap(16 << 30, True), Heap(8 << 30, False)


class _RecordingDevice(Device):
    """A device of the AMD profile that notes (shader, constants) of every dispatch in `seen` and runs nothing.

    features: those of Vulkan that it is opened with.
    """

    def __init__(self, seen: set[Key], features: Set[str]) -> None:
        self.seen = seen
        self.abilities = Abilities(frozenset(features))
        super().__init__(
            DeviceInfo(0, "recorder", "integrated", AMD, "", "1.3.0", HEAPS, 0, 1, 64, 32, 2**32 - 4, 1024, 65536, ())
        )

    def _connect(self) -> None:
        self._manager = self._context = self._native = None
        self.pipelines = Pipelines(None, None, None, None)

    def buffer(self, label, shape, dtype=np.float32, *, memory="device", kind="scratch", filled_by_cpu=False) -> Buffer:
        # Zeros take no memory of the system where they are not looked at.
        owner = Allocation(self)
        owner.tensor = SimpleNamespace(data=lambda: np.zeros(int(np.prod(shape)), np.uint32))
        return Buffer(
            label, tuple(int(n) for n in shape), np.dtype(dtype), memory, kind, owner, visible=memory == "host"
        )

    def require(self, num_bytes: int, what: str, *, host_bytes: int = 0) -> None:
        pass

    def give_back(self, owner: Allocation) -> None:
        pass

    def upload(self, buffer: Buffer, slices: Iterable[np.ndarray]) -> None:
        pass

    def download(self, buffer: Buffer) -> np.ndarray:
        return np.zeros(buffer.shape, buffer.dtype)

    def program(self, name: str, *, step: Buffer | None = None, num_rows: int = 1) -> Program:
        return _RecordingProgram(self, name, step, num_rows)


@dataclass(frozen=True)
class Dispatch:
    """A recorded dispatch; buffers in the order of the bindings."""

    shader: str
    constants: dict[str, float]
    push: dict[str, int]
    workgroups: tuple[int, int, int]
    buffers: tuple[Buffer, ...]


class _RecordingProgram(Program):
    num_submissions = 1

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.recorded: list[Dispatch] = []

    def dispatch(self, shader_name, buffers, workgroups, *, constants=None, push=None, work=0.0, label="") -> None:
        shader = load_shader(shader_name)
        pack_words(shader_name, "constants", shader.constants, constants or {})  # checks the names
        self.device.seen.add((shader_name, tuple((constants or {}).items())))
        self.recorded.append(Dispatch(shader_name, constants or {}, push or {}, workgroups, tuple(buffers)))

    def run(self, between=None) -> None:
        """The host's work between submissions alone, which may record programs of its own."""
        for number in sorted(self._calls):
            self._call(number)


def load_recording(
    shape: str,
    type_of: Callable[[str], TensorType],
    kv_type: str,
    seen: set[Key],
    *,
    precision: str = "full",
    features: Set[str] = frozenset(),
    with_block: bool = False,
    prefill_chunk: int | None = None,
) -> Model:
    """A model of this shape on the recording device, its matrices of the types that type_of gives their names.
    with_block: and with a multi-token-prediction block; prefill_chunk: other than what fits the device's memory.
    """
    file = SimpleNamespace(
        label=shape, path=Path(shape), metadata={}, info=lambda name: SimpleNamespace(name=name, type=type_of(name))
    )
    config = make_config(shape, num_nextn_layers=int(with_block))
    layer = config.num_hidden_layers
    block = MTPBlock(file, layer, tuple(mtp_specs(config, layer)[0])) if with_block else None
    replaced = {"open_gguf": lambda path: file, "find_block": lambda *_: block}
    described = {
        "ModelConfig": SimpleNamespace(from_gguf=lambda file: config),
        "check_tensors": lambda file, config: None,
        "Tokenizer": SimpleNamespace(from_metadata=lambda *_: SimpleNamespace(eog_token_ids=(), special_tokens={})),
    }
    opened = mock.patch.object(Device, "open", lambda wanted: _RecordingDevice(seen, features))
    untold = mock.patch.object(memory, "tell_of_detour")  # nothing runs
    with mock.patch.multiple(model_module, **replaced), mock.patch.multiple(outline, **described):
        with mock.patch.object(weights, "read_vector"), opened, untold:
            return model_module.load(
                shape, max_context=CONTEXT, kv_type=kv_type, precision=precision, prefill_chunk=prefill_chunk
            )


def record(shape: str, layout: str, kv_type: str, **how: object) -> set[Key]:
    """(shader, constants) of all that a model of this shape dispatches: prefill, decode, captures, logits, scores of a
    draft and of its own, points recorded and edited, and with a multi-token-prediction block drafts.

    how: precision, features and with_block, as load_recording takes them.
    """
    seen: set[Key] = set()
    weight_type = next(t for t, name in LAYOUT_OF.items() if name == layout)
    model = load_recording(shape, lambda name: weight_type, kv_type, seen, **how)
    cache = model.new_cache()
    model.prefill_candidates([1, 2], cache, Best(MAX_CANDIDATES))
    cache.snapshot().free()
    model.decode_candidates(3, cache, Best(MAX_CANDIDATES))
    capture = AttentionCapture(delta_layers=None)
    model.prefill([4, 5], cache=cache, capture=capture)
    model.decode(6, cache, capture=capture)
    model.logits([1, 2])
    if model.has_mtp:
        for head_rows in (HEAD_ROWS, 0):
            model.drafter(head_rows).draft(7, cache, MAX_DRAFTS, p_min=0.5)
    for rows in (2, 4, SHORT_RUN):
        model.runner.rows_program(rows)
    for options in ({}, {"tail_queries": 8}):  # with and without look-ahead
        Scorer(model).score(range(100), SpecPrefillConfig(**options))
    for rows in (NOPE, ROPE):
        cache.reset()
        SelfScorer(model).score(range(100), SpecPrefillConfig(scorer="self", rows=rows), cache)
    model.prefill_candidates([1, 99], cache, Best(MAX_CANDIDATES), positions=[1, 99])
    model.decode_candidates(3, cache, Best(MAX_CANDIDATES))
    ceiling_programs(model.device, model.runner.scratch.x, model.runner.scratch.h)
    residual = "blocks.0.hook_resid_post"
    edits = Edit(residual, add=1.0), Edit(residual, scale=2.0), Edit(residual, set=0.0)
    model.record([1, 2], [residual, "blocks.0.hook_mlp_out"], edits=edits)
    return seen


def cases(features: Set[str] = frozenset()) -> list[dict]:
    """Every pipeline of the product, then other forms of the matmul: shader, constants by name, models that use it.

    features: of Vulkan, those of ours that the compiler knows; shaders that need others are not there.
    wave64: to be compiled in waves of 64. A shader that no recorded program uses is there without models, and without
    constants: those it declares are taken. Shaders of other devices' profiles are not there.
    """
    users: dict[Key, set[str]] = {}
    precisions = [FULL, {"precision": "half"}] + [{"precision": "half", "features": DOT2}] * (features >= DOT2)
    for shape in SHAPES:
        ways = [(layout, KV_TYPES[0], how) for layout in LAYOUTS for how in precisions]
        for layout, kv_type, how in ways + [("q4_k", kv_type, FULL) for kv_type in KV_TYPES[1:]]:
            for key in record(shape, layout, kv_type, with_block=True, **how):
                users.setdefault(key, set()).add(shape)
    forms = {
        (f"{kernel}_{layout}", tuple(tile.items())): wave64
        for kernel, tile, wave64 in MATMUL_FORMS
        for layout in LAYOUTS
    }
    others = {name for name in manifest() if "_shuffle" in name or not load_shader(name).features <= features}
    for name in manifest().keys() - {name for name, _ in users} - {name for name, _ in forms} - others:
        users[name, ()] = set()
    return [
        {"shader": name, "constants": dict(constants), "models": sorted(users[name, constants]), "wave64": False}
        for name, constants in sorted(users, key=str)
    ] + [
        {"shader": name, "constants": dict(constants), "models": [], "wave64": wave64}
        for (name, constants), wave64 in forms.items()
    ]
