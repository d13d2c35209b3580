"""Who may use the server: the names it may be called by, pages of other origins, the API key.

Any page in a browser can send requests to this machine, and by a name of its own that it lets point here (DNS
rebinding) even read the answers. Browsers tell such requests by their Host and Origin headers.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.server.api_error import ApiError
from vkprefill.server.http.keys import Keys
from vkprefill.server.http.wire import error_response

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
ANY = "*"
PREFLIGHT_S = 600  # a browser may remember what it was allowed
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:]*)(?::\d*)?")
NAME = re.compile(r"\[[0-9a-f:.]+\]|[a-z0-9._-]+")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+|null|\*")
JSON_TYPE = re.compile(r"\s*application/([\w.-]+\+)?json\s*(;|$)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Access:
    """hosts: names that requests may call the server by, None for any; origins: those of pages that may use it beside
    its own, "*" for all; keys: of which requests must carry one, None for nothing."""

    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()
    keys: Keys | None = None


def access_for(
    address: str,
    *,
    allowed_hosts: Iterable[str] = (),
    cors_origins: Iterable[str] = (),
    api_key: str | None = None,
    api_key_file: str | None = None,
) -> Access:
    """Rules for a server that listens on this address. RequestError for names, origins or keys that cannot be meant.

    On a loopback address only its own names and the allowed ones are taken; on others the allowed ones, or any where
    none is given.
    """
    names = frozenset(_checked_host(name) for name in allowed_hosts)
    hosts = names or None
    if is_loopback(address):
        hosts = names.union(LOOPBACK_NAMES, [f"[{address}]" if ":" in address else address])
    keys = None if api_key is None and api_key_file is None else Keys(api_key, api_key_file)
    return Access(hosts, frozenset(_checked_origin(origin) for origin in cors_origins), keys)


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _checked_host(name: str) -> str:
    found = name.lower()
    if found.count(":") > 1 and not found.startswith("["):  # an address of IPv6
        found = f"[{found}]"
    if not NAME.fullmatch(found):
        raise RequestError(f"--allowed-host: found {printable(name, 80)}, wanted a name or address without a port")
    return found


def _checked_origin(origin: str) -> str:
    found = origin.lower().rstrip("/")
    if not ORIGIN.fullmatch(found):
        raise RequestError(
            f"--cors-origin: found {printable(origin, 80)}, wanted one such as https://page.example:8443, null or *"
        )
    return found


def middleware(access: Access, public_paths: Collection[str]) -> list[Middleware]:
    """The checks of every request, outermost first. public_paths: those that need no key."""
    layers = [Middleware(_Check, check=_Doors(access))]
    if access.origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=sorted(access.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["Retry-After", "X-Request-Id"],
                max_age=PREFLIGHT_S,
            )
        )
    layers.append(Middleware(_Check, check=_json_from_pages))
    if access.keys is not None:
        layers.append(Middleware(_Check, check=_Key(access.keys, public_paths)))
    return layers


class _Check:
    """Answers requests for which check(method, path, headers) raises an ApiError, lets the others through."""

    def __init__(self, app: ASGIApp, check: Callable[[str, str, Headers], None]) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope["method"], scope["path"], Headers(scope=scope))
            except ApiError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Doors:
    """The message's framing, the name that the server is called by, and the page's origin."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def __call__(self, method: str, path: str, headers: Headers) -> None:
        if "content-length" in headers and "transfer-encoding" in headers:
            # The two may disagree about where the request ends, and a proxy before us may have believed the other.
            raise ApiError(400, "found both Content-Length and Transfer-Encoding, wanted one", close=True)
        hosts, host = self._access.hosts, headers.get("host")
        if hosts is not None and host is not None:  # without one it is HTTP/1.0, which no browser speaks
            found = HOST.fullmatch(host.lower())
            if not found or found[1] not in hosts:
                names = ", ".join(sorted(hosts))
                raise ApiError(403, f"Host: found {printable(host, 80)}, wanted {names} (more: --allowed-host NAME)")
        origin = headers.get("origin")
        if origin is None or self._access.origins & {ANY, origin.lower()}:
            return
        if host is None or origin.lower().partition("://")[2] != host.lower():
            raise ApiError(
                403, f"Origin: pages of {printable(origin, 80)} may not use this server (see --cors-origin ORIGIN)"
            )


def _json_from_pages(method: str, path: str, headers: Headers) -> None:
    """Refuse bodies that are not JSON from pages: forms and requests without a preflight are of other types."""
    if method == "POST" and "origin" in headers and not JSON_TYPE.match(headers.get("content-type", "")):
        kind = printable(headers.get("content-type", "none"), 80)
        raise ApiError(415, f"Content-Type: found {kind}, wanted application/json from a page")


class _Key:
    """A key as a bearer token or in X-Api-Key."""

    def __init__(self, keys: Keys, public_paths: Collection[str]) -> None:
        self._keys = keys
        self._public = frozenset(public_paths)

    def __call__(self, method: str, path: str, headers: Headers) -> None:
        if path in self._public:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else ""]
        if not self._keys.match([one.encode("latin-1") for one in given]):
            raise ApiError(
                401, "wrong or missing API key; send it as: Authorization: Bearer KEY", code="invalid_api_key"
            )
