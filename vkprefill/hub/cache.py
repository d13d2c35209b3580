"""Files in the cache that Hugging Face's programs share, and in llama.cpp's.

models--USER--REPO/blobs/ETAG                     bytes, or ETAG.incomplete, a beginning of them
models--USER--REPO/refs/main                      a commit
models--USER--REPO/snapshots/COMMIT/FILE          links to blobs
.locks/models--USER--REPO/ETAG.lock               held by who fetches a blob
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vkprefill.hub.places import hub_cache, llama_cache
from vkprefill.hub.requests import RemoteFile

FOLDER = "models--"


@dataclass(frozen=True)
class RepoCache:
    """What is kept of one repository."""

    repo: str
    base: Path

    @classmethod
    def of(cls, repo: str) -> RepoCache:
        return cls(repo, hub_cache())

    @property
    def folder(self) -> Path:
        return self.base / f"{FOLDER}{self.repo.replace('/', '--')}"

    def blob(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / file.etag

    def incomplete(self, file: RemoteFile) -> Path:
        return self.blob(file).with_name(f"{file.etag}.incomplete")

    def lock(self, file: RemoteFile) -> Path:
        return self.base / ".locks" / self.folder.name / f"{file.etag}.lock"

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def link(self, file: RemoteFile) -> Path:
        """A file's place in its snapshot, with its blob behind it: a link, a copy where there can be none."""
        path, blob = self.snapshot(file.commit) / file.name, self.blob(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (path.exists() and path.samefile(blob)):
            path.unlink(missing_ok=True)
            try:
                path.symlink_to(os.path.relpath(blob, path.parent))
            except OSError:
                shutil.copyfile(blob, path)
        return path

    def point(self, commit: str) -> None:
        """Make a commit that of the branch main."""
        ref = self.folder / "refs" / "main"
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)

    def snapshots(self) -> list[Path]:
        """Folders of commits: that of main first, then the latest."""
        try:
            main = (self.folder / "refs" / "main").read_text().strip()
        except (OSError, UnicodeDecodeError):
            main = ""
        try:
            found = [path for path in (self.folder / "snapshots").iterdir() if os.path.isdir(path)]
        except OSError:
            return []
        return sorted(found, key=lambda path: (path.name == main, path.stat().st_mtime), reverse=True)


def files_below(folder: Path) -> list[str]:
    """Names, with folders, of all files that are there: a link whose blob has gone is not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if os.path.isfile(path))


def cached_repos() -> list[str]:
    """The repositories of models of which something is in the hub's cache."""
    try:
        names = [path.name for path in hub_cache().iterdir() if os.path.isdir(path)]
    except OSError:
        return []
    return sorted(name.removeprefix(FOLDER).replace("--", "/", 1) for name in names if name.startswith(FOLDER))


def of_llama(repo: str) -> dict[str, Path]:
    """Name in the repository, its slashes as underscores -> file of it that llama.cpp has fetched."""
    prefix = f"{repo.replace('/', '_')}_"
    try:
        found = [path for path in llama_cache().iterdir() if path.name.startswith(prefix) and os.path.isfile(path)]
    except OSError:
        return {}
    return {path.name.removeprefix(prefix): path for path in sorted(found) if path.suffix == ".gguf"}
