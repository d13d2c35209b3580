"""The fields of a JSON object by type; a wrong one is an ApiError that says what was found and what was wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.server.api_error import ApiError, bad_request

NAMES = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}


def parse_json(raw: bytes) -> dict[str, object]:
    """The object of a request's body. ApiError unless it is strict JSON in UTF-8."""
    try:
        value = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"body: byte {error.start} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"body: not JSON: {error or 'nested too deeply'}") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"body: found {kind_of(value)}, wanted an object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def kind_of(value: object) -> str:
    """What a JSON value is, for an error."""
    return "null" if value is None else NAMES.get(type(value), type(value).__name__)


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def optional(body: Mapping[str, object], name: str, wanted: type, default: object = None) -> object:
    """The field, or the default where it is missing or null. `float` takes whole numbers too; whole numbers are not
    booleans."""
    value = body.get(name)
    if value is None:
        return default
    kinds = (int, float) if wanted is float else wanted
    if not isinstance(value, kinds) or isinstance(value, bool) and wanted is not bool:
        raise bad_request(name, f"found {shown(value)}, wanted {NAMES[wanted]}")
    return value


def required(body: Mapping[str, object], name: str, wanted: type) -> object:
    value = optional(body, name, wanted)
    if value is None:
        raise bad_request(name, f"missing, wanted {NAMES[wanted]}")
    return value


def whole(body: Mapping[str, object], name: str, least: int, greatest: int) -> int | None:
    """A whole number in a range, or None."""
    value = optional(body, name, int)
    if value is not None and not least <= value <= greatest:
        raise bad_request(name, f"found {shown(value)}, wanted {least} to {greatest}")
    return value


def shown(value: object) -> str:
    """A value as an error shows it: short ones as they are, lists and objects by their kind."""
    return kind_of(value) if value is None or isinstance(value, list | dict) else printable(value, 80)


def as_api_error(error: RequestError) -> ApiError:
    """The same message; errors of settings start with the name of the field."""
    name, colon, _ = str(error).partition(":")
    return ApiError(400, str(error), param=name if colon and name.isidentifier() else None)
