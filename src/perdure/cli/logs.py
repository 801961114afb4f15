"""The log lines of a worker: text for people, or one JSON object per line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from perdure.cli.output import indented, printable

# The attributes of every record. All other attributes come from the caller's ``extra=``.
_OWN = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName"}


def set_up(level: str, form: str) -> None:
    """Send log records and warnings to stderr from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)  # otherwise warnings reach stderr with their control characters


class JsonFormatter(logging.Formatter):
    """A JSON object: time, level, logger, message, and every extra field under its own name."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return _encode(
            {**line, **{name: value for name, value in extras(record).items() if name not in line}}
        )


class TextFormatter(logging.Formatter):
    """A line for people. Extra fields are appended, except to perdure's own messages, which are complete without them.

    Further lines of a record are indented, so that no logged text can forge a record.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return printable(indented(super().format(record)))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return f"{_time(record):%Y-%m-%d %H:%M:%S}Z"

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        if record.name.startswith("perdure."):
            return line
        return line + "".join(f" {name}={value}" for name, value in extras(record).items())


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that the caller gave as ``extra=``."""
    return {
        name: value for name, value in vars(record).items() if name not in _OWN and not name.startswith("_")
    }


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _encode(line: dict[str, Any]) -> str:
    try:
        return json.dumps(line, default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        # Values that JSON cannot express are logged as text. That is better than losing the line.
        return json.dumps({name: str(value) for name, value in line.items()})
