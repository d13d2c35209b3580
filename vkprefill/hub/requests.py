"""Requests to the hub, and what its refusals mean, in one line each.

Redirects are followed by hand: the token goes to the hub alone, never to where it stores the bytes.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from vkprefill.display import one_line, printable
from vkprefill.errors import HubError
from vkprefill.hub.places import endpoint, token

TIMEOUT_S = 30  # without a byte
MAX_REDIRECTS = 8
MAX_LISTING = 64 << 20  # bytes
ETAG = re.compile(r"\w[\w.:-]{0,127}", re.ASCII)  # one that can name a file
REDIRECTS = (301, 302, 303, 307, 308)


class Unreachable(HubError):
    """The hub cannot be asked, whoever asks: what is at hand may do."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a commit. etag: the name of its bytes; size in bytes."""

    repo: str
    commit: str
    name: str
    etag: str
    size: int

    @property
    def address(self) -> str:
        return f"{endpoint()}/{self.repo}/resolve/{self.commit}/{quote(self.name)}"


class _StaysHere(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(_StaysHere)


def request(
    address: str, repo: str, *, method: str = "GET", headers: dict[str, str] | None = None, leave: bool = True
) -> http.client.HTTPResponse:
    """The answer, of a status below 300; or, with leave False, the redirect to another host in place of it.

    Raises HubError for a refusal of what concerns `repo`, Unreachable where there is no answer.
    """
    home, key = urlsplit(address).netloc, token()
    for _ in range(MAX_REDIRECTS):
        at_home = urlsplit(address).netloc == home
        asked = urllib.request.Request(address, method=method, headers={"User-Agent": "vkprefill", **(headers or {})})
        if key and at_home:
            asked.add_header("Authorization", f"Bearer {key}")
        try:
            answer = _opener.open(asked, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            answer = error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(f"{repo}: {urlsplit(address).netloc} cannot be reached: {in_words(error)}") from None
        if answer.status not in REDIRECTS:
            break
        target = urljoin(address, answer.headers.get("Location", ""))
        if not leave and urlsplit(target).netloc != home:
            return answer
        answer.close()
        address = target
    else:
        raise HubError(f"{repo}: more than {MAX_REDIRECTS} redirects, the last to {printable(address)}")
    if answer.status >= 300:
        with answer:
            raise refusal(repo, answer, key)
    return answer


def file_names(repo: str) -> tuple[str, list[str]]:
    """(commit of the branch main, its files)."""
    with request(f"{endpoint()}/api/models/{repo}", repo) as answer:
        try:
            found = json.loads(answer.read(MAX_LISTING))
            commit, names = found["sha"], [entry["rfilename"] for entry in found["siblings"]]
            if not all(isinstance(text, str) for text in (commit, *names)) or not commit.isalnum():
                raise TypeError
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{repo}: its list of files was cut off: {in_words(error)}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise HubError(f"{repo}: {endpoint()} answered with something else than its list of files") from None
    return commit, [name for name in names if is_safe(name)]


def remote_file(repo: str, commit: str, name: str) -> RemoteFile:
    """What the hub says of a file, without its bytes; or, where it says nothing, their store."""
    address = f"{endpoint()}/{repo}/resolve/{commit}/{quote(name)}"
    etag, size = _described(address, repo, at_hub=True)
    if not (etag and size):
        etag, size = _described(address, repo, at_hub=False)
    if not ETAG.fullmatch(etag) or not (size.isascii() and size.isdigit()):
        raise HubError(
            f"{repo}/{name}: found ETag {printable(etag)} and size {printable(size)}, wanted what names its bytes"
        )
    return RemoteFile(repo, commit, name, etag, int(size))


def _described(address: str, repo: str, *, at_hub: bool) -> tuple[str, str]:
    """(ETag, size) of a file, empty where they are not said. A redirect's own length is not the file's."""
    with request(address, repo, method="HEAD", headers={"Accept-Encoding": "identity"}, leave=not at_hub) as answer:
        is_file, said = answer.status < 300, answer.headers
        etag = said.get("X-Linked-Etag") or (said.get("ETag") if is_file else "") or ""
        size = said.get("X-Linked-Size") or (said.get("Content-Length") if is_file else "") or ""
    return etag.removeprefix("W/").strip('"'), size


def is_safe(name: str) -> bool:
    """Whether a file of this name stays in the folder it is put into."""
    return name.isprintable() and "\\" not in name and not any(part in ("", ".", "..") for part in name.split("/"))


def refusal(repo: str, answer: http.client.HTTPResponse, key: str | None) -> HubError:
    """A status of 300 or above, in words."""
    status, code = answer.status, answer.headers.get("X-Error-Code", "")
    said = one_line(answer.headers.get("X-Error-Message", ""))
    if code == "GatedRepo" or status == 403:
        ask = f"ask for access at {endpoint()}/{repo}"
        if key is None:
            return HubError(f"{repo}: gated: {ask}, then set HF_TOKEN to a token of yours")
        return HubError(f"{repo}: gated: the token's owner has no access; {ask}")
    if code == "EntryNotFound":
        return HubError(f"{repo}: {printable(urlsplit(answer.url or '').path, 200)}: no such file")
    if status in (401, 404):
        if key is None:
            return HubError(f"{repo}: not found at {endpoint()}, or private or gated; check the name, or set HF_TOKEN")
        refused = "the token (HF_TOKEN, or of `hf auth login`) is refused" if status == 401 else "not found"
        return HubError(f"{repo}: {refused} at {endpoint()}; check it, and whether its owner may see {repo}")
    if status == 429:
        return Unreachable(f"{repo}: {endpoint()} takes no more requests for now (429); try later, or set HF_TOKEN")
    kind = Unreachable if status >= 500 else HubError
    return kind(f"{repo}: {endpoint()} answered {status} {said or answer.reason}")


def in_words(error: Exception) -> str:
    """The cause of a failed connection, short."""
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        error = error.reason
    if isinstance(error, TimeoutError | socket.timeout):
        return f"no answer for {TIMEOUT_S} seconds"
    return one_line(getattr(error, "strerror", None) or error or type(error).__name__).lower()
