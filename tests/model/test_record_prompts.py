"""vkprefill record: shards that hold what Model.record gives, the same ones after a kill; refusals."""

import hashlib
import json
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest

from tests.reference.fixtures import model_path
from vkprefill.cli.main import main
from vkprefill.recording import run as recording
from vkprefill.recording.shards import MANIFEST

MODEL = str(model_path("tiny-c-q4km"))
LINES = [{"token_ids": list(range(1, 9 + 7 * i)), "id": f"p{i}"} for i in range(5)] + [{"prompt": "some text"}]
ARGUMENTS = ["-m", MODEL, "-c", "256", "-ctk", "f32", "--points", "blocks.*.hook_resid_post,pattern", "--tokens", "all"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in LINES))
    return str(path)


def arrays(folder) -> dict[str, np.ndarray]:
    """Read as the format of safetensors says."""
    found = {}
    for shard in json.loads((folder / MANIFEST).read_text())["shards"]:
        data = (folder / shard["file"]).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            start, end = entry["data_offsets"]
            kind = {"F32": np.float32, "F16": np.float16, "I32": np.int32}[entry["dtype"]]
            found[name] = np.frombuffer(data[8 + length + start : 8 + length + end], kind).reshape(entry["shape"])
    return found


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_shards_hold_what_record_gives(load_model, prompts, tmp_path, capsys, dtype):
    folder = tmp_path / "out"
    assert main(["record", prompts, *ARGUMENTS, "-o", str(folder), "--dtype", dtype]) == 0
    assert "6 prompts, 5 points" in capsys.readouterr().err
    model, found = load_model("tiny-c-q4km", kv_type="f32"), arrays(folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert [p["id"] for shard in manifest["shards"] for p in shard["prompts"]] == ["p0", "p1", "p2", "p3", "p4", "6"]
    assert manifest["dtype"] == dtype and len(manifest["model"]["sha256"]) == 64
    for number, line in enumerate(LINES):
        ids = line.get("token_ids") or model.tokenizer.encode(line["prompt"])
        want = model.record(ids, list(manifest["points"]), tokens="all")
        for name, rows in want.items():
            assert np.array_equal(found[f"{number}/{name}"], rows.astype(dtype)), name
        assert found[f"{number}/token_ids"].tolist() == list(ids)


def test_a_recording_that_was_cut_off_goes_on(prompts, tmp_path, monkeypatch, capsys):
    """Shards of a prompt or two; killed before a shard, and between a shard and the manifest: the same files."""
    monkeypatch.setattr("vkprefill.cli.record.ShardWriter", lambda f, facts, _: recording.ShardWriter(f, facts, 60_000))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["record", prompts, *ARGUMENTS, "-o", str(whole)]) == 0
    count = len(json.loads((whole / MANIFEST).read_text())["shards"])
    assert count >= 3
    replace = recording.ShardWriter._replace
    for writes_before in (1, 2, 3):

        def dies(self, name, pieces, left=[writes_before]):  # noqa: B006
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            replace(self, name, pieces)

        with monkeypatch.context() as patch:
            patch.setattr(recording.ShardWriter, "_replace", dies)
            assert main(["record", prompts, *ARGUMENTS, "-o", str(cut)]) == 130
    (cut / ".shard-00001.safetensors.tmp").write_bytes(b"half of one")
    assert main(["record", prompts, *ARGUMENTS, "-o", str(cut)]) == 0
    assert "of 6 prompts are there" in capsys.readouterr().err
    assert {n: b for n, b in files(cut).items() if not n.endswith(".tmp")} == files(whole)


KILLED = """
import os, signal, sys
from vkprefill.cli import main, record
from vkprefill.recording.shards import ShardWriter
place = sys.argv.pop(1)
replace = os.replace
def dies(source, target):
    if str(target).endswith(place) and (place.startswith("shard") or "shard-00001" in open(source).read()):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = dies
record.ShardWriter = lambda folder, facts, _: ShardWriter(folder, facts, 60_000)
main.main(sys.argv[1:])
"""


def test_a_recording_that_was_killed_goes_on(prompts, tmp_path, monkeypatch):
    """SIGKILL between a shard's bytes and its name, then between its name and the manifest's."""
    monkeypatch.setattr("vkprefill.cli.record.ShardWriter", lambda f, facts, _: recording.ShardWriter(f, facts, 60_000))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["record", prompts, *ARGUMENTS, "-o", str(whole)]) == 0
    command = ["record", prompts, *ARGUMENTS, "-o", str(cut)]
    for place, shards in (("shard-00001.safetensors", 1), (MANIFEST, 2)):
        killed = subprocess.run([sys.executable, "-c", KILLED, place, *command], stderr=subprocess.PIPE, text=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert len(list(cut.glob("shard-*"))) == shards
        assert len(json.loads((cut / MANIFEST).read_text())["shards"]) == 1
    assert main(command) == 0
    assert files(cut) == files(whole)


def test_a_prompt_that_is_too_long_ends_nothing(tmp_path, capsys):
    """Its entry says why, those after it are there, and a second start has no more to do."""
    path, folder = tmp_path / "prompts.jsonl", tmp_path / "out"
    lines = [{"token_ids": [1] * 300, "id": "long"}, {"token_ids": [2, 3], "id": "short"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    command = ["record", str(path), *ARGUMENTS, "-o", str(folder)]
    assert main(command) == 1
    err = capsys.readouterr().err
    assert "prompt 'long' is not there: context: 0 cached and 300 new tokens, the cache holds 256" in err
    assert "1 prompts, 5 points" in err
    (shard,) = json.loads((folder / MANIFEST).read_text())["shards"]
    assert [("error" in entry, entry["number"]) for entry in shard["prompts"]] == [(True, 0), (False, 1)]
    found = arrays(folder)
    assert {name.split("/")[0] for name in found} == {"1"} and found["1/token_ids"].tolist() == [2, 3]
    before = files(folder)
    assert main(command) == 1 and "2 of 2 prompts are there" in capsys.readouterr().err and files(folder) == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no json", "line 2: not JSON"),
        ("[1]", "line 2: wanted an object with either prompt or token_ids"),
        ('{"prompt": "a", "token_ids": [1]}', "line 2: wanted an object with either"),
        ('{"prompt": "a", "more": 1}', "line 2: more is not known"),
        ('{"prompt": 3}', "line 2: wanted text as prompt"),
        ('{"token_ids": [-1]}', "line 2: token_ids: found -1"),
        ('{"prompt": "a", "id": "1"}', "line 2: id '1' is another line's too"),
    ],
)
def test_a_bad_line_is_named(prompts, tmp_path, capsys, line, message):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a"}\n' + line)
    assert main(["record", str(path), *ARGUMENTS, "-o", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_refused(prompts, tmp_path, capsys):
    folder = str(tmp_path / "out")
    assert main(["record", prompts, *ARGUMENTS, "-o", folder]) == 0
    for more, message in (
        (["--dtype", "float32"], "holds a recording with another --dtype;"),
        (["--points", "embed"], "holds a recording with another --points;"),
        (["--steps", "both", "-n", "2"], "holds a recording with another --steps;"),
        (["-n", "2"], "holds a recording with another -n;"),
        (["-c", "128"], "holds a recording with another -c;"),
        (["-b", "16"], "holds a recording with another -b;"),
        (["-ctk", "f16"], "holds a recording with another -ctk;"),
        (["--precision", "full"], "holds a recording with another --precision;"),
        (["--shard-mib", "1"], "holds a recording with another --shard-mib;"),
        (["--tokens", "::-1"], "--tokens: found '::-1', wanted last, all or FIRST:END[:STEP]"),
        (["--points", ","], "names: found '', wanted a name of a point"),
        (["--tokens", "1"], "--tokens: found '1', wanted last, all or FIRST:END[:STEP]"),
        (["--points", "nothing"], "which the model does not have; near it"),
        (["--shard-mib", "0"], "--shard-mib: found 0"),
    ):
        assert main(["record", prompts, *ARGUMENTS, *more, "-o", folder]) == 1
        assert message in capsys.readouterr().err
    shard = tmp_path / "out" / "shard-00000.safetensors"
    whole = shard.read_bytes()
    (facts,) = json.loads((tmp_path / "out" / MANIFEST).read_text())["shards"]
    assert facts["sha256"] == hashlib.sha256(whole).hexdigest()
    for damaged in (whole[:-1], b"xxxx" + whole[4:], whole[:-1] + bytes([whole[-1] ^ 1])):
        shard.write_bytes(damaged)
        assert main(["record", prompts, *ARGUMENTS, "-o", folder]) == 1
        assert f"{shard.name} is damaged: SHA-256 " in capsys.readouterr().err
    shard.unlink()
    assert main(["record", prompts, *ARGUMENTS, "-o", folder]) == 1
    assert "shard-00000.safetensors is gone" in capsys.readouterr().err
