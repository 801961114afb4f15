"""Canonical requests: the arguments and options of an enqueue with an idempotency key, as text that can be compared.

A canonical request is stored with its key, and compared with every later enqueue that has the same key. Later releases
read it too, so a new format needs a new ``VERSION``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from perdure.errors import InternalError
from perdure.model.job import STORED_AS_GIVEN, Options
from perdure.model.signature import path_of

VERSION = 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_COMPARED = ("tenant", "meta", "idempotency_key")
"""Options that are not compared: the key and its tenant identify the request; ``meta`` does not change the work."""
_SPELLED = {"expires_in": "expires", "expires_at": "expires"}
_OPTIONS = {name: _SPELLED.get(name, name) for name in Options.__struct_fields__ if name not in _NOT_COMPARED}
"""The options that are compared, each with its name in the stored text. The text has them in this order."""


class Request(NamedTuple):
    """One enqueue as requested. None means "not set", which differs from setting the default.

    ``arguments`` is the text of ``ArgumentCodec.encode_canonical``, or of ``encode_plain`` if the task's code is not
    loaded.
    """

    arguments: str
    options: Options


def canonical(request: Request) -> str:
    """The text to store with the key."""
    return msgspec.json.encode({"v": VERSION, **asked_of(request)}).decode()


def canonical_replay(source: str) -> str:
    """The text to store for a replay. It has the id of the replayed job instead of arguments and options."""
    return msgspec.json.encode({"v": VERSION, "arguments": {}, "replay_of": source}).decode()


def asked_of(request: Request) -> dict[str, Any]:
    """The arguments and options that were set, by field name."""
    asked: dict[str, Any] = {"arguments": msgspec.Raw(request.arguments)}
    for option, name in _OPTIONS.items():
        if (value := getattr(request.options, option)) is not None:
            asked[name] = _spelled(option, value)
    return asked


def difference(stored: str, asked: str) -> str | None:
    """The first field in which two canonical requests differ, such as ``queue`` or ``arguments.to``."""
    return differing_field(_read(stored), _read(asked))


def differing_field(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Like ``difference``, for two decoded requests. A field that is missing counts as not set."""
    for name in _in_order(("arguments", *_OPTIONS.values()), before, now):
        if not same(before.get(name), now.get(name)):
            both = isinstance(before.get(name), dict) and isinstance(now.get(name), dict)
            return _differing_argument(before[name], now[name]) if name == "arguments" and both else name
    return None


def read_json(text: str) -> Any:
    """Decode JSON with exact numbers. Return None if the text is damaged."""
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, ArithmeticError, ValueError, RecursionError):
        return None


def _spelled(option: str, value: Any) -> object:
    if STORED_AS_GIVEN.get(option) == "json":
        return msgspec.Raw(value)
    return _rfc3339(value) if option in ("run_at", "expires_at") else value


def _rfc3339(microseconds: int) -> str:
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _read(snapshot: str) -> dict[str, Any]:
    request = read_json(snapshot)
    match request:
        case {"v": int(version), "arguments": dict()} if version == VERSION and version is not True:
            return {name: value for name, value in request.items() if name != "v"}
    raise InternalError(
        f"a canonical request is damaged, or its version is not {VERSION}", code="job.bad_snapshot"
    )


def _differing_argument(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    for name in _in_order((), now, before):
        if not (name in before and name in now and same(before[name], now[name])):
            return f"arguments{path_of(name)[1:]}"
    return "arguments"


def _in_order(first: Sequence[str], *requests: Mapping[str, object]) -> Iterator[str]:
    return iter(dict.fromkeys((*first, *(name for request in requests for name in request))))


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON: 1 equals 1.0, true does not equal 1, the order of keys does not matter."""
    match one, other:
        case (bool(), _) | (_, bool()):
            return one is other
        case dict(), dict():
            return one.keys() == other.keys() and all(same(part, other[key]) for key, part in one.items())
        case list(), list():
            return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# Integers become ints and other numbers become Decimals: both are exact, and their comparison is exact.
_DECODER = msgspec.json.Decoder(float_hook=Decimal)
