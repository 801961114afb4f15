"""Parsers for options and arguments: URLs, durations, JSON, times, queues with weights, states."""

from __future__ import annotations

import os
import re
import sys
from datetime import UTC, datetime, timedelta

import click

from perdure.cli.suggest import did_you_mean
from perdure.model.visible_state import VISIBLE_STATES

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|)", re.ASCII)
_WEIGHT = re.compile(r"([^=]+)=([1-9]\d*)", re.ASCII)


def database(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A URL. ``env:NAME`` reads the URL from the environment, because other users can see a process's arguments."""
    if value is None or not value.startswith("env:"):
        return value
    name = value.removeprefix("env:")
    if not os.environ.get(name):
        raise click.BadParameter(f"the environment variable {name!r} is not set, or empty.")
    return os.environ[name]


def seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A duration in seconds: ``90``, ``90s``, ``5m``, ``2h``, ``1d``."""
    return None if value is None else span(value)


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """A duration, returned as a timedelta."""
    try:
        return None if value is None else timedelta(seconds=span(value))
    except OverflowError:
        raise click.BadParameter(f"{value!r} is too long.") from None


def span(value: str) -> float:
    read = _SPAN.fullmatch(value.strip())
    if read is None:
        raise click.BadParameter(f"{value!r} is not a duration: use 90, 90s, 5m, 2h or 1d.")
    return float(read[1]) * _SECONDS[read[2]]


_TIME = "2026-03-01T12:00:00+01:00"


def parse_time(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """A time with a time zone, in ISO 8601."""
    try:
        return None if value is None else datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time: use {_TIME}.") from None


def parse_time_or_ago(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """A time with a time zone, or a duration such as ``2h``, which means that long ago."""
    if value is None:
        return None
    read = _SPAN.fullmatch(value.strip())
    try:
        if read is None:
            return datetime.fromisoformat(value)
        return datetime.now(UTC) - timedelta(seconds=float(read[1]) * _SECONDS[read[2]])
    except OverflowError:
        raise click.BadParameter(f"{value!r} is too long ago.") from None
    except ValueError:
        said = f"{value!r} is not a time: use {_TIME}, or how long ago: 90s, 5m, 2h or 1d."
        raise click.BadParameter(said) from None


def json_text(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check that the text is a JSON object, and return it undecoded: only the task's decoder keeps numbers exact.

    ``-`` reads the text from stdin.
    """
    if value is None:
        return None
    import json

    text = sys.stdin.read() if value == "-" else value
    try:
        read = json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}.") from None
    except RecursionError:
        raise click.BadParameter("this JSON is nested too deeply.") from None
    if not isinstance(read, dict):
        raise click.BadParameter('it must be a JSON object, such as {"to": "a@b.c"}.')
    return text


def json_object(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, object] | None:
    """A decoded JSON object."""
    import json

    text = json_text(ctx, param, value)
    return None if text is None else dict(json.loads(text))


def _no_number(name: str) -> object:
    """Refuse NaN and Infinity, which Python reads although they are not JSON."""
    raise ValueError(f"{name} is not a JSON number")


def queues(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> list[str] | dict[str, int] | None:
    """Queues: ``a,b`` is a list in strict order, ``a=3,b=1`` gives weights."""
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(parts):
        raise click.BadParameter("a queue has no name.")
    if not any("=" in part for part in parts):
        return parts
    weights = [_WEIGHT.fullmatch(part) for part in parts]
    if not all(weights):
        raise click.BadParameter("give every queue a whole number as weight (a=3,b=1), or none (a,b).")
    return {read[1].strip(): int(read[2]) for read in weights if read}


def state(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A visible state of jobs: see docs/states.md."""
    if value is not None and value not in VISIBLE_STATES:
        known = did_you_mean(value, VISIBLE_STATES) or f" Use one of {', '.join(VISIBLE_STATES)}."
        raise click.BadParameter(f"{value!r} is not a state.{known}")
    return value
