"""Model weights <-> the tensors of a GGUF file, and loading from either kind of file."""

from pathlib import Path

import gguf
import torch
from model import CONFIGS, Model
from torch import Tensor
from vocabulary import VOCAB_SIZE


def to_gguf(name: str, weight: Tensor) -> tuple[str, Tensor]:
    """One entry of the model's state under its name, and with the sign and scale, of a GGUF file."""
    name = name.replace(".mixer.", ".")
    if name.endswith(".A_log"):
        return name.replace("A_log", "ssm_a"), -weight.exp()
    if name.endswith(".ssm_dt"):
        return name + ".bias", weight
    return name if name.endswith(".weight") else name + ".weight", weight


def load_model(name: str, path: Path) -> Model:
    """A model of CONFIGS from a checkpoint (.pt) or from a GGUF file, dequantised."""
    model = Model(CONFIGS[name], VOCAB_SIZE)
    if path.suffix == ".gguf":
        tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
        state = {}
        for key, current in model.state_dict().items():
            weight = torch.tensor(tensors[to_gguf(key, current)[0]])
            state[key] = (-weight).log() if key.endswith(".A_log") else weight
    else:
        state = torch.load(path)
    model.load_state_dict(state)
    return model.eval()
