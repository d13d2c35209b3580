"""vkprefill record --ray: the files of one run here, also where actors die, a prompt is refused, or it was cut off."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.conftest import COMMAND, ROOT
from tests.reference.fixtures import model_path
from vkprefill.cli.main import main
from vkprefill.distributed.recording import RecordWork
from vkprefill.recording.shards import MANIFEST

MODEL = str(model_path("tiny-c-q4km"))
POINTS = "blocks.*.hook_resid_post,pattern,logits"
ARGUMENTS = ["-m", MODEL, "-c", "256", "-ctk", "f32", "--points", POINTS, "--tokens", "all", "--shard-mib", "1"]
NUM_PROMPTS = 9


@dataclass(frozen=True)
class DeadlyOnce(RecordWork):
    """Of the fourth prompt its actor dies, the first time."""

    @contextmanager
    def open(self, device):
        with super().open(device) as record:

            def do(prompt):
                mark = Path(os.environ["RECORD_TEST_MARK"])
                if prompt.id == "p3" and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return record(prompt)

            yield do


@dataclass(frozen=True)
class Deadly(RecordWork):
    """Of the fourth prompt its actor dies each time."""

    @contextmanager
    def open(self, device):
        with super().open(device) as record:
            yield lambda prompt: os.kill(os.getpid(), signal.SIGKILL) if prompt.id == "p3" else record(prompt)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lengths = [200 - 10 * i for i in range(NUM_PROMPTS - 1)]
    lines = [{"token_ids": [1 + (7 * i + t) % 90 for t in range(n)], "id": f"p{i}"} for i, n in enumerate(lengths)]
    path.write_text("\n".join(map(json.dumps, [*lines, {"prompt": "some text"}])))
    return path


@pytest.fixture(scope="module")
def whole(prompts, tmp_path_factory) -> Path:
    """Recorded without Ray."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    assert main(["record", str(prompts), *ARGUMENTS, "-o", str(folder)]) == 0
    assert len(manifest(folder)["shards"]) > 2
    return folder


def manifest(folder: Path) -> dict:
    return json.loads((folder / MANIFEST).read_text())


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(".tmp")}


def test_every_record_is_there_once_though_an_actor_dies(prompts, whole, tmp_path, monkeypatch, capfd):
    mark, folder = tmp_path / "died", tmp_path / "out"
    monkeypatch.setenv("RECORD_TEST_MARK", str(mark))
    monkeypatch.setattr("vkprefill.cli.record.RecordWork", DeadlyOnce)
    assert main(["record", str(prompts), *ARGUMENTS, "-o", str(folder), "--ray", "--actors", "2"]) == 0
    assert mark.exists() and files(folder) == files(whole)
    out, err = capfd.readouterr()
    assert out == "" and "9 prompts, " in err


def test_a_prompt_that_actors_die_of_is_left_out(prompts, whole, tmp_path, monkeypatch, capfd):
    """Those after it are there; a second start has no more to do."""
    folder = tmp_path / "out"
    command = ["record", str(prompts), *ARGUMENTS, "-o", str(folder), "--ray"]
    monkeypatch.setattr("vkprefill.cli.record.RecordWork", Deadly)
    assert main(command) == 1
    assert "prompt 'p3' is not there: Ray: 3 actors died of it" in capfd.readouterr().err
    entries = [entry for shard in manifest(folder)["shards"] for entry in shard["prompts"]]
    assert [entry["number"] for entry in entries] == [*range(NUM_PROMPTS)]
    assert [entry["id"] for entry in entries if "error" in entry] == ["p3"]
    assert main(command) == 1 and "9 of 9 prompts are there" in capfd.readouterr().err


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Of a short name: the system has a bound for the paths of Ray's sockets."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def test_ctrl_c_and_a_second_start(prompts, whole, tmp_path, temporary):
    """Interrupted after a shard: no process is left, nor any temporary file; what is there is gone on with, here
    without Ray.
    """
    folder = tmp_path / "out"
    command = [*COMMAND, "record", str(prompts), *ARGUMENTS, "-o", str(folder)]
    process = subprocess.Popen(
        [*command, "--ray"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while not (folder / MANIFEST).exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130 and b"Traceback" not in err, err.decode()
    with suppress(ProcessLookupError):
        while True:  # until the last of them is gone, which others wait for
            os.killpg(process.pid, 0)
            time.sleep(0.05)
    assert [*temporary.iterdir()] == []
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=600).returncode == 0
    assert files(folder) == files(whole)


def test_errors_of_actors_are_one_line(prompts, tmp_path, capfd):
    arguments = [str(prompts), *ARGUMENTS, "-o", str(tmp_path / "out")]
    assert main(["record", *arguments, "--ray", "--devices", "nothing such"]) == 1
    assert "Error: device 'nothing such': no devices have this in their name" in capfd.readouterr().err
    assert main(["record", *arguments, "--ray-address", "127.0.0.1:1"]) == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith("Error: Ray: ")
