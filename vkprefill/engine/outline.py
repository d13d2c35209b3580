"""What a model's file says, for what needs no device: which tokens a text has, which points there are."""

from __future__ import annotations

from vkprefill.engine.microscope.names import point_shapes
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import GGUFFile
from vkprefill.gguf.tensors import check_tensors
from vkprefill.text.chat_template import ChatTemplate
from vkprefill.text.tokenizer import Tokenizer


class Outline:
    """path, metadata, config, tokenizer, chat_template (None without one in the file). Raises GGUFError,
    UnsupportedModelError.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.path = file.path
        self.metadata = file.metadata
        self.config = ModelConfig.from_gguf(file)
        check_tensors(file, self.config)
        self.tokenizer = Tokenizer.from_metadata(file.metadata, self.config.vocab_size)
        self.chat_template = ChatTemplate.from_metadata(file.metadata, self.tokenizer)

    @property
    def points(self) -> dict[str, tuple[int, ...]]:
        """Names for `record` -> shape of a token's row; -1: the keys."""
        return point_shapes(self.config)
