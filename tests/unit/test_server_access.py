"""Names, origins, content types and keys: who gets in, and what the others are told."""

import anyio
import pytest

from vkprefill.errors import RequestError

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")

from starlette.applications import Starlette  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import PlainTextResponse, Response  # noqa: E402
from starlette.routing import Route  # noqa: E402

from vkprefill.server.http.access import Access, access_for, middleware  # noqa: E402

PAGE = "https://page.example"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
JSON = {"Content-Type": "application/json"}


async def _answer(request: Request) -> Response:
    return PlainTextResponse(await request.body() or b"in")


def send(access: Access, method: str = "GET", path: str = "/a", **headers: str) -> httpx.Response:
    """An answer of an app behind the checks. headers: with _ for -."""

    async def exchange() -> httpx.Response:
        routes = [Route(one, _answer, methods=["GET", "POST"]) for one in ("/a", "/public")]
        app = Starlette(routes=routes, middleware=middleware(access, ("/public",)))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, path, headers=named)

    return anyio.run(exchange)


def refused(answer: httpx.Response, status: int, start: str) -> bool:
    error = answer.json()["error"]
    return (
        answer.status_code == status
        and set(error) == {"message", "type", "param", "code"}
        and (error["message"].startswith(start))
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "127.0.0.2", "::1%lo"])
def test_hosts_on_loopback(address):
    access = access_for(address, allowed_hosts=["LLM.lan", "fe80::1"])
    for host in ("localhost", "localhost:8080", "LocalHost:1", "127.0.0.1:9", "[::1]", "[::1]:8080", "llm.lan:80"):
        assert send(access, Host=host).status_code == 200, host
    assert send(access, Host="[fe80::1]:8080").status_code == 200
    for host in (
        "evil.test",
        "evil.test:8080",
        "localhost.evil.test",
        "127.0.0.1.evil.test",
        "localhost:8080:1",
        "::1",
    ):
        assert refused(send(access, Host=host), 403, f"Host: found {host}, wanted"), host
        assert refused(send(access, path="/public", Host=host), 403, "Host: found")


def test_own_address_is_a_name():
    assert send(access_for("127.0.0.2"), Host="127.0.0.2:8080").status_code == 200
    assert send(access_for("127.0.0.1"), Host="127.0.0.2:8080").status_code == 403


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.5"])
def test_hosts_elsewhere(address):
    for host in ("evil.test", "192.168.1.5:8080", "localhost"):
        assert send(access_for(address), Host=host).status_code == 200
    access = access_for(address, allowed_hosts=["llm.lan"])
    assert send(access, Host="llm.lan:8080").status_code == 200
    assert send(access, Host="evil.test").status_code == 403


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    "origin", [PAGE, "null", "http://localhost:8081", "http://localhost", "http://localhost:8080.evil.test", ""]
)
def test_foreign_origins_are_refused(method, origin):
    answer = send(access_for("127.0.0.1"), method, Origin=origin, **JSON, **PREFLIGHT)
    assert refused(answer, 403, "Origin: pages of") and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("localhost", "https://localhost"),  # a proxy in front that speaks TLS
    ],
)
def test_own_origin_passes(host, origin):
    for cors in ((), (PAGE,)):
        access = access_for("127.0.0.1", cors_origins=cors)
        for method in ("GET", "POST"):
            assert send(access, method, Host=host, Origin=origin, **JSON).status_code == 200


@pytest.mark.parametrize("given", [[PAGE], ["http://other.example", f"{PAGE.upper()}/"], ["*"]])
def test_named_origins_pass(given):
    access = access_for("127.0.0.1", cors_origins=given, api_key="k")
    answer = send(access, "OPTIONS", Origin=PAGE, **PREFLIGHT)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] in (PAGE, "*")
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    answer = send(access, "POST", Origin=PAGE, X_Api_Key="k", **JSON)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] in (PAGE, "*")
    answer = send(access, "POST", Origin=PAGE, **JSON)
    assert answer.status_code == 401 and "access-control-allow-origin" in answer.headers, "the page can read why"
    if given != ["*"]:
        assert send(access, "OPTIONS", Origin="https://evil.test", **PREFLIGHT).status_code == 403
        assert send(access, Origin="null").status_code == 403


def test_null_is_an_origin_to_name():
    answer = send(access_for("127.0.0.1", cors_origins=["null"]), Origin="null")
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "null"


def test_pages_send_json():
    """What a page may send without asking first, a form or plain text, is no request of ours; curl -d is."""
    access = access_for("127.0.0.1", cors_origins=[PAGE])
    for origin in (PAGE, "http://localhost:8080"):
        for kind in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"):
            assert send(access, "POST", Origin=origin, Content_Type=kind).status_code == 200
        for kind in (
            "text/plain",
            "application/x-www-form-urlencoded",
            "text/plain; application/json",
            "application/jsonx",
        ):
            assert refused(send(access, "POST", Origin=origin, Content_Type=kind), 415, f"Content-Type: found {kind}")
        assert refused(send(access, "POST", Origin=origin), 415, "Content-Type: found none, wanted application/json")
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json"):
        assert send(access, "POST", Content_Type=kind).status_code == 200
    assert send(access, "POST").status_code == 200


@pytest.mark.parametrize("key", ["s3cret", "schl\u00fcssel"])
def test_key(key):
    access, raw = access_for("127.0.0.1", api_key=key), key.encode().decode("latin-1")
    for headers in (
        {"Authorization": f"Bearer {raw}"},
        {"Authorization": f"bearer  {raw}"},
        {"X-Api-Key": raw},
        {"X-Api-Key": raw, "Authorization": "Bearer wrong"},
    ):
        assert send(access, **{n: v.encode("latin-1") for n, v in headers.items()}).status_code == 200, headers
    for headers in (
        {},
        {"Authorization": raw},
        {"Authorization": f"Basic {raw}"},
        {"X-Api-Key": ""},
        {"X-Api-Key": "x"},
    ):
        answer = send(access, **{n: v.encode("latin-1") for n, v in headers.items()})
        assert refused(answer, 401, "wrong or missing API key") and answer.headers["www-authenticate"] == "Bearer"
    assert send(access, path="/public").status_code == 200


def test_two_lengths_of_a_body():
    answer = send(Access(), "POST", Content_Length="2", Transfer_Encoding="chunked")
    assert refused(answer, 400, "found both Content-Length and Transfer-Encoding")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_key": ""}, "--api-key: found an empty one"),
        ({"api_key": " "}, "--api-key: found an empty one"),
        ({"api_key": "k\n"}, "--api-key: found white space around it"),
        ({"allowed_hosts": ["a:80"]}, "--allowed-host: found a:80, wanted a name or address without a port"),
        ({"allowed_hosts": [""]}, "--allowed-host: found "),
        ({"allowed_hosts": ["http://a"]}, "--allowed-host: found http://a"),
        ({"cors_origins": ["page.example"]}, "--cors-origin: found page.example, wanted"),
        ({"cors_origins": ["http://a/b"]}, "--cors-origin: found http://a/b"),
        ({"cors_origins": [""]}, "--cors-origin: found "),
    ],
)
def test_options_that_cannot_be_meant(options, message):
    with pytest.raises(RequestError) as error:
        access_for("127.0.0.1", **options)
    assert str(error.value).startswith(message)
