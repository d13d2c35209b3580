"""The options of `vkprefill serve` -> what the server is started with."""

import pytest

from vkprefill import SpecDecodeConfig
from vkprefill.cli.main import main

pytest.importorskip("uvicorn")

from vkprefill.server.http.serve import ServerOptions  # noqa: E402


@pytest.fixture
def served(monkeypatch):
    """served(*arguments) -> the server's options; or the exit code where it is not started."""

    def run(*arguments: str) -> ServerOptions | int:
        found: list[ServerOptions] = []
        monkeypatch.setattr("vkprefill.server.http.serve.serve", lambda options, notice: found.append(options) or 0)
        code = main(["serve", *arguments])
        return found[0] if found else code

    return run


@pytest.mark.parametrize(
    ("arguments", "most", "usual"),
    [((), None, 4096), (("-n", "7"), 7, None), (("-n", "-1"), None, None), (("--n-predict", "9999"), 9999, None)],
)
def test_tokens_of_an_answer(served, arguments, most, usual):
    defaults = served(*arguments).defaults
    assert (defaults.max_tokens, defaults.answer_tokens) == (most, usual)


def test_drafts(served, capsys):
    assert served().engine.decode == served().defaults.decode == SpecDecodeConfig()
    flags = ("--spec-type", "ngram", "--spec-draft-n-max", "5", "--spec-draft-n-min", "2", "--spec-draft-p-min", "0.3")
    found = served(*flags, "--no-spec-draft-adaptive")
    wanted = SpecDecodeConfig("ngram", n_max=5, n_min=2, p_min=0.3, adaptive=False)
    assert found.engine.decode == found.defaults.decode == wanted
    assert served("--spec-draft-n-max", "9") == 1
    assert "Error: --spec-draft-n-max: found 9, wanted a whole number from 1 to 7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("off", "why"), [(("--no-specprefill",), "is off"), (("-m", "vkprefill/data/target.gguf"), "has no draft model")]
)
def test_settings_where_speculative_prefill_is_off(served, capsys, off, why):
    """They are under those of requests that ask for it themselves, and that is said."""
    defaults = served(*off, "--specprefill-check", "--specprefill-keep-ratio", "0.2").defaults
    assert defaults.spec is None and not defaults.has_draft
    assert (defaults.own_spec.check, defaults.own_spec.keep_ratio, defaults.own_spec.scorer) == ("on", 0.2, "auto")
    told = capsys.readouterr().err
    assert f"-check: for requests alone that ask by kept_ranges or scorer self; speculative prefill {why}" in told
    served(*off)
    assert "for requests alone" not in capsys.readouterr().err


def test_who_may_use_it(served, monkeypatch):
    found = served("--allowed-host", "a", "--allowed-host", "b", "--cors-origin", "http://c", "--cors-origin", "*")
    assert (found.host, found.allowed_hosts, found.cors_origins) == ("127.0.0.1", ["a", "b"], ["http://c", "*"])
    assert found.api_key is None
    monkeypatch.setenv("VKPREFILL_API_KEY", "of the environment")
    assert served().api_key == "of the environment" and served("--api-key", "given").api_key == "given"
    assert served("--api-key", "").api_key == "", "so that it is refused"
    assert served("--api-key-file", "keys").api_key_file == "keys"


def test_times(served, capsys):
    found = served("--timeout", "1", "--body-timeout", "2", "--engine-timeout", "3", "--max-queue", "4")
    assert (found.timeout_s, found.body_timeout_s, found.engine_timeout_s, found.max_waiting) == (1, 2, 3, 4)
    assert served().engine_timeout_s == 600
    assert (served().drain_timeout_s, served("--drain-timeout", "0").drain_timeout_s) == (30, 0)
    assert served("--engine-timeout", "-1") == 1
    assert "--engine-timeout: found -1.0, wanted at least 0" in capsys.readouterr().err


def test_log(served):
    for flags, form, level in (((), "text", 30), (("--log-format", "json"), "json", 30), (("-v",), "text", 20)):
        assert (served(*flags).engine.log_format, served(*flags).engine.log_level) == (form, level)
