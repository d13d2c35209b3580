"""The errors a caller may see. Each message is one line: the thing, what was found, what was wanted.

VkPrefillError
 +-- GGUFError               the file is damaged or is not a GGUF file
 +-- UnsupportedModelError   a sound file that this engine cannot run
 +-- DeviceError             no usable Vulkan device, a lost device, missing or stale shaders
 |    +-- OutOfMemoryError   the memory bill does not fit
 +-- ShapeError              arrays or arguments of the wrong shape
 +-- HubError                a model that cannot be fetched: its name, the right to it, the network, the disk
 +-- RequestError            a request that cannot be served: settings, prompts, templates
      +-- ContextLengthError  a prompt longer than the context
"""


class VkPrefillError(Exception):
    """Base of every error raised on purpose by this package."""


class GGUFError(VkPrefillError):
    pass


class UnsupportedModelError(VkPrefillError):
    pass


class DeviceError(VkPrefillError):
    pass


class OutOfMemoryError(DeviceError):
    pass


class ShapeError(VkPrefillError):
    pass


class HubError(VkPrefillError):
    pass


class RequestError(VkPrefillError):
    pass


class ContextLengthError(RequestError):
    @classmethod
    def of_prompt(cls, num_tokens: int | str, max_context: int) -> "ContextLengthError":
        """For a prompt, or what is kept of it, that leaves no room for a token of the answer. num_tokens: how many, or
        words for it."""
        return cls(
            f"context: the prompt needs {num_tokens} tokens, the context holds {max_context}, the answer included"
        )
