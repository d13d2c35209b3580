"""deploy/nginx.conf before two servers, with TLS, on the loopback address."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PATIENCE_S, ROOT

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from tests.e2e.server_process import ServerProcess  # noqa: E402
from vkprefill.server.http.wire import MAX_BODY_BYTES  # noqa: E402

PATHS = f"{os.environ.get('PATH', '')}:/usr/sbin"
NGINX, OPENSSL = shutil.which("nginx", path=PATHS), shutil.which("openssl", path=PATHS)
pytestmark = [
    pytest.mark.usefixtures("gpu"),
    pytest.mark.skipif(None in (NGINX, OPENSSL), reason="nginx or openssl is not installed"),
]

KEY = "a-key"
WITH_KEY = {"Authorization": f"Bearer {KEY}"}
NAMES = ("one", "two")
LONG = {"prompt": "The", "max_tokens": 3000, "temperature": 100, "top_k": 0, "ignore_eos": True, "stream": True}
MAIN = """
daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/vkprefill.conf;
}}
"""


class Proxy:
    """url: of its TLS side; plain_url: of the other; context: trusts its certificate."""

    def __init__(self, servers: list[ServerProcess], folder: Path) -> None:
        port, plain_port = _free_ports(2)
        self.url, self.plain_url = f"https://localhost:{port}", f"http://localhost:{plain_port}"
        certificate = ("-keyout", folder / "key.pem", "-out", folder / "cert.pem")
        command = [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", *certificate]
        subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
        self.context = ssl.create_default_context(cafile=folder / "cert.pem")
        changes = {
            "    listen [::]:80;\n": "",
            "    listen [::]:443 ssl http2;\n": "",
            "listen 80;": f"listen 127.0.0.1:{plain_port};",
            "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
            "llm.example.com;": "localhost;",
            "/etc/ssl/llm.example.com.pem": str(folder / "cert.pem"),
            "/etc/ssl/llm.example.com.key": str(folder / "key.pem"),
            **{f"127.0.0.1:808{n}": f"127.0.0.1:{server.port}" for n, server in enumerate(servers, 1)},
        }
        text = (ROOT / "deploy" / "nginx.conf").read_text()
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        (folder / "vkprefill.conf").write_text(text)
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
        command = [NGINX, "-e", "stderr", "-p", folder, "-c", folder / "nginx.conf"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.client = httpx.Client(base_url=self.url, verify=self.context, headers=WITH_KEY, timeout=PATIENCE_S)
        servers[0].wait_for(lambda: self.process.poll() is not None or _listens(port))
        assert self.process.poll() is None, self.process.stderr.read()

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.process.stderr.close()

    def who(self, session: str) -> str:
        """The name of the server that answers in this session."""
        body = {"prompt": "a", "max_tokens": 1}
        answer = self.client.post("/v1/completions", json=body, headers={"X-Session-Id": session})
        assert answer.status_code == 200, answer.text
        return answer.json()["model"]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionError:
        return False
    return True


@pytest.fixture(scope="module")
def servers(tmp_path_factory) -> Iterator[list[ServerProcess]]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"# of the tests\n{KEY}\n")
    options = ("-c", 4096, "--no-specprefill", "--api-key-file", keys, "--log-format", "json", "--drain-timeout", 0)
    started = [ServerProcess(*options, "--alias", name, wait=False) for name in NAMES]
    try:
        for one in started:
            one.client.headers.update(WITH_KEY)
            one.wait_until_ready()
        yield started
    finally:
        for one in started:
            one.stop()


@pytest.fixture(scope="module")
def proxy(servers, tmp_path_factory) -> Iterator[Proxy]:
    started = Proxy(servers, tmp_path_factory.mktemp("proxy"))
    yield started
    started.stop()


def test_an_answer_over_tls(proxy, servers):
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=KEY, http_client=httpx.Client(verify=proxy.context))
    answer = client.chat.completions.create(model="any", messages=[{"role": "user", "content": "a"}], max_tokens=2)
    assert answer.model in NAMES and answer.usage.completion_tokens >= 1
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_plain_http_is_sent_on(proxy):
    answer = httpx.get(f"{proxy.plain_url}/v1/models?x=1")
    assert (answer.status_code, answer.headers["location"]) == (
        308,
        f"{proxy.plain_url}/v1/models?x=1".replace("http:", "https:"),
    )


def test_a_session_stays_with_its_server(proxy):
    found = {session: proxy.who(session) for session in map(str, range(20))}
    assert set(found.values()) == set(NAMES), "sessions are spread"
    assert {session: proxy.who(session) for session in found} == found
    usual = {proxy.client.get("/v1/models").json()["data"][0]["id"] for _ in range(6)}
    assert len(usual) == 1, "without a session, one client's requests"


def test_streams_come_as_they_are_made_and_end_with_their_client(proxy, servers):
    by_name = dict(zip(NAMES, servers, strict=True))
    with proxy.client.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        chunk = json.loads(next(line for line in lines if line.startswith("data: {"))[6:])
        server = by_name[chunk["model"]]
        assert server.metric("requests_processing") == 1, "the first event is here before the last is made"
        left = server.num_left()
    server.wait_for(lambda: server.num_left() == left + 1)
    server.wait_for(server.idle)


def test_bodies(proxy, servers):
    """The longest that a server takes passes; what is longer is refused in the server's words."""
    begin, end = b'{"prompt": "', b'"}'
    at_most = MAX_BODY_BYTES - len(begin + end)
    answer = proxy.client.post("/v1/completions", content=begin + b"x" * at_most + end)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    answer = proxy.client.post("/v1/completions", content=begin + b"x" * (at_most + 1) + end)
    assert answer.status_code == 413 and answer.headers["content-type"] == "application/json"
    (own,) = {one.client.post("/v1/completions", content=b"x" * (MAX_BODY_BYTES + 1)).text for one in servers}
    assert answer.text == own


def test_request_ids(proxy, servers):
    given = proxy.client.get("/v1/models", headers={"X-Request-Id": "of-the-client"}).headers["x-request-id"]
    made = proxy.client.get("/v1/models").headers["x-request-id"]
    assert given == "of-the-client" and len(made) == 32

    def logged() -> set[str]:
        return {json.loads(line).get("id") for server in servers for line in server.lines if line.startswith("{")}

    servers[0].wait_for(lambda: {given, made} <= logged())
    assert all(KEY not in server.stderr for server in servers)


def test_pages(proxy):
    """Its own, by the name that the browser knows, may use the API; others may not."""
    assert proxy.client.get("/").headers["content-type"].startswith("text/html")
    for origin, status in ((proxy.url, 200), ("https://elsewhere.example", 403)):
        answer = proxy.client.post("/tokenize", json={"content": "a"}, headers={"Origin": origin})
        assert answer.status_code == status, origin


def test_what_is_not_for_all(proxy):
    assert proxy.client.get("/metrics").status_code == proxy.client.get("/slots").status_code == 404
    assert httpx.get(f"{proxy.url}/health", verify=proxy.context).status_code == 200


def test_the_other_server_goes_on(proxy, servers):
    """After a server has ended its sessions are answered by the other. The last test: one server is gone then."""
    found = {session: proxy.who(session) for session in "abcdefghijkl"}
    servers[0].process.send_signal(signal.SIGTERM)
    assert servers[0].process.wait(PATIENCE_S) == 0
    assert {proxy.who(session) for session in found} == {"two"}
