"""Arguments that are shown to nobody: ``@app.task(redact=["password"])``.

A name hides the argument of that name, and whatever has it as a key inside any argument.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from perdure.model.stored import UNREADABLE, read_json

HIDDEN = "[redacted]"
LEAST = 4
"""Characters of a value that is looked for in what a handler says: a shorter one stands in every text by chance."""


def dump_names(names: Collection[str]) -> str | None:
    """As the database keeps them."""
    return msgspec.json.encode(sorted(set(names))).decode() if names else None


def load_names(text: str | None) -> list[str]:
    return [] if text is None else read_json(text, list[str])


def redacted(payload: str, names: Collection[str]) -> str:
    """The arguments as they may be shown."""
    if not names:
        return payload
    try:
        return msgspec.json.encode(_without(msgspec.json.decode(payload), names)).decode()
    except UNREADABLE:
        return f'"{HIDDEN}"'  # somebody wrote what is no JSON: what of it is secret nobody knows


def hide(text: str, payload: str, names: Collection[str]) -> str:
    """What a handler says, without the values that it was given under these names."""
    try:
        values = {*_values(msgspec.json.decode(payload), names)}
    except UNREADABLE:
        return text
    spelled = {spelling for value in values for spelling in _spellings(value) if len(spelling) >= LEAST}
    # A value may be a part of another one.
    for secret in sorted(spelled, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _without(value: Any, names: Collection[str]) -> Any:
    match value:
        case dict():
            return {key: HIDDEN if key in names else _without(part, names) for key, part in value.items()}
        case list():
            return [_without(part, names) for part in value]
    return value


def _values(value: Any, names: Collection[str], *, secret: bool = False) -> Iterator[str]:
    """The texts and numbers below these names, and the keys that they stand under there."""
    match value:
        case dict():
            for key, part in value.items():
                if secret:
                    yield key
                yield from _values(part, names, secret=secret or key in names)
        case list():
            for part in value:
                yield from _values(part, names, secret=secret)
        case str() | int() | float() if secret and not isinstance(value, bool):
            yield str(value)


def _spellings(value: str) -> set[str]:
    """Also as ``repr`` shows it, which is what a KeyError says, and as JSON does; both with and without escapes."""
    quoted = (repr(value), ascii(value), msgspec.json.encode(value).decode(), json.dumps(value))
    return {value, *(text[1:-1] for text in quoted)}
