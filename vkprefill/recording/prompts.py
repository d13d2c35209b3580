"""A file of prompts, one JSON object a line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vkprefill.display import printable, quoted
from vkprefill.engine.outline import Outline
from vkprefill.engine.token_input import checked_ids
from vkprefill.errors import RequestError
from vkprefill.text.strict_json import loads


@dataclass(frozen=True)
class Prompt:
    """id: the line's, or its number, from 1."""

    id: str
    token_ids: tuple[int, ...]


def read_prompts(path: Path, model: Outline) -> tuple[list[Prompt], bytes]:
    """(prompts in order, the file's bytes). A line has `prompt`, text as it stands, or `token_ids`, and may have `id`.
    RequestError, naming the line, for others.
    """
    try:
        content = path.read_bytes()
        lines = content.decode().splitlines()
    except OSError as error:
        raise RequestError(f"{printable(path)}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RequestError(f"{printable(path)}: is not UTF-8") from None
    prompts, known = [], set()
    for number, line in enumerate(lines, 1):
        if line.strip():
            prompt = _parse(line, f"{printable(path)}: line {number}", str(number), model)
            if prompt.id in known:
                raise RequestError(f"{printable(path)}: line {number}: id {quoted(prompt.id)} is another line's too")
            known.add(prompt.id)
            prompts.append(prompt)
    if not prompts:
        raise RequestError(f"{printable(path)}: no prompts, wanted a JSON object on each line")
    return prompts, content


def _parse(line: str, where: str, number: str, model: Outline) -> Prompt:
    try:
        value = loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where}: not JSON: {error}") from None
    if not isinstance(value, dict) or ("prompt" in value) == ("token_ids" in value):
        raise RequestError(f"{where}: wanted an object with either prompt or token_ids")
    if unknown := sorted(set(value) - {"prompt", "token_ids", "id"}):
        raise RequestError(f"{where}: {printable(unknown[0])} is not known, wanted prompt or token_ids, and id")
    name, text = value.get("id", number), value.get("prompt")
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise RequestError(f"{where}: id: found {quoted(name)}, wanted text or a whole number")
    if text is not None and not isinstance(text, str) or text is None and not isinstance(value.get("token_ids"), list):
        raise RequestError(f"{where}: wanted text as prompt, or a list of token_ids")
    try:
        ids = model.tokenizer.encode(text) if text is not None else value["token_ids"]
        return Prompt(str(name), tuple(checked_ids(ids, model.config.vocab_size).tolist()))
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from None
