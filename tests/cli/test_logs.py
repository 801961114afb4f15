"""Log lines: for people, and one JSON object each."""

from __future__ import annotations

import json
import logging
import math
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.cli.logs import JsonFormatter, TextFormatter, set_up


def record(
    message: str = "Ran %s", *args: object, exc_info: Any = None, **extra: object
) -> logging.LogRecord:
    made = logging.getLogger("perdure.worker").makeRecord(
        "perdure.worker", logging.WARNING, __file__, 1, message, args or ("it",), exc_info, extra=extra
    )
    made.created = 1_800_000_000.25
    return made


def told(**options: Any) -> Any:
    line = JsonFormatter().format(record(**options))
    assert "\n" not in line
    return json.loads(line)


def test_a_line_of_json_has_every_field() -> None:
    assert told(job="j1", task="mail.send", queue="mail", attempt=2, took=0.5) == {
        "time": "2027-01-15T08:00:00.250000Z",
        "level": "warning",
        "logger": "perdure.worker",
        "message": "Ran it",
        "job": "j1",
        "task": "mail.send",
        "queue": "mail",
        "attempt": 2,
        "took": 0.5,
    }


def test_an_exception_is_text() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        line = told(exc_info=sys.exc_info())
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("\nValueError: boom")


def test_an_extra_field_does_not_take_the_place_of_ours() -> None:
    assert told(level="mine", time="never")["level"] == "warning"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (datetime(2027, 1, 1, tzinfo=UTC), "2027-01-01 00:00:00+00:00"),
        (math.nan, "nan"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ("\ud800", "\ud800"),
        (None, None),
    ],
)
def test_whatever_is_logged_can_be_written(value: object, shown: object) -> None:
    assert told(odd=value)["odd"] == shown


def test_a_line_for_people_has_the_extra_fields_of_others_and_does_not_repeat_ours() -> None:
    ours = record(job="j1", attempt=2)
    assert TextFormatter().format(ours) == "2027-01-15 08:00:00Z WARNING perdure.worker: Ran it"
    ours.name = "perdurely"
    assert TextFormatter().format(ours) == "2027-01-15 08:00:00Z WARNING perdurely: Ran it job=j1 attempt=2"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


def test_logs_go_to_stderr_from_their_level_on(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up("warning", "json")
    logging.getLogger("any.where").info("too quiet")
    logging.getLogger("any.where").warning("heard")
    out, err = capsys.readouterr()
    assert out == ""
    assert [json.loads(line)["message"] for line in err.splitlines()] == ["heard"]


def test_warnings_are_logged_without_control_characters(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)  # another test may have left it on
        set_up("warning", "text")
        warnings.warn("\x1b[31mred", stacklevel=1)
    err = capsys.readouterr().err
    assert "py.warnings" in err
    assert "[31mred" in err
    assert "\x1b" not in err
