"""USER/REPO[:QUANT] -> a file to open: from the hub, or from what was fetched before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from vkprefill.errors import HubError
from vkprefill.hub.cache import RepoCache, files_below, of_llama
from vkprefill.hub.download import Progress, download
from vkprefill.hub.names import HubName
from vkprefill.hub.places import hub_cache, is_offline
from vkprefill.hub.requests import RemoteFile, Unreachable, file_names, in_words, remote_file


def fetch(
    name: HubName, *, offline: bool = False, progress: Progress, notice: Callable[[str], None] = lambda text: None
) -> Path:
    """The model's file, its first where it is split; the others lie beside it.

    Online the hub is asked which files are current, and what is not there is fetched; where the hub cannot be reached
    what is there is taken, which `notice` says. Offline nothing is asked.

    Raises HubError, in one line.
    """
    if offline or is_offline():
        return kept(name)
    try:
        return _current(name, progress, notice)
    except Unreachable as error:
        try:
            found = kept(name)
        except HubError:
            raise error from None
        notice(f"{error}; using what was fetched before: {found}")
        return found
    except OSError as error:
        raise HubError(f"{name}: cannot be kept in {hub_cache()}: {in_words(error)}") from None


def _current(name: HubName, progress: Progress, notice: Callable[[str], None]) -> Path:
    commit, names = file_names(name.repo)
    remote = [remote_file(name.repo, commit, file) for file in name.choose(names)]
    cache = RepoCache.of(name.repo)
    if by_llama := _fetched_by_llama(cache, remote):
        return by_llama
    paths = [download(file, cache, progress, notice) for file in remote]
    cache.point(commit)
    return paths[0]


def _fetched_by_llama(cache: RepoCache, remote: list[RemoteFile]) -> Path | None:
    """The first of these files where llama.cpp has all of them, and the hub's cache none."""
    there = of_llama(cache.repo)
    paths = [there.get(file.name.replace("/", "_")) for file in remote]
    for path, file in zip(paths, remote, strict=True):
        if path is None or path.stat().st_size != file.size or cache.blob(file).exists():
            return None
    return paths[0]


def kept(name: HubName) -> Path:
    """What was fetched before, by this or another program. Raises HubError where that is nothing."""
    for folder in RepoCache.of(name.repo).snapshots():
        if files := _chosen(name, files_below(folder)):
            return folder / files[0]
    by_llama = of_llama(name.repo)
    if files := _chosen(name, by_llama):
        return by_llama[files[0]]
    raise HubError(f"{name}: not fetched yet (nothing of it in {hub_cache()}), and the hub is not asked offline")


def _chosen(name: HubName, files: Iterable[str]) -> list[str]:
    try:
        return name.choose(files)
    except HubError:
        return []
