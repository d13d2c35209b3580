"""The scripts for bash, zsh and fish, in those shells."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from vkprefill.cli.commands import SUBCOMMANDS
from vkprefill.cli.main import main

# A typed line up to the cursor -> words that are offered, some of them, and one that is not.
CASES = [
    ("vkprefill ", ["generate", "serve", "models"], "--temp"),
    ("vkprefill ge", ["generate"], "serve"),
    ("vkprefill generate --te", ["--temp"], "--port"),
    ("vkprefill generate --specprefill-sel", ["--specprefill-select-mode"], "--specprefill-pool-size"),
    ("vkprefill serve --por", ["--port"], "--temp"),
    ("vkprefill generate --precision ", ["auto", "full", "half"], "--temp"),
    ("vkprefill generate --precision h", ["half"], "full"),
    ("vkprefill generate -m some", ["some-model.gguf"], "--temp"),
    ("vkprefill completion z", ["zsh"], "bash"),
]
BASH = """source "$1"; COMP_LINE=$2; COMP_POINT=${#2}; read -ra COMP_WORDS <<<"$2"
if [[ $2 == *' ' ]]; then COMP_WORDS+=(""); fi; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _vkprefill
if ((${#COMPREPLY[@]} == 0)); then compgen -f -- "${COMP_WORDS[COMP_CWORD]}"; fi; printf '%s\\n' "${COMPREPLY[@]}\""""
# A terminal of its own, in which Tab is pressed; its widget ends what it shows with a mark, since the shell shows
# nothing of a list while keys are waiting.
ZSH = """zmodload zsh/zpty; zpty z zsh -f -i
zpty -w z "PS1= PROMPT_EOL_MARK= ; unsetopt beep zle_bracketed_paste; autoload -U compinit; compinit -D -u"
zpty -w z "source $1; zstyle ':completion:*' list-colors ''; LISTMAX=10000; setopt list_ambiguous; COLUMNS=300"
zpty -w z "marked() { zle list-choices; zle -R; print -r done''mark }; zle -N marked; bindkey '^I' marked"
zpty -w z "zstyle ':completion:*' format ''; print -r ready''mark"
zpty -r -m z out '*readymark*'
zpty -w -n z "$2"$'\\t'; zpty -r -m z out '*donemark*'
print -r -- $out"""
FISH = "source $argv[1]; complete -C $argv[2] | cut -f 1"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COMMANDS = {
    "bash": ("bash", "-c", BASH, "bash"),
    "zsh": ("zsh", "-f", "-c", ZSH, "zsh"),
    "fish": ("fish", "-N", "-c", FISH),
}


@pytest.fixture(scope="module")
def offered(tmp_path_factory):
    """offered(shell, line) -> words."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "some-model.gguf").write_text("")

    def run(shell: str, script: Path, line: str) -> str:
        if shutil.which(shell) is None:
            pytest.skip(f"{shell} is not installed, a shell whose completion is tested")
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            [*COMMANDS[shell], str(script), line],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.stderr == ""
        return ESCAPE.sub("", done.stdout)

    return run


@pytest.fixture(params=COMMANDS)
def script(request, tmp_path, capsys) -> tuple[str, Path]:
    assert main(["completion", request.param]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    return request.param, path


def test_what_a_shell_offers(script, offered):
    shell, path = script
    for line, wanted, other in CASES:
        found = offered(shell, path, line).split()
        assert {*wanted} <= {*found} and other not in found, (line, found)


def test_every_subcommand(script, offered):
    shell, path = script
    found = offered(shell, path, "vkprefill ").split()
    assert {*SUBCOMMANDS} <= {*found}
