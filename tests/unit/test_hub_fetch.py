"""Fetching from a hub on this machine: redirects, ranges, cuts, refusals; the shared cache; offline."""

from __future__ import annotations

import fcntl
import resource
import shutil
import threading
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir, try_to_load_from_cache

from tests.unit.hub_server import REPO, Hub, etag_of, running
from vkprefill.errors import HubError
from vkprefill.hub import download
from vkprefill.hub.fetch import fetch
from vkprefill.hub.names import HubName

CONTENT = bytes(range(256)) * 400  # 102,400 bytes
NAME = "Some-Q4_K_M.gguf"
PARTS = [f"BF16/Some-BF16-0000{n}-of-00002.gguf" for n in (1, 2)]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    found = Hub({"README.md": b"#", NAME: CONTENT, "Some-Q8_0.gguf": b"q8", PARTS[0]: b"one", PARTS[1]: b"two"})
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    monkeypatch.setattr(download, "PAUSE_S", 0)
    with running(found):
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        yield found


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "hf" / "hub"


def get(text: str = REPO, **options) -> Path:
    options.setdefault("progress", lambda *_: None)
    return fetch(HubName.read(text), **options)


def refused(text: str = REPO, **options) -> str:
    with pytest.raises(HubError) as caught:
        get(text, **options)
    assert str(caught.value).isprintable()
    return str(caught.value)


def incomplete(cache: Path) -> list[Path]:
    return list(cache.rglob("*.incomplete"))


def test_into_the_shared_cache(hub, cache):
    steps, told = [], []
    path = get(progress=lambda *step: steps.append(step), notice=told.append)
    assert path.read_bytes() == CONTENT and steps[-1] == (NAME, len(CONTENT), len(CONTENT))
    assert told == [f"fetching {NAME}, 0.00 GB, into {cache}/models--user--Some-GGUF/blobs"]
    assert path == cache / "models--user--Some-GGUF" / "snapshots" / hub.commit / NAME
    assert path.resolve() == cache / "models--user--Some-GGUF" / "blobs" / etag_of(CONTENT)
    assert try_to_load_from_cache(REPO, NAME, cache_dir=cache) == str(path), "Hugging Face's library finds it"
    scanned = scan_cache_dir(cache)
    assert [repo.repo_id for repo in scanned.repos] == [REPO] and not scanned.warnings and not incomplete(cache)


def test_what_is_there_is_not_fetched_again(hub):
    first = get()
    assert get() == first and get(f"{REPO}:q4_k_m") == first
    assert hub.fetched() == [f"/store/{NAME}"]


def test_another_commit_with_the_same_and_with_other_bytes(hub):
    old = get()
    hub.commit = "b" * 40
    same = get()
    assert same != old and same.resolve() == old.resolve() and len(hub.fetched()) == 1
    hub.commit, hub.files[NAME] = "c" * 40, b"new"
    assert get().read_bytes() == b"new" and old.read_bytes() == CONTENT
    assert get(offline=True).read_bytes() == b"new"


def test_whole_split_sets(hub):
    path = get(f"{REPO}:BF16")
    assert path.name == "Some-BF16-00001-of-00002.gguf" and path.read_bytes() == b"one"
    assert path.with_name("Some-BF16-00002-of-00002.gguf").read_bytes() == b"two"


def test_the_token_goes_to_the_hub_alone(hub, monkeypatch, tmp_path):
    hub.secret, hub.refusal = "hf_secret", (401, "")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.moved = {"user/Old": REPO}
    assert get("user/Old").read_bytes() == CONTENT
    for _, path, token, _ in hub.asked:
        assert token == (None if path.startswith("/store/") else "Bearer hf_secret")
    monkeypatch.delenv("HF_TOKEN")
    assert "HF_TOKEN" in refused()
    (tmp_path / "hf" / "token").write_text("hf_secret\n")
    assert get() == get("user/Old", offline=True).parents[3] / "models--user--Some-GGUF/snapshots" / hub.commit / NAME


def test_goes_on_after_a_cut(hub, cache):
    hub.cuts = [1000, 0, 5000]
    assert get().read_bytes() == CONTENT
    assert hub.ranges() == [None, "bytes=1000-", "bytes=1000-", "bytes=6000-"]
    assert not incomplete(cache)


def test_goes_on_in_a_later_run(hub, cache):
    hub.cuts = [2000] + [0] * download.TRIES
    said = refused()
    assert said.startswith(f"{NAME}: cut off after 2,000 of 102,400 bytes: the connection ended; the same command")
    assert [path.stat().st_size for path in incomplete(cache)] == [2000]
    assert get().read_bytes() == CONTENT and hub.ranges()[-1] == "bytes=2000-"


def test_a_server_without_ranges(hub):
    hub.cuts, hub.takes_ranges = [1000], False
    assert get().read_bytes() == CONTENT


def test_bytes_that_are_others(hub, cache):
    hub.false_bytes = True
    assert "what came are not the bytes of the hub (SHA-256 differs); try again" in refused()
    hub.false_bytes = False
    assert not incomplete(cache) and get().read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("refusal", "token", "words"),
    [
        (
            (401, "GatedRepo"),
            None,
            "gated: ask for access at {hub}/user/Some-GGUF, then set HF_TOKEN",
        ),
        ((403, "GatedRepo"), "t", "gated: the token's owner has no access; ask for access at "),
        (
            (401, "RepoNotFound"),
            None,
            "not found at {hub}, or private or gated; check the name, or set HF_TOKEN",
        ),
        ((403, ""), None, "gated: ask for access at "),
        ((404, "RepoNotFound"), "t", "not found at {hub}; check it"),
        ((401, ""), "t", "the token (HF_TOKEN, or of `hf auth login`) is refused"),
        ((404, ""), None, "not found at "),
        ((429, ""), None, "takes no more requests for now (429)"),
        ((500, ""), None, "answered 500 Internal Server Error"),
        ((418, ""), None, "answered 418"),
    ],
)
def test_refusals(hub, monkeypatch, refusal, token, words):
    hub.refusal = refusal
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    said = refused()
    assert said.startswith(f"{REPO}: ") and words.format(hub=hub.address) in said


def test_answers_that_are_none(hub, monkeypatch):
    for listing in (b"<html>", b"[]", b'{"sha": 1, "siblings": []}', b'{"sha": "../x", "siblings": []}', b"[" * 9999):
        hub.listing = listing
        assert "something else than its list of files" in refused()
    hub.listing = None
    hub.moved = {REPO: REPO}
    assert "more than 8 redirects" in refused()
    monkeypatch.setenv("HF_TOKEN", "two\nlines")
    assert "HF_TOKEN: holds no token" in refused()
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    assert "HF_ENDPOINT: found 'hub.example', wanted an address" in refused()


def test_a_hub_that_leaves_it_to_the_store(hub, cache):
    hub.only_store_knows = True
    path = get()
    assert path.read_bytes() == CONTENT and path.resolve().name == etag_of(CONTENT)
    assert get() == path and len(hub.fetched()) == 1


def test_names_that_leave_the_folder(hub, cache):
    hub.files = {"../../../x-Q4_K_M.gguf": b"bad", "/etc/x.gguf": b"bad", "a/../x.gguf": b"bad", NAME: b"good"}
    assert get().read_bytes() == b"good"
    del hub.files[NAME]
    assert "has no GGUF file" in refused()


def test_unreachable(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "127.0.0.1:9 cannot be reached: connection refused" in refused()
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    path = get()
    hub.refusal = (503, "")
    told = []
    assert get(notice=told.append) == path
    assert told == [f"{REPO}: {hub.address} answered 503 Service Unavailable; using what was fetched before: {path}"]


def test_offline(hub, cache, monkeypatch):
    assert refused(offline=True) == (
        f"{REPO}: not fetched yet (nothing of it in {cache}), and the hub is not asked offline"
    )
    assert not hub.asked
    path = get(f"{REPO}:Q8_0")
    before = len(hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get() == path, "the first of those fetched"
    assert "not fetched yet" in refused(f"{REPO}:BF16") and len(hub.asked) == before
    path.resolve().unlink()
    assert "not fetched yet" in refused(), "a link without bytes"


def test_of_llama_cpp(hub, cache, tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    for name, content in ((NAME, CONTENT), (PARTS[0], b"one"), (PARTS[1], b"two")):
        (folder / f"user_Some-GGUF_{name.replace('/', '_')}").write_bytes(content)
    assert get(offline=True) == get() == folder / f"user_Some-GGUF_{NAME}"
    assert get(f"{REPO}:BF16") == folder / "user_Some-GGUF_BF16_Some-BF16-00001-of-00002.gguf"
    assert hub.fetched() == [] and not list(cache.rglob("*.gguf"))
    (folder / f"user_Some-GGUF_{NAME}").write_bytes(b"old")
    assert get().read_bytes() == CONTENT


def test_a_full_disk(hub, cache, monkeypatch):
    free = shutil.disk_usage(".")._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: free)
        assert f"{NAME}: 0.00 GB are to be fetched, 0.00 GB are free in {cache}" in refused()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))  # what a file may have: as a disk that fills meanwhile
    try:
        assert refused().startswith(f"{NAME}: cannot be written to {cache}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert get().read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written(hub, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    assert f"{NAME}: cannot be written to {tmp_path}/file/models--user--Some-GGUF/blobs: not a directory" in refused()


def test_waits_for_another_process(hub, cache):
    lock = cache / ".locks" / "models--user--Some-GGUF" / f"{etag_of(CONTENT)}.lock"
    lock.parent.mkdir(parents=True)
    waiting, found = threading.Event(), []
    with open(lock, "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = threading.Thread(
            target=lambda: found.append(get(notice=lambda text: "another process" in text and waiting.set()))
        )
        thread.start()
        assert waiting.wait(60) and not hub.fetched()
        blob = cache / "models--user--Some-GGUF" / "blobs" / etag_of(CONTENT)
        blob.write_bytes(CONTENT)
    thread.join()
    assert found[0].read_bytes() == CONTENT and not hub.fetched(), "what the other has fetched is taken"
