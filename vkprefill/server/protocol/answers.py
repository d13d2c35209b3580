"""A job's events as the JSON of OpenAI's API: chunks of a stream, or one answer with the same fields."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from os.path import commonprefix

from vkprefill.server.engine.jobs import Done, Piece, Progress, Queued
from vkprefill.text.answer_text import AnswerText, Delta
from vkprefill.text.tool_calls import ToolCall

Json = dict[str, object]


class Series:
    """What the answers to one request have in common, one after another: an id, numbers, the sum of their usage."""

    def __init__(self, prompts: int = 1, each: int = 1) -> None:
        """prompts: how many; each: answers to each of them."""
        self.key, self.created = secrets.token_hex(12), int(time.time())
        self._count, self._each, self._begun = prompts * each, each, 0
        self._usages: list[Json] = []

    def begin(self) -> int:
        """The number of the next answer."""
        self._begun += 1
        return self._begun - 1

    def end(self, used: Json) -> Json | None:
        """An answer ended that used this: what all used, if it was the last."""
        self._usages.append(used)
        return self._total() if len(self._usages) == self._count else None

    def _total(self) -> Json:
        """A prompt counts once, with what its first answer took from the cache."""
        firsts = self._usages[:: self._each]
        prompt = sum(used["prompt_tokens"] for used in firsts)
        predicted = sum(used["completion_tokens"] for used in self._usages)
        cached = sum(used["prompt_tokens_details"]["cached_tokens"] for used in firsts)
        return _usage(prompt, cached, predicted)


class _Answer:
    """What chat and plain completions have in common. Feed it the events in order."""

    prefix = object_name = chunk_name = ""

    def __init__(self, model: str, *, include_usage: bool = False, series: Series | None = None) -> None:
        """series: that it is one of; None: it is alone."""
        self._series = Series() if series is None else series
        self._index = self._series.begin()
        self.id = f"{self.prefix}-{self._series.key}"
        self.created = self._series.created
        self._model = model
        self._include_usage = include_usage

    def _head(self, object_name: str) -> Json:
        return {"id": self.id, "object": object_name, "created": self.created, "model": self._model}

    def progress_chunk(self, event: Progress) -> Json:
        """llama-server's prompt_progress, with the stage and the turns beside."""
        done, total = event.cached + event.done, event.cached + event.total
        progress = {"total": total, "cache": event.cached, "processed": done, "time_ms": event.ms, "stage": event.stage}
        progress |= {"turns": event.turns, "share": event.share, "wait_ms": event.wait_ms}
        return {**self._head(self.chunk_name), "choices": [], "prompt_progress": progress}

    def queue_chunk(self, event: Queued) -> Json:
        """The same while the request waits."""
        progress = {"total": event.total, "cache": 0, "processed": 0, "time_ms": event.ms, "stage": "queue"}
        progress["queue_position"] = event.ahead
        return {**self._head(self.chunk_name), "choices": [], "prompt_progress": progress}

    def revision_chunk(self, piece: Piece) -> Json:
        """Take a piece that replaces what came after some of the text: `revised_from`, characters of the answer's text
        that stay, and `text`, what follows them now.
        """
        raise NotImplementedError

    def _revision(self, before: str, now: str) -> Json:
        stays = len(commonprefix([before, now]))
        head = {**self._head(self.chunk_name), "choices": [], "index": self._index}
        return {**head, "revised_from": stays, "text": now[stays:]}

    def end_chunks(self, done: Done) -> Iterator[Json]:
        """The last chunks: what is left of the text, the finish reason with timings; after the last answer of a series
        the usage of all.
        """
        yield from self._rest()
        tail = _tail(done)
        last = {**self._head(self.chunk_name), "choices": [self._last_choice(done)], **tail}
        used = self._series.end(usage(done))
        if used is None:
            yield last
        elif not self._include_usage:
            yield {**last, "usage": used}
        else:
            yield last
            yield {**self._head(self.chunk_name), "choices": [], "usage": used, **tail}

    def whole(self, done: Done) -> Json:
        """The answer that is not streamed."""
        return {
            **self._head(self.object_name),
            "choices": [self._whole_choice(done)],
            "usage": self._series.end(usage(done)) or usage(done),
            **_tail(done),
        }

    def _rest(self) -> Iterator[Json]:
        return iter(())

    def _last_choice(self, done: Done) -> Json:
        raise NotImplementedError

    def _whole_choice(self, done: Done) -> Json:
        raise NotImplementedError


class ChatAnswer(_Answer):
    """chat.completion and chat.completion.chunk."""

    prefix, object_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        model: str,
        text: AnswerText,
        *,
        logprobs: bool,
        include_usage: bool = False,
        series: Series | None = None,
    ) -> None:
        super().__init__(model, include_usage=include_usage, series=series)
        self._text = text
        self._raw = ""  # all text so far
        self._with_logprobs = logprobs
        self._logprobs: list[Json] = []  # of the whole answer
        self._new_logprobs: list[Json] = []  # since the last chunk
        self._deltas: list[Delta] = []

    def first_chunk(self) -> Json:
        return self._chunk({"role": "assistant", "content": ""})

    def chunks(self, piece: Piece) -> Iterator[Json]:
        """What a piece of text makes clear; may be nothing yet."""
        self._logprobs += piece.logprobs
        self._new_logprobs += piece.logprobs
        self._raw += piece.text
        return self._take(self._text.push(piece.text))

    def revision_chunk(self, piece: Piece) -> Json:
        """The text is the message's content; `reasoning_content`, `tool_calls` are there, whole, where they differ."""
        before, reasoning, calls = self._message()
        self._raw = self._raw[: piece.revised_from] + piece.text
        self._text = self._text.anew()
        self._deltas = self._text.push(self._raw)
        content, new_reasoning, new_calls = self._message()
        chunk = self._revision(before, content)
        if new_reasoning != reasoning:
            chunk["reasoning_content"] = new_reasoning
        if new_calls != calls:
            chunk["tool_calls"] = [call.as_dict() for call in new_calls]
        return chunk

    def _message(self) -> tuple[str, str, list[ToolCall]]:
        """Content, reasoning and calls so far."""
        content = "".join(d.content for d in self._deltas)
        reasoning = "".join(d.reasoning for d in self._deltas)
        return content, reasoning, [d.call for d in self._deltas if d.call is not None]

    def _rest(self) -> Iterator[Json]:
        yield from self._take(self._text.finish())
        if self._new_logprobs:
            yield self._chunk({})

    def _take(self, deltas: list[Delta]) -> Iterator[Json]:
        for delta in deltas:
            self._deltas.append(delta)
            yield self._chunk(self._delta(delta))

    def _delta(self, delta: Delta) -> Json:
        if delta.call is not None:
            return {"tool_calls": [{"index": self._text.num_calls - 1, **delta.call.as_dict()}]}
        return {"content": delta.content} if delta.content else {"reasoning_content": delta.reasoning}

    def _chunk(self, delta: Json) -> Json:
        choice: Json = {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}
        if self._new_logprobs:
            choice["logprobs"], self._new_logprobs = {"content": self._new_logprobs, "refusal": None}, []
        return {**self._head(self.chunk_name), "choices": [choice]}

    def _finish_reason(self, done: Done) -> str:
        return "tool_calls" if self._text.num_calls and done.finish_reason == "stop" else done.finish_reason

    def _last_choice(self, done: Done) -> Json:
        return {"index": self._index, "delta": {}, "logprobs": None, "finish_reason": self._finish_reason(done)}

    def _whole_choice(self, done: Done) -> Json:
        self._deltas += self._text.finish()
        content, reasoning, calls = self._message()
        message: Json = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [call.as_dict() for call in calls]
        logprobs = {"content": self._logprobs, "refusal": None} if self._with_logprobs else None
        reason = self._finish_reason(done)
        return {"index": self._index, "message": message, "logprobs": logprobs, "finish_reason": reason}


class CompletionAnswer(_Answer):
    """text_completion, whole or in chunks."""

    prefix, object_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        model: str,
        *,
        logprobs: bool,
        include_usage: bool = False,
        series: Series | None = None,
        echoed: str = "",
    ) -> None:
        """echoed: text of the prompt that comes before the answer."""
        super().__init__(model, include_usage=include_usage, series=series)
        self._with_logprobs = logprobs
        self._echoed, self._text = echoed, ""
        self._logprobs: list[Json] = []
        self._offset = 0  # of the next token in the text
        self._shown = False  # what is echoed

    def chunks(self, piece: Piece) -> Iterator[Json]:
        self._text += piece.text
        self._logprobs += piece.logprobs
        text, self._shown = (piece.text if self._shown else self._echoed + piece.text), True
        yield {**self._head(self.chunk_name), "choices": [self._choice(text, self._legacy(piece.logprobs), None)]}

    def _rest(self) -> Iterator[Json]:
        """What is echoed before an answer without a token."""
        if self._echoed and not self._shown:
            yield {**self._head(self.chunk_name), "choices": [self._choice(self._echoed, None, None)]}

    def revision_chunk(self, piece: Piece) -> Json:
        before = self._text
        self._text = before[: piece.revised_from] + piece.text
        return self._revision(before, self._text)

    def _last_choice(self, done: Done) -> Json:
        return self._choice("", None, done.finish_reason)

    def _whole_choice(self, done: Done) -> Json:
        self._offset = 0
        return self._choice(self._echoed + self._text, self._legacy(self._logprobs), done.finish_reason)

    def _choice(self, text: str, logprobs: Json | None, reason: str | None) -> Json:
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _legacy(self, entries: Sequence[Json]) -> Json | None:
        """Log-probabilities in the form of this older endpoint."""
        if not self._with_logprobs:
            return None
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry["token"])
        return {
            "tokens": [e["token"] for e in entries],
            "token_logprobs": [e["logprob"] for e in entries],
            "text_offset": offsets,
            "top_logprobs": [_by_token(e["top_logprobs"]) for e in entries],
        }


def _by_token(top: Sequence[Json] | None) -> Json | None:
    """None for the first token of a prompt, before which there is nothing."""
    return None if top is None else {one["token"]: one["logprob"] for one in top}


def joined_answers(wholes: Sequence[Json]) -> Json:
    """The whole answers of a series as one with several choices; the last has the usage of all."""
    return {**wholes[-1], "choices": [choice for whole in wholes for choice in whole["choices"]]}


def _tail(done: Done) -> Json:
    """What is ours in an answer."""
    tail = {"timings": done.timings, "specprefill": done.specprefill}
    return tail if done.layer_map is None else {**tail, "layer_map": done.layer_map}


def ours_of(chat: Json) -> Json:
    """Of an answer, or its last chunk, what answers by other protocols have of ours."""
    return {name: chat[name] for name in ("timings", "specprefill")}


def calls_of(message: Json) -> list[Json]:
    """Of an answer's message, or a chunk's delta."""
    return message.get("tool_calls", [])


def usage(done: Done) -> Json:
    """prompt_tokens: of the whole prompt, those left out by a sparse prefill too; cached_tokens: of them, those no
    prefill was needed for."""
    return _usage(done.specprefill["prompt_n"], done.specprefill["cached_n"], done.timings["predicted_n"])


def _usage(prompt: int, cached: int, predicted: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": predicted,
        "total_tokens": prompt + predicted,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
