"""What is told on stderr, one line each: plain text, or JSON for collectors of logs.

JSON has no text of exceptions, which may hold some of a request; where they came from stays.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import datetime, timezone

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
REQUESTS = "vkprefill.requests"  # the logger of a line for each request
LEVELS = {"warning:": logging.WARNING, "Error:": logging.ERROR}  # of notices, by their first word


def set_up(level: int, form: str = TEXT) -> None:
    """Send the log of this process to stderr. In JSON each request has its line whatever the level."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == JSON else logging.Formatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=level)
    logging.getLogger(REQUESTS).setLevel(logging.INFO if form == JSON else logging.NOTSET)


def line_of(text: str) -> str:
    """A notice to the user as the log has it."""
    if not any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers):
        return text
    level = LEVELS.get(text.partition(" ")[0], logging.INFO)
    return JsonLines().format(logging.LogRecord("vkprefill", level, "", 0, text, (), None))


class JsonLines(logging.Formatter):
    """time (UTC), level, message and the fields that a record has as `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        entry = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
        entry |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            entry |= {"exception": kind.__name__, "trace": "".join(traceback.format_tb(trace))}
        return json.dumps(entry)
