"""API keys of the command line and of a file."""

import os

import pytest

from vkprefill.errors import RequestError

pytest.importorskip("starlette")

from vkprefill.server.http.keys import MAX_FILE_BYTES, Keys  # noqa: E402


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    return path


def replaced(path, content: bytes) -> None:
    """As an editor does it: another file in its place."""
    new = path.with_name("new")
    new.touch(mode=0o600)
    new.write_bytes(content)
    os.replace(new, path)


def test_lines_of_a_file(file):
    file.write_bytes(b"\xef\xbb\xbffirst\r\n\n  # of whom\n second \nwith space\nschl\xc3\xbcssel\n#\n\xff")
    keys = Keys("own", str(file))
    for key in (b"own", b"first", b"second", b"with space", "schlüssel".encode(), b"\xff"):
        assert keys.match([b"", key]) and keys.match([key, b""]) and not keys.match([key + b"x", key[:-1]])
    for key in (b"", b"#", b"# of whom", b"  second ", b"\n"):
        assert not keys.match([key])
    assert not Keys("own").match([b"first"]) and not Keys(file=str(file)).match([b"own"])


def test_read_again_when_it_changes(file, caplog):
    file.write_bytes(b"old\n")
    keys = Keys(file=str(file))
    assert keys.match([b"old"]) and not caplog.records
    replaced(file, b"new\nnewer\n")
    assert keys.match([b"new"]) and keys.match([b"newer"]) and not keys.match([b"old"])
    assert [record.getMessage() for record in caplog.records] == [f"--api-key-file {file}: read again, keys: 2"]
    caplog.clear()
    for content, why in (
        (b"# none\n", "found no key"),
        (b"a\x00b", "line 1: found a control character"),
        (None, "No such"),
    ):
        if content is None:
            file.unlink()
        else:
            replaced(file, content)
        assert keys.match([b"new"]) and keys.match([b"newer"]) and not keys.match([b"old"])
        (record,) = caplog.records  # once, not with each request
        assert why in record.getMessage() and record.getMessage().endswith("; the keys read before stay")
        caplog.clear()
    replaced(file, b"old\n")
    assert keys.match([b"old"]) and not keys.match([b"new"])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "found no key, wanted one a line"),
        (b"# only\n\n", "found no key, wanted one a line"),
        (b"ok\nb\x1bd\n", ", line 2: found a control character"),
        (b"k" * (MAX_FILE_BYTES + 1), "larger than 1048576 bytes"),
    ],
)
def test_files_that_are_refused(file, content, why):
    file.write_bytes(content)
    with pytest.raises(RequestError) as error:
        Keys(file=str(file))
    assert str(error.value).startswith(f"--api-key-file {os.fspath(file)[:20]}") and why in str(error.value)
    assert "b\x1bd" not in str(error.value) and "kkk" not in str(error.value)


def test_files_that_cannot_be_read(file, tmp_path, unprivileged):
    for path in (str(tmp_path / "none"), str(tmp_path), "a\0b", ""):
        with pytest.raises(RequestError, match="^--api-key-file .*: cannot be read: "):
            Keys(file=path)


def test_pipes_are_read_once():
    """As a shell's <(command)."""
    reading, writing = os.pipe()
    os.write(writing, b"key\n")
    os.close(writing)
    keys = Keys(file=f"/dev/fd/{reading}")
    os.close(reading)
    assert keys.match([b"key"]) and not keys.match([b"other"]) and keys.match([b"key"])


@pytest.mark.parametrize(("mode", "told"), [(0o600, False), (0o440, False), (0o644, True)])
def test_a_file_that_all_may_read_is_told(file, caplog, mode, told):
    """Not refused: containers mount theirs so."""
    file.write_bytes(b"key")
    file.chmod(mode)
    Keys(file=str(file))
    assert [record.getMessage() for record in caplog.records] == [
        f"--api-key-file {file}: every user of this machine may read it (chmod o-r)"
    ] * told
