"""The files of deploy/ fit the server: names of variables, and times and sizes that depend on its own."""

import re
from pathlib import Path

import pytest

from vkprefill.cli.commands import build_parser
from vkprefill.cli.variables import PREFIX, variable_of

pytest.importorskip("uvicorn")

from vkprefill.server.http.connections import Limits  # noqa: E402
from vkprefill.server.http.draining import LAST_WORDS_S  # noqa: E402
from vkprefill.server.http.wire import MAX_BODY_BYTES  # noqa: E402

FOLDER = Path(__file__).resolve().parents[2] / "deploy"
OPTIONS = {action.dest: action for action in build_parser(["serve"]).subcommands()["serve"]._actions}


def number(text: str, pattern: str) -> float:
    """What the only place that is like the pattern holds in its group."""
    (found,) = re.findall(pattern, text, re.M)
    return float(found)


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_variables_and_flags_are_known(path):
    text = path.read_text()
    assert set(re.findall(rf"{PREFIX}[A-Z_]+", text)) <= {variable_of(action) for action in OPTIONS.values()}
    flags = {flag for action in OPTIONS.values() for flag in action.option_strings}
    for line in re.findall(r"(?:vkprefill serve|servers run with|[Ll]onger than) (--.*)", text):
        assert set(re.findall(r"--[a-z][\w-]*", line)) <= flags, line


def test_the_unit_waits_for_answers_in_work():
    text = (FOLDER / "vkprefill@.service").read_text()
    assert number(text, r"^TimeoutStopSec=(\d+)$") > OPTIONS["drain_timeout"].default + 2 * LAST_WORDS_S


def test_the_proxy_knows_the_server():
    text = (FOLDER / "nginx.conf").read_text()
    assert number(text, r"proxy_read_timeout (\d+)s;") > OPTIONS["timeout"].default
    assert number(text, r"^ *keepalive_timeout (\d+)s;") < Limits(1).idle_s, "or it sends to what is being closed"
    assert number(text, r"client_max_body_size (\d+)m;") * 2**20 == MAX_BODY_BYTES
    assert number(text, r"larger than (\d+) bytes") == MAX_BODY_BYTES
