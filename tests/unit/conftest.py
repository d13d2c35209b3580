"""Fixtures that several modules of unit tests share."""

import pytest

pytest.register_assert_rewrite("tests.unit.scripted_server")

from tests.unit.scripted_server import engine, prompts, send, service  # noqa: E402, F401
from tests.unit.vocabularies import qwen, tiny  # noqa: E402, F401
