"""Results of steps as arguments of later ones: how a reference is written into a payload and replaced by the result.

A reference is an object with one name, ``MARK``. Where users' own objects have such a name it gets a tail, so that
none of them is taken for a reference. Only the payloads of steps are written this way.
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
    """The result that a step will have: an argument of a step behind it."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"<the result of {self.key}>"

    def __str__(self) -> str:
        raise InvalidWorkflow(
            f"The result of {self.key} is not there yet, so that no text can be made of it: "
            "give it as an argument, or a part of one, and make the text where the step runs."
        )

    def __format__(self, spec: str) -> str:
        return str(self)


def references_in(value: object) -> list[str]:
    """The keys of the steps whose results are used, each once."""
    found: dict[str, None] = {}
    front, seen = [value], set[int]()
    while front:
        match front.pop():
            case Reference(key=key):
                found[key] = None
            # Once: it may contain itself.
            case dict() | list() | tuple() as parts if id(parts) not in seen:
                seen.add(id(parts))
                front += parts.values() if isinstance(parts, dict) else parts
            case _:
                pass
    return [*found]


class ReferenceCodec:
    """Arguments of one task, some of which are, or contain, references. Those are checked when the job starts."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._rest = lru_cache(self._codec_without)

    def encode(self, values: Mapping[str, object]) -> tuple[str, str]:
        """As a step's payload, and in canonical form."""
        later = frozenset(name for name, value in values.items() if references_in(value))
        codec = self._rest(later)
        rest = {name: value for name, value in values.items() if name not in later}
        # Checked here, with the path of what does not fit.
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
    """A payload without references, as that of a step."""
    if _SUSPECT not in payload:
        return payload
    return msgspec.json.encode(_walk(msgspec.json.decode(payload), _longer)).decode()


def refers(payload: str) -> bool:
    """Whether a step's payload must be resolved before it is read."""
    return _SUSPECT in payload


def keys_in(payload: str) -> list[str]:
    """The keys of the steps to whose results a step's payload refers."""
    return [*count_references(payload)]


def count_references(payload: str) -> Counter[str]:
    """How often a step's payload refers to the result of each key."""
    found = Counter[str]()

    def note(value: dict[str, Any]) -> dict[str, Any]:
        if _is_reference(value):
            found[value[MARK]] += 1
        return value

    if refers(payload):
        _walk(msgspec.json.decode(payload), note)
    return found


def resolved(payload: str, result_of: Callable[[str], str]) -> str:
    """The payload with each reference replaced by the result, as JSON, that it stands for."""

    def replace(value: dict[str, Any]) -> Any:
        return msgspec.Raw(result_of(value[MARK])) if _is_reference(value) else _shorter(value)

    return msgspec.json.encode(_walk(msgspec.json.decode(payload), replace)).decode()


def _encoded(values: dict[str, object]) -> str:
    """With references; what stands beside them must be fit to be stored."""
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
    """The same with each object changed, the inner ones first."""
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
    """Two JSON objects as one."""
    return other if one == "{}" else f"{one[:-1]},{other[1:]}" if other != "{}" else one
