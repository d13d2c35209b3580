"""A request's body as JSON, and values as errors show them."""

from __future__ import annotations

from vkprefill.display import quoted
from vkprefill.errors import RequestError
from vkprefill.server.api_error import ApiError
from vkprefill.text.strict_json import loads

NAMES = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}


def parse_json(raw: bytes) -> dict[str, object]:
    """The object of a request's body. ApiError unless it is strict JSON in UTF-8; a byte order mark is passed over."""
    try:
        value = loads(raw.decode().removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        raise ApiError(400, f"body: byte {error.start} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"body: not JSON: {error or 'nested too deeply'}") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"body: found {kind_of(value)}, wanted an object")
    return value


def kind_of(value: object) -> str:
    """What a JSON value is, for an error."""
    return "null" if value is None else NAMES.get(type(value), type(value).__name__)


def shown(value: object) -> str:
    """A value as an error shows it: lists and objects by their kind, text in quotes."""
    if value == "":
        return "nothing"
    return kind_of(value) if value is None or isinstance(value, list | dict) else quoted(value)


def as_api_error(error: RequestError, param: str | None) -> ApiError:
    """The same message, as an error of the request's field `param`."""
    return ApiError(400, str(error), param=param)
