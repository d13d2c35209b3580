"""The endpoints that answer prompts, streamed or whole. A job ends when its client leaves."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import anyio
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from vkprefill.errors import ContextLengthError, RequestError
from vkprefill.generation.options import AnswerOptions, with_grammar
from vkprefill.server.api_error import ApiError
from vkprefill.server.engine.client import EngineClient
from vkprefill.server.engine.jobs import CANCELLED, TOO_LONG, Done, Job, JobEvent, Piece, Progress, Queued
from vkprefill.server.http.metrics import Metrics
from vkprefill.server.http.request_log import KEY, RequestRecord
from vkprefill.server.http.text_work import TextWork
from vkprefill.server.http.wire import (
    ClientLeft,
    EventStream,
    JsonResponse,
    error_response,
    until_disconnect,
)
from vkprefill.server.protocol.answers import ChatAnswer, CompletionAnswer, Json, Series, joined_answers
from vkprefill.server.protocol.fields import as_api_error, parse_json
from vkprefill.server.protocol.prompts import Prompt, PromptBuilder
from vkprefill.server.protocol.requests import (
    AnswerRequest,
    ChatRequest,
    CompletionRequest,
    Defaults,
    of_setting,
    parse_chat,
    parse_completion,
)
from vkprefill.specprefill.plan import SparseRequest
from vkprefill.specprefill.settings import SELF
from vkprefill.text.answer_text import AnswerText

AT_ONCE_S = 0.5  # that a stream waits for the engine's first word


@dataclass(frozen=True)
class Service:
    """What the endpoints share. model_name: as answers call it; timeout_s: of a whole request; ping_s: a stream that
    has been silent for so long gets a comment, as proxies end silent connections."""

    prompts: PromptBuilder
    client: EngineClient
    metrics: Metrics
    defaults: Defaults
    model_name: str
    text: TextWork
    timeout_s: float
    ping_s: float = 15.0


class Foreign(Protocol):
    """An answer in the form of another API, made of a chat completion or its chunks."""

    def whole(self, chat: Json, done: Done) -> Json: ...

    def begin(self) -> Iterator[Json]: ...

    def chunk(self, chunk: Json) -> Iterator[Json]: ...

    def end(self, last: Json, done: Done) -> Iterator[Json]: ...


@dataclass(frozen=True)
class ForeignApi:
    """Another API over chat. read: its body -> that of a chat completion, and what makes the answer, given the prompt's
    number of tokens; error: an error in its form; event: the same in a stream. Events are named by their type.
    """

    read: Callable[[Json], tuple[Json, Callable[[int], Foreign]]]
    error: Callable[[ApiError], Json]
    event: Callable[[ApiError], Json]


class Completion:
    """One request to an endpoint of completions, as an ASGI response. chat: messages rather than a prompt; api: not
    OpenAI's."""

    def __init__(self, service: Service, request: Request, *, chat: bool, api: ForeignApi | None = None) -> None:
        self._service = service
        self._request = request
        self._chat = chat
        self._api = api
        self._new_foreign: Callable[[int], Foreign] | None = None
        self._foreign: Foreign | None = None
        self._record: RequestRecord = request.scope[KEY]
        self._field = "messages" if chat else "prompt"  # of the body, that holds the prompt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, stream, status = self._service, EventStream(send), 200
        try:
            whole = await self._answer(receive, stream)
            if whole is not None:
                await JsonResponse(whole)(scope, receive, send)
        except ClientLeft:
            status = CANCELLED
        except ApiError as failed:
            error = of_setting(failed)
            status = error.status
            if stream.started:
                await self._emit(stream, error.body() if self._api is None else self._api.event(error))
                await stream.end(mark=self._api is None)
            elif self._api is not None:
                await JsonResponse(self._api.error(error), error.status, error.headers())(scope, receive, send)
            else:
                await error_response(error, scope["path"])(scope, receive, send)
        except Exception:
            status = 500
            raise
        finally:
            self._record.status = status
            service.metrics.responded(self._record)

    async def _answer(self, receive: Receive, stream: EventStream) -> Json | None:
        """The whole answer, or None after it was streamed."""
        service = self._service
        try:
            with anyio.fail_after(None) as limit:  # a body has a limit of its own

                def begin() -> None:
                    limit.deadline = anyio.current_time() + (service.timeout_s or math.inf)

                request, prompts = await service.text.on_body(self._request.headers, receive, self._read, begin)
                return await until_disconnect(receive, lambda: self._run(request, prompts, stream))
        except TimeoutError:
            raise ApiError(504, f"stopped: not complete after {service.timeout_s:g} s") from None

    async def _run(self, request: AnswerRequest, prompts: list[Prompt], stream: EventStream) -> Json | None:
        """One answer, or several to each of the prompts, one after another."""
        series, wholes = Series(len(prompts), request.n), []
        for prompt in prompts:
            for number in range(request.n):
                one = _with_own_seed(request, number)
                answer = self._new_answer(one, prompt, series)
                wholes.append(await self._run_one(one, prompt, answer, stream))
        if request.stream:
            await stream.end(mark=self._api is None)
            return None
        return wholes[0] if len(wholes) == 1 else joined_answers(wholes)

    async def _run_one(
        self, request: AnswerRequest, prompt: Prompt, answer: ChatAnswer | CompletionAnswer, stream: EventStream
    ) -> Json | None:
        if self._new_foreign is not None:
            self._foreign = self._new_foreign(len(prompt.token_ids))
        async with contextlib.aclosing(self._service.client.run(_job(request, prompt))) as run:
            try:
                if not request.stream:
                    return await self._whole(run, answer)
                await self._stream(run, request, answer, stream)
                return None
            finally:
                if run.waited_s is not None:
                    self._record.waited(run.waited_s)
                    self._service.metrics.waited(run.waited_s)

    def _note(self, event: JobEvent) -> None:
        """What an event says of the request, for those who run the server."""
        if isinstance(event, Piece) and event.text:
            self._record.first_token()
        elif isinstance(event, Done):
            self._record.answered(event)
            self._service.metrics.answered(event)

    async def _whole(self, events: AsyncIterator[JobEvent], answer: ChatAnswer | CompletionAnswer) -> Json:
        async for event in events:
            self._note(event)
            if isinstance(event, Piece):
                for _ in _piece_chunks(event, answer):
                    pass
            elif isinstance(event, Done):
                whole = answer.whole(event)
                return whole if self._foreign is None else self._foreign.whole(whole, event)
        raise AssertionError("a job's events end with Done")

    async def _stream(
        self,
        events: AsyncIterator[JobEvent],
        request: AnswerRequest,
        answer: ChatAnswer | CompletionAnswer,
        stream: EventStream,
    ) -> None:
        """Begins at once, while the job still waits or its prompt is read: what fails from here on is an event. What
        the engine refuses before it reads the prompt is no stream.
        """
        first = None
        with anyio.move_on_after(AT_ONCE_S):
            first = await anext(events)
        await stream.start()
        if self._foreign is not None:
            for begun in self._foreign.begin():
                await self._emit(stream, begun)
        elif isinstance(answer, ChatAnswer):
            await stream.event(answer.first_chunk())
        event, due = None, anyio.current_time() + self._service.ping_s
        while not isinstance(event, Done):
            event, first, chunks = first, None, []
            if event is None:
                with anyio.CancelScope(deadline=due):
                    event = await anext(events)
            if event is not None:
                self._note(event)
                chunks = list(self._translated(_chunks(event, request, answer), event))
            for chunk in chunks:
                await self._emit(stream, chunk)
            silent = not chunks and anyio.current_time() >= due  # events that say nothing to the client do not count
            if silent:
                await stream.ping()
            if chunks or silent:
                due = anyio.current_time() + self._service.ping_s

    def _translated(self, chunks: Iterator[Json], event: JobEvent) -> Iterator[Json]:
        """In the form of the API that was asked."""
        last = None
        for last in chunks:
            yield from [last] if self._foreign is None else self._foreign.chunk(last)
        if self._foreign is not None and isinstance(event, Done):
            yield from self._foreign.end(last, event)

    async def _emit(self, stream: EventStream, event: Json) -> None:
        await stream.event(event, None if self._api is None else event["type"])

    def _read(self, raw: bytes) -> tuple[AnswerRequest, list[Prompt]]:
        """Check the body and make its prompts; for a thread, as templates and long prompts take time."""
        service, body = self._service, parse_json(raw)
        if self._api is not None:
            body, self._new_foreign = self._api.read(body)
        request = parse_chat(body, service.defaults) if self._chat else parse_completion(body, service.defaults)
        try:
            if isinstance(request, ChatRequest):
                return request, [service.prompts.chat(request.conversation, self._room(request))]
            room = self._room(request)
            return request, [service.prompts.completion(prompt, room) for prompt in request.prompts]
        except ContextLengthError as error:
            raise ApiError(400, str(error), param=self._field, code=TOO_LONG) from None
        except RequestError as error:
            raise as_api_error(error, self._field) from None

    def _room(self, request: AnswerRequest) -> int:
        """Tokens of the context. A prompt that a sparse prefill may shorten is bounded by the model only; where the
        model scores itself, its early layers need all, and so does a check that is waited for.
        """
        service, spec = self._service, request.specprefill
        ready, config = service.client.ready, spec.settings if spec.enabled and service.defaults.has_draft else None
        shortens = config is not None and config.scorer != SELF and config.check != "wait"
        return service.prompts.config.max_position_embeddings if shortens or ready is None else ready.max_context

    def _new_answer(self, request: AnswerRequest, prompt: Prompt, series: Series) -> ChatAnswer | CompletionAnswer:
        common = {
            "logprobs": request.num_logprobs is not None,
            "include_usage": request.include_usage,
            "series": series,
        }
        if isinstance(request, ChatRequest):
            text = AnswerText(
                thinking=prompt.thinking,
                tools=request.conversation.tools,
                continued=prompt.continued,
                split=request.split_reasoning,
            )
            return ChatAnswer(self._service.model_name, text, **common)
        echoed = self._service.prompts.tokenizer.decode(prompt.token_ids) if request.echo else ""
        return CompletionAnswer(self._service.model_name, echoed=echoed, **common)


def _job(request: AnswerRequest, prompt: Prompt) -> Job:
    spec = request.specprefill
    facts = with_grammar(prompt.facts, request.grammar)
    asked = SparseRequest(spec.enabled, spec.settings, spec.kept_ranges, facts, prompt.protected)
    return Job(
        0,
        tuple(prompt.token_ids),
        AnswerOptions(
            request.max_tokens,
            request.sampling,
            asked,
            prompt.mark_at,
            request.cache_prompt,
            request.decode,
            request.stop,
            whole=not request.stream,
            grammar=request.grammar,
            **request.ends,
        ),
        num_logprobs=request.num_logprobs,
        want_progress=request.return_progress and request.stream,
        want_details=spec.details,
        want_map=request.layer_map,
        echo=isinstance(request, CompletionRequest) and request.echo,
    )


def _with_own_seed(request: AnswerRequest, number: int) -> AnswerRequest:
    """Answers to one prompt differ: where a seed is given, each has its own."""
    seed = request.sampling.seed
    if not number or seed is None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=(seed + number) % 2**64))


def _chunks(event: JobEvent, request: AnswerRequest, answer: ChatAnswer | CompletionAnswer) -> Iterator[Json]:
    if isinstance(event, Piece):
        yield from _piece_chunks(event, answer)
    elif isinstance(event, Done):
        yield from answer.end_chunks(event)
    elif isinstance(event, Progress | Queued) and request.return_progress:
        yield answer.progress_chunk(event) if isinstance(event, Progress) else answer.queue_chunk(event)


def _piece_chunks(piece: Piece, answer: ChatAnswer | CompletionAnswer) -> Iterator[Json]:
    if piece.revised_from is not None:
        yield answer.revision_chunk(piece)
        piece = replace(piece, text="", revised_from=None)
        if not piece.logprobs:
            return
    yield from answer.chunks(piece)
