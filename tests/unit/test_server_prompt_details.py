"""What `specprefill_details` adds to an answer."""

from pathlib import Path

import numpy as np
import pytest

import vkprefill

pytest.importorskip("starlette")

from vkprefill.server.api_error import ApiError  # noqa: E402
from vkprefill.server.engine.prompt_details import prompt_details, text_or_bytes  # noqa: E402
from vkprefill.server.protocol.prompts import PromptBuilder  # noqa: E402
from vkprefill.server.protocol.requests import Defaults, parse_chat  # noqa: E402

BUILT_IN = Path(vkprefill.__file__).parent / "data" / "target.gguf"
BODY = {"messages": [{"role": "user", "content": "Hello"}]}


def test_tokens_and_importance():
    tokenizer = PromptBuilder(BUILT_IN).tokenizer
    ids = tokenizer.encode("Which pet does Robert keep? \U0001f600")
    details = prompt_details(tokenizer, ids, np.linspace(0, 1 / 3, len(ids), dtype=np.float32))
    raw = b"".join(bytes(t) if isinstance(t, list) else t.encode() for t in details["tokens"])
    assert raw.decode() == "Which pet does Robert keep? \U0001f600" and len(details["tokens"]) == len(ids)
    assert details["importance"][0] == 0 and details["importance"][-1] == 0.333
    assert prompt_details(tokenizer, ids, None)["importance"] is None
    assert text_or_bytes(b"a") == "a" and text_or_bytes(b"\xf0\x9f") == [0xF0, 0x9F]


def test_request_field():
    assert parse_chat({**BODY, "specprefill_details": True}, Defaults()).specprefill.details
    assert not parse_chat(BODY, Defaults()).specprefill.details
    with pytest.raises(ApiError, match="specprefill_details: found 1, wanted true or false"):
        parse_chat({**BODY, "specprefill_details": 1}, Defaults())
