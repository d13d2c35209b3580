"""Runs the server until a signal comes: the socket, the model's file, the engine, the application, the exit code."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vkprefill.errors import RequestError
from vkprefill.server.engine.client import EngineClient
from vkprefill.server.engine.jobs import EngineOptions, Ready
from vkprefill.server.http.access import access_for, is_loopback
from vkprefill.server.http.app import build_app
from vkprefill.server.http.completions import Service
from vkprefill.server.http.connections import BACKLOG, Limits, most_connections, server_config
from vkprefill.server.http.draining import DrainingServer
from vkprefill.server.http.metrics import Metrics
from vkprefill.server.http.text_work import TextWork
from vkprefill.server.protocol.prompts import PromptBuilder
from vkprefill.server.protocol.requests import Defaults


@dataclass(frozen=True)
class ServerOptions:
    """api_key, api_key_file, allowed_hosts, cors_origins: as in access_for; max_waiting: requests in the queue;
    timeout_s: of a request, 0 for none; body_timeout_s: of its body; engine_timeout_s: without a sign of life of the
    engine, 0 for no limit; drain_timeout_s: for answers in work when it stops; alias: the model's name."""

    engine: EngineOptions
    defaults: Defaults = field(default_factory=Defaults)
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    api_key_file: str | None = None
    allowed_hosts: Sequence[str] = ()
    cors_origins: Sequence[str] = ()
    alias: str | None = None
    max_waiting: int = 64
    timeout_s: float = 600.0
    engine_timeout_s: float = 600.0
    body_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0


def serve(options: ServerOptions, notice: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, then finish the answers in work; returns the exit code.

    notice: takes lines for the user, among them the address. Raises RequestError for an address that cannot be
    used, and what reading the model's file raises.
    """
    prompts = PromptBuilder(options.engine.model)
    listener = _listen(options.host, options.port)
    host, port = listener.getsockname()[:2]
    access = access_for(
        host,
        allowed_hosts=options.allowed_hosts,
        cors_origins=options.cors_origins,
        api_key=options.api_key,
        api_key_file=options.api_key_file,
    )

    def ready(engine: Ready) -> None:
        notice(
            f"ready: {prompts.config.name} on {engine.device}, context {engine.max_context} tokens, shared by all "
            f"conversations; the file has {prompts.config.max_position_embeddings}"
        )

    def stop(*_: object) -> None:
        server.should_exit = True

    client = EngineClient(
        options.engine,
        max_waiting=options.max_waiting,
        on_ready=ready,
        on_failure=stop,
        hung_after_s=options.engine_timeout_s,
    )
    service = Service(
        prompts,
        client,
        Metrics(),
        options.defaults,
        options.alias or prompts.path.stem,
        TextWork(options.body_timeout_s),
        options.timeout_s,
    )
    app = build_app(service, access=access)
    server = DrainingServer(server_config(app, Limits(most_connections())), options.drain_timeout_s, client.stop)
    if access.keys is None and not is_loopback(host):
        notice("warning: no --api-key or --api-key-file: whoever reaches this machine may use the server")
    notice(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}")
    # uvicorn takes the signals while it runs; when it is done, it raises those that stopped it once more
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return client.exit_code or 0


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. RequestError if the address is in use, unknown or not allowed."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = (
            os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else str(error)
        )
        raise RequestError(f"{host} port {port}: cannot listen: {reason}") from None
