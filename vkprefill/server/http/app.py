"""The routes, as a Starlette application."""

from __future__ import annotations

import importlib.metadata
import mimetypes
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.server.api_error import ApiError, bad_request
from vkprefill.server.engine.jobs import CANCELLED
from vkprefill.server.engine.prompt_details import text_or_bytes
from vkprefill.server.http.access import Access, middleware
from vkprefill.server.http.completions import Completion, ForeignApi, Service
from vkprefill.server.http.model_info import model_object, props, tokenizer_info
from vkprefill.server.http.request_log import RequestLog
from vkprefill.server.http.slots import slot_metrics, slot_objects
from vkprefill.server.http.wire import ClientLeft, JsonResponse, error_response
from vkprefill.server.protocol import anthropic, responses, responses_answer
from vkprefill.server.protocol.fields import as_api_error, parse_json
from vkprefill.server.protocol.kinds import Json, check
from vkprefill.server.protocol.openapi import openapi_document
from vkprefill.server.protocol.requests import parse_conversation
from vkprefill.server.protocol.tables import DETOKENIZE, TOKENIZE

STARTS = ("/v1", "")  # of paths: some clients are given the one, some the other
VERSION = importlib.metadata.version("vkprefill")
PUBLIC_PATHS = ("/health", "/openapi.json")  # and the page, which asks for the key
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify",  # which alone may make nodes of HTML
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer some browsers make the page's own origin null
}
NO_PAGE = b"vkprefill serves an OpenAI-compatible API at /v1; its description is at /openapi.json\n"


def build_app(service: Service, *, access: Access | None = None) -> RequestLog:
    """The application; its lifespan starts and stops the engine. access: None for anyone."""
    client = service.client

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        client.start()
        try:
            yield
        finally:
            await client.stop()

    async def health(_: Request) -> Response:
        if client.ready is not None:
            return JsonResponse({"status": "ok", "device": client.ready.device})
        status = "failed" if client.exit_code is not None else "device lost" if client.lost else "loading"
        error = ApiError(503, client.stage, retry_after=5)
        return JsonResponse({"status": status, "stage": client.stage, **error.body()}, 503, error.headers())

    async def models(_: Request) -> Response:
        return JsonResponse({"object": "list", "data": [model_object(service)]})

    async def model(request: Request) -> Response:
        if request.path_params["name"] != service.model_name:
            raise ApiError(404, f"model: this server has {service.model_name}", param="model", code="model_not_found")
        return JsonResponse(model_object(service))

    async def get_props(_: Request) -> Response:
        return JsonResponse(props(service, VERSION))

    async def get_tokenizer_info(_: Request) -> Response:
        return JsonResponse(tokenizer_info(service))

    async def metrics(_: Request) -> Response:
        now = {
            "requests_processing": client.running,
            "requests_deferred": client.waiting,
            "context_tokens": client.ready.max_context if client.ready else 0,
            "ready": int(client.ready is not None),
        }
        text = service.metrics.text(now) + slot_metrics(client)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def slots(request: Request) -> Response:
        wish, found = request.query_params.get("fail_on_no_slot", "0"), slot_objects(client)
        if wish not in ("0", "1"):
            raise bad_request("fail_on_no_slot", f"found {printable(wish)}, wanted 0 or 1")
        if wish == "1" and all(one["is_processing"] for one in found):
            raise ApiError(503, "no slot is free", retry_after=1)
        return JsonResponse(found)

    async def openapi(_: Request) -> Response:
        return JsonResponse(openapi_document(VERSION))

    async def chat(request: Request) -> Completion:
        return Completion(service, request, chat=True)

    async def completion(request: Request) -> Completion:
        return Completion(service, request, chat=False)

    messages_api = ForeignApi(
        lambda body: (anthropic.as_chat(body), partial(anthropic.MessagesAnswer, service.model_name)),
        anthropic.error_body,
        anthropic.error_body,
    )
    responses_api = ForeignApi(_responses(service), ApiError.body, responses_answer.error_event)

    async def messages(request: Request) -> Completion:
        return Completion(service, request, chat=True, api=messages_api)

    async def respond(request: Request) -> Completion:
        return Completion(service, request, chat=True, api=responses_api)

    async def count_tokens(request: Request) -> Response:
        def count(raw: bytes) -> Response:
            try:
                conversation = parse_conversation(anthropic.as_chat(parse_json(raw), count=True), service.defaults)
                prompt = service.prompts.chat(conversation, sys.maxsize)
            except RequestError as error:
                raise as_api_error(error, "messages") from None
            return JsonResponse({"input_tokens": len(prompt.token_ids)})

        return await service.text.on_body(request.headers, request.receive, count)

    def on_text(field: str, work: Callable[[Json], Json]) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that needs no GPU: JSON in, JSON out, in a thread. field: of the body, that holds the text."""

        def answer(raw: bytes) -> Response:
            try:
                return JsonResponse(work(parse_json(raw)))
            except RequestError as error:
                raise as_api_error(error, field) from None

        async def endpoint(request: Request) -> Response:
            return await service.text.on_body(request.headers, request.receive, answer)

        return endpoint

    def tokenize(body: Json) -> Json:
        asked = check(TOKENIZE, body)
        texts = [asked[name] for name in ("content", "prompt") if name in asked]
        if len(texts) != 1:
            raise bad_request(
                "content", "found one beside prompt, wanted one of them" if texts else "missing, wanted text"
            )
        ids = service.prompts.encode(
            texts[0],
            add_special=asked.get("add_special", asked.get("add_special_tokens", False)),
            parse_special=asked.get("parse_special", True),
        )
        if not asked.get("with_pieces", False):
            return {"tokens": ids}
        token_bytes = service.prompts.tokenizer.token_bytes
        pieces = {token_id: {"id": token_id, "piece": text_or_bytes(token_bytes(token_id))} for token_id in set(ids)}
        return {"tokens": [pieces[token_id] for token_id in ids]}

    def detokenize(body: Json) -> Json:
        text = service.prompts.tokenizer.decode(check(DETOKENIZE, body)["tokens"])
        return {"content": text, "prompt": text}  # llama-server's name and vLLM's

    def apply_template(body: Json) -> Json:
        return {"prompt": service.prompts.chat_text(parse_conversation(body, service.defaults))}

    routes = [
        Route("/health", health),
        *(Route(f"{start}/models", models) for start in STARTS),
        *(Route(f"{start}/models/{{name:path}}", model) for start in STARTS),
        Route("/props", get_props),
        Route("/tokenizer_info", get_tokenizer_info),
        Route("/metrics", metrics),
        Route("/slots", slots),
        Route("/openapi.json", openapi),
        *(Route(f"{start}/chat/completions", chat, methods=["POST"]) for start in STARTS),
        *(Route(f"{start}/completions", completion, methods=["POST"]) for start in STARTS),
        *(Route(f"{start}/responses", respond, methods=["POST"]) for start in STARTS),
        *(Route(f"{start}/messages", messages, methods=["POST"]) for start in STARTS),
        *(Route(f"{start}/messages/count_tokens", count_tokens, methods=["POST"]) for start in STARTS),
        Route("/tokenize", on_text("content", tokenize), methods=["POST"]),
        Route("/detokenize", on_text("tokens", detokenize), methods=["POST"]),
        Route("/apply-template", on_text("messages", apply_template), methods=["POST"]),
    ]
    page = _page_routes()
    public = (*PUBLIC_PATHS, *(route.path for route in page))
    handlers = {ApiError: _api_error, HTTPException: _http_error, ClientLeft: _client_left, Exception: _internal_error}
    app = Starlette(
        routes=[*routes, *page],
        middleware=middleware(access or Access(), public),
        exception_handlers=handlers,
        lifespan=lifespan,
    )
    return RequestLog(app)


def _responses(service: Service) -> Callable[[Json], tuple[Json, Callable[[int], responses_answer.ResponsesAnswer]]]:
    """Reads bodies of /v1/responses, and remembers what was answered."""
    remembered = responses.Remembered()

    def count(text: str) -> int:
        return len(service.prompts.encode(text, add_special=False, parse_special=False))

    def read(body: Json) -> tuple[Json, Callable[[int], responses_answer.ResponsesAnswer]]:
        chat, asked, messages = responses.as_chat(body, remembered)
        answer = responses_answer.ResponsesAnswer(service.model_name, asked, messages, remembered, count)
        return chat, lambda _: answer

    return read


def _page_routes() -> list[Route]:
    """The files of vkprefill/web, read once: no path of a request is ever opened."""

    def route(path: str, content: bytes, kind: str) -> Route:
        async def endpoint(_: Request) -> Response:
            return Response(content, media_type=kind, headers=PAGE_HEADERS)

        return Route(path, endpoint)

    folder = Path(str(files("vkprefill") / "web"))
    paths = [path for path in folder.rglob("*") if path.is_file()]
    found = {f"/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in paths}
    index = found.pop("/index.html", None)
    first = route("/", NO_PAGE, "text/plain") if index is None else route("/", index, "text/html")
    kinds = {path: mimetypes.guess_type(path)[0] or "application/octet-stream" for path in found}
    return [first, *(route(path, content, kinds[path]) for path, content in found.items())]


def _api_error(request: Request, error: ApiError) -> Response:
    return error_response(error, request.url.path)


def _http_error(request: Request, error: HTTPException) -> Response:
    what = {404: f"no such path: {request.url.path}", 405: f"{request.method} is not for this path"}.get(
        error.status_code, error.detail
    )
    response = error_response(ApiError(error.status_code, what), request.url.path)
    response.headers.update(error.headers or {})
    return response


def _client_left(_: Request, __: ClientLeft) -> Response:
    return Response(status_code=CANCELLED)  # to nobody


def _internal_error(request: Request, _: Exception) -> Response:
    return error_response(ApiError(500, "internal error; the server's log has more"), request.url.path)
