"""Small bodies of requests, parsed as the server does."""

from vkprefill import SpecPrefillConfig
from vkprefill.server.protocol.requests import Defaults, parse_chat, parse_completion

HELLO = [{"role": "user", "content": "Hello"}]
BASE = SpecPrefillConfig(min_tokens=8192)
DEFAULTS = Defaults(spec=BASE)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**fields: object):
    return parse_chat({"messages": HELLO, **fields}, DEFAULTS)


def completion(**fields: object):
    return parse_completion({"prompt": "Hello", **fields}, DEFAULTS)
