"""Redacted arguments, which are never shown: ``@app.task(redact=["password"])``.

A name hides the argument of that name, and every value under a key of that name inside any argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from perdure.model.json_text import UNREADABLE, read_json

HIDDEN = "[redacted]"
HIDDEN_WHOLE = "[redacted: too much to search for redacted values]"

LEAST = 4
"""The length of the shortest value that is searched for in a handler's texts. Shorter values occur there by chance."""

MOST_VALUES = 10_000
"""The most values, and lines of values, to search for. The search for so many takes up to 50 ms. If there are more,
every text is replaced by ``HIDDEN_WHOLE``."""

MOST_QUOTED_TWICE = 1_000
"""The most values that are also searched for in doubly quoted form. This takes 25 µs more per value with escapes."""

MOST_WORK = 1_000_000
"""The most characters to compare in one text, at about 0.1 µs each. A text that needs more is replaced as a whole."""

_PLAIN = re.compile(r"""[ !#-&(-\[\]-~]*""")
"""Printable ASCII without quotes and backslashes. No quoting changes such a value."""


def dump_names(names: Collection[str]) -> str | None:
    """The names as the database stores them."""
    return msgspec.json.encode(sorted(set(names))).decode() if names else None


def load_names(text: str | None) -> list[str]:
    return [] if text is None else read_json(text, list[str])


def redacted(payload: str, names: Collection[str]) -> str:
    """The arguments without redacted values."""
    if not names:
        return payload
    try:
        return msgspec.json.encode(_without(msgspec.json.decode(payload), names)).decode()
    except UNREADABLE:
        return f'"{HIDDEN}"'  # not JSON: any part of it may be secret


class Redactor:
    """Hides, in any text, the values that a payload has under these names.

    The first use indexes the values by their first characters. After that, one pass over a text finds them all.
    """

    def __init__(self, payload: str, names: Collection[str]) -> None:
        self._payload = payload
        self._names = names

    def hide(self, text: str) -> str:
        """The text without the values, or ``HIDDEN_WHOLE`` if the search would take too long."""
        secrets = self._secrets
        if secrets is None:
            return HIDDEN_WHOLE
        text = str.__str__(text)  # a subclass may override slicing
        spans = _find(text, secrets, self._lengths) if secrets else ()
        if spans is None:
            return HIDDEN_WHOLE
        kept, at = [], 0
        for start, end in spans:
            kept += [text[at:start], HIDDEN]
            at = end
        return "".join([*kept, text[at:]])

    @cached_property
    def _secrets(self) -> set[str] | None:
        """The values to hide; None if there are too many."""
        try:
            arguments = msgspec.json.decode(self._payload)
        except UNREADABLE:
            return set()  # no handler was called with this payload
        values: set[str] = set()
        for value in _values(arguments, self._names):
            values.add(value)
            # Lines are also searched for alone, because a traceback indents each line of a message.
            values.update(line for line in map(str.strip, value.splitlines()) if len(line) >= LEAST)
            if len(values) > MOST_VALUES:
                return None
        rounds = 2 if len(values) <= MOST_QUOTED_TWICE else 1
        return {found for value in values for found in _spellings(value, rounds) if len(found) >= LEAST}

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """The lengths of secrets, longest first, by their first characters."""
        lengths: dict[str, set[int]] = {}
        for secret in self._secrets or ():
            lengths.setdefault(secret[:LEAST], set()).add(len(secret))
        return {start: sorted(found, reverse=True) for start, found in lengths.items()}


def _find(
    text: str, secrets: Collection[str], lengths: Mapping[str, Sequence[int]]
) -> list[tuple[int, int]] | None:
    """The spans of secrets in order. Overlapping spans are joined. None if the search exceeds ``MOST_WORK``."""
    spans: list[tuple[int, int]] = []
    size = work = len(text)
    if work > MOST_WORK:
        return None
    for start in range(size - LEAST + 1):
        for length in lengths.get(text[start : start + LEAST], ()):
            end = start + length
            work += length if end <= size else 1
            if work > MOST_WORK:
                return None
            if end <= size and text[start:end] in secrets:
                _add(spans, start, end)
                break
    return spans


def _add(spans: list[tuple[int, int]], start: int, end: int) -> None:
    if spans and start < spans[-1][1]:
        first, last = spans[-1]
        spans[-1] = first, max(last, end)
    else:
        spans.append((start, end))


def _without(value: Any, names: Collection[str]) -> Any:
    match value:
        case dict():
            return {key: HIDDEN if key in names else _without(part, names) for key, part in value.items()}
        case list():
            return [_without(part, names) for part in value]
    return value


def _values(arguments: Any, names: Collection[str]) -> Iterator[str]:
    """The texts, numbers and keys below these names.

    This is a loop, not a recursive function, because arguments may be nested deeply.
    """
    parts: list[tuple[Any, bool]] = [(arguments, False)]
    while parts:
        part, secret = parts.pop()
        match part:
            case dict():
                if secret:
                    yield from part
                parts += [(value, secret or key in names) for key, value in part.items()]
            case list():
                parts += [(value, secret) for value in part]
            case str() | int() | float() if secret and not isinstance(part, bool):
                yield str(part)


def _spellings(value: str, rounds: int) -> Iterator[str]:
    """The value as it is, as in a URL, as ``repr`` shows it (in a KeyError), and as JSON with and without escapes.

    With two ``rounds``, each quoted form is also quoted once more, as ``KeyError(repr(value))`` shows it.
    """
    yield value
    # A driver that cannot connect may quote its URL.
    yield from {quote(value, errors="replace", safe=safe) for safe in ("", "/")} - {value}
    yield quote_plus(value, errors="replace")
    if not _PLAIN.fullmatch(value):
        for quoted in _quoted(value):
            yield quoted[1:-1]
            for twice in _quoted(quoted) if rounds > 1 else ():
                yield twice[3:-3] if twice[1] == "\\" else twice[2:-2]


def _quoted(value: str) -> set[str]:
    return {repr(value), ascii(value), msgspec.json.encode(value).decode(), json.dumps(value)}
