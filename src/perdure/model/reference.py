"""References: a step's result as an argument of a later step. A payload contains the reference until it is resolved.

In JSON a reference is an object whose only key is ``MARK``. If a user's object has such a key, the key gets a suffix,
so that the object is not taken for a reference. Only payloads of steps are written this way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from perdure.errors import InvalidWorkflow, PayloadTooLarge
from perdure.model.codec import MAX_PAYLOAD, TOO_DEEP, ArgumentCodec, first_fault, to_json
from perdure.model.signature import Signature, refused

MARK = "perdure.result"
TAIL = "~"

_SUSPECT = f'"{MARK}'
_MARKED = re.compile(rf"{re.escape(MARK)}{TAIL}*")


class Reference:
    """The future result of a step, to pass as an argument of a later step."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"<the result of {self.key}>"

    def __str__(self) -> str:
        raise InvalidWorkflow(
            f"The result of {self.key} does not exist yet, so it cannot be made into text: "
            "pass it as an argument, or a part of one, and make the text in the step's handler."
        )

    def __format__(self, spec: str) -> str:
        return str(self)


def references_in(value: object) -> list[str]:
    """The keys of the referenced steps, each once."""
    found: dict[str, None] = {}
    front, seen = [value], set[int]()
    while front:
        match front.pop():
            case Reference(key=key):
                found[key] = None
            # Visit each container once, because it may contain itself.
            case dict() | list() | tuple() as parts if id(parts) not in seen:
                seen.add(id(parts))
                front += parts.values() if isinstance(parts, dict) else parts
            case _:
                pass
    return [*found]


class ReferenceCodec:
    """Encodes arguments with references, for one task.

    The results that replace references are checked when the job starts.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._rest = lru_cache(self._codec_without)

    def encode(self, values: Mapping[str, object]) -> tuple[str, str]:
        """Return the step's payload, and its canonical form."""
        later = frozenset(name for name, value in values.items() if references_in(value))
        codec = self._rest(later)
        rest = {name: value for name, value in values.items() if name not in later}
        # Encoding also checks these values, and an error names the path.
        payload, canonical = codec.encode(rest), codec.encode_canonical(rest)
        marked = _encoded({name: values[name] for name in sorted(later)})
        both = _joined(escaped(payload), marked), _joined(escaped(canonical), marked)
        if len(both[0].encode()) > MAX_PAYLOAD:
            raise PayloadTooLarge
        return both

    def _codec_without(self, names: frozenset[str]) -> ArgumentCodec:
        return ArgumentCodec(
            Signature(tuple(each for each in self._signature.parameters if each.name not in names))
        )


def escaped(payload: str) -> str:
    """Convert an ordinary payload to a step's payload: keys that look like ``MARK`` get a suffix."""
    if _SUSPECT not in payload:
        return payload
    return msgspec.json.encode(_walk(msgspec.json.decode(payload), _longer)).decode()


def refers(payload: str) -> bool:
    """Whether a step's payload must be resolved before it can be decoded."""
    return _SUSPECT in payload


def keys_in(payload: str) -> list[str]:
    """The keys of the steps that a step's payload refers to."""
    return [*count_references(payload)]


def count_references(payload: str) -> Counter[str]:
    """How often a step's payload refers to each step, by key."""
    found = Counter[str]()

    def note(value: dict[str, Any]) -> dict[str, Any]:
        if _is_reference(value):
            found[value[MARK]] += 1
        return value

    if refers(payload):
        _walk(msgspec.json.decode(payload), note)
    return found


def resolved(payload: str, result_of: Callable[[str], str]) -> str:
    """The payload with each reference replaced by the result it refers to, which ``result_of`` returns as JSON."""

    def replace(value: dict[str, Any]) -> Any:
        return msgspec.Raw(result_of(value[MARK])) if _is_reference(value) else _shorter(value)

    return msgspec.json.encode(_walk(msgspec.json.decode(payload), replace)).decode()


def _encoded(values: dict[str, object]) -> str:
    """Encode arguments that contain references. All other values in them must be storable."""
    try:
        marked = {name: _marked(value) for name, value in values.items()}
    except RecursionError:
        raise refused(("$", TOO_DEEP)) from None
    encoded = to_json(marked)
    if fault := first_fault(marked, marked):
        raise refused(fault)
    return encoded.decode()


def _marked(value: Any) -> Any:
    match value:
        case Reference(key=key):
            return {MARK: key}
        case dict():
            return _longer({key: _marked(part) for key, part in value.items()})
        case list() | tuple():
            return [_marked(part) for part in value]
    return value


def _walk(value: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Apply ``change`` to each object in the value, inner objects first."""
    match value:
        case dict():
            return change({key: _walk(part, change) for key, part in value.items()})
        case list():
            return [_walk(part, change) for part in value]
    return value


def _is_reference(value: Mapping[str, object]) -> bool:
    return len(value) == 1 and isinstance(value.get(MARK), str)


def _longer(value: dict[Any, Any]) -> dict[Any, Any]:
    return {key + TAIL if _is_marked(key) else key: part for key, part in value.items()}


def _shorter(value: dict[Any, Any]) -> dict[Any, Any]:
    return {key.removesuffix(TAIL) if _is_marked(key) else key: part for key, part in value.items()}


def _is_marked(key: object) -> bool:
    return isinstance(key, str) and _MARKED.fullmatch(key) is not None


def _joined(one: str, other: str) -> str:
    """Merge two JSON objects."""
    return other if one == "{}" else f"{one[:-1]},{other[1:]}" if other != "{}" else one
