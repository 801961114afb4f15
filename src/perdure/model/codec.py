"""Arguments and results as JSON text.

Handlers get the sent arguments, equal in value and type. If JSON might change a value, ``encode`` decodes it again. If
the result differs, the call is refused. An aware datetime may differ: it keeps its instant, but gets a fixed offset.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from perdure.errors import PayloadTooLarge
from perdure.model.fast_json import GREATEST, LEAST, are_plain, shortcut
from perdure.model.json_text import read_json
from perdure.model.signature import PLAIN, Fault, Signature, misfit, path_of, plain_kinds, readable, refused

MAX_PAYLOAD = 1 << 20
MAX_DEPTH = 200

_EXACT = frozenset({str, bool, NoneType, bytes, bytearray, UUID, date, timedelta, UnsetType})
_WITH_CARE = frozenset({int, float, Decimal, datetime, time})
# In a path, this replaces a dict's key or a set's element, because they are data, which a message must not show.
_SOMEWHERE = "[...]"
_MISSING = object()
TOO_DEEP = "is nested too deeply, or contains itself"
_CHANGED = "would arrive changed"
_BAD_NAME = "the name of an argument must be text"

# PostgreSQL's text cannot hold NUL, and UTF-8 cannot encode half of a surrogate pair.
UNSTORABLE, _SURROGATE = re.compile("[\0\ud800-\udfff]"), re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

Parts: TypeAlias = list[tuple[str | int, Any]]


class ArgumentCodec:
    """Converts one task's arguments to JSON and back."""

    def __init__(self, signature: Signature) -> None:
        parameters = signature.parameters
        annotations = {each.name: each.readable() for each in parameters}
        self._names = tuple(annotations)
        self._required = frozenset(each.name for each in parameters if each.required)
        self._whole = len(self._required) == len(parameters)
        self._kinds = {name: plain_kinds(annotation) for name, annotation in annotations.items()}
        self._decoder = _arguments_decoder(annotations, self._required)
        self._bind = signature.bind
        self._shortcut = shortcut(parameters, self._kinds, _ENCODER.encode)

    def encode_call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Bind the arguments of a call and encode them."""
        if len(args) + len(kwargs) == len(self._names):
            try:
                encoded = self._shortcut(*args, **kwargs)
            except Exception:
                encoded = None  # the slow path finds out what is wrong
            if encoded is not None and len(encoded) <= MAX_PAYLOAD:
                return encoded.decode()
        return self.encode(self._bind(args, kwargs))

    def encode(self, values: dict[str, object]) -> str:
        """The JSON object that ``decode`` converts to equal values. Raises BadArguments or PayloadTooLarge."""
        encoded = to_json(values)
        if not (values.keys() >= self._required and are_plain(values, self._kinds)):
            _verify(values, encoded, self._decoded)
        return encoded.decode()

    def encode_canonical(self, values: dict[str, object]) -> str:
        """Encode values that ``encode`` accepted. The order of a set depends only on its elements."""
        if not are_plain(values, self._kinds):
            values = {name: _ordered(value) for name, value in values.items()}
        return _ENCODER.encode(values).decode()

    def decode(self, text: str | bytes) -> dict[str, object]:
        """The arguments as values of the annotated types. Raises BadArguments if the text does not fit them."""
        try:
            return self._decoded(text)
        # The task's own types run code here. This code may raise any error, and its message may quote values.
        except Exception as error:
            fault = misfit(error)
        raise refused(fault)

    def _decoded(self, text: str | bytes) -> dict[str, object]:
        named = zip(self._names, msgspec.structs.astuple(self._decoder.decode(text)))  # noqa: B905
        return dict(named) if self._whole else {name: value for name, value in named if value is not UNSET}


def encode_plain(values: Mapping[str, object]) -> str:
    """Encode arguments of a task whose code is not loaded. Only values that JSON represents exactly are accepted."""
    values = dict(values)
    encoded = to_json(values)
    _verify(values, encoded, msgspec.json.decode)
    return encoded.decode()


class ResultCodec:
    """Converts results to JSON and back. A result that cannot be stored is dropped; the outcome is recorded anyway."""

    def __init__(self, annotation: Any = Any) -> None:
        self._decoder = _result_decoder(annotation)

    def encode(self, value: object) -> tuple[str | None, str | None]:
        """Return the JSON text and None, or None and the reason why the value cannot be stored."""
        try:
            encoded = _encoded_result(value)
            if len(encoded) > MAX_PAYLOAD:
                return None, "result.too_large"
            if type(value) not in PLAIN:
                # msgspec does not check the content of a msgspec.Raw, which may not be JSON.
                msgspec.json.decode(encoded)
            return encoded.decode(), None
        except Exception:
            return None, "result.unencodable"

    def decode(self, text: str | bytes) -> object:
        """Decode to the annotated type. A text that does not fit the annotation is decoded without it."""
        try:
            return self._decoder.decode(text)
        except Exception:
            pass
        return read_json(text)


def storable_text(text: str, limit: int) -> str:
    """Replace characters that a database cannot store. A text longer than ``limit`` loses its middle."""
    if len(text) > limit:
        marker = f"\n[... {len(text)} characters, cut to {limit} ...]\n"
        head, odd = divmod(max(limit - len(marker), 0), 2)
        text = f"{text[:head]}{marker}{text[len(text) - head - odd :]}" if head else text[:limit]
    return UNSTORABLE.sub(_REPLACEMENT, str.__str__(text))


def _arguments_decoder(annotations: Mapping[str, Any], required: frozenset[str]) -> msgspec.json.Decoder[Any]:
    # Fields get generated names: msgspec refuses some names, such as ``__x``.
    names = {f"argument_{index}": name for index, name in enumerate(annotations)}
    fields = [
        (field, annotations[name]) if name in required else (field, annotations[name], UNSET)
        for field, name in names.items()
    ]
    struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, rename=names)
    return msgspec.json.Decoder(struct, dec_hook=_model)


def _result_decoder(annotation: Any) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(readable(annotation), dec_hook=_model)
    except Exception:
        return msgspec.json.Decoder()


def to_json(values: dict[str, object]) -> bytes:
    try:
        encoded = _ENCODER.encode(values)
    except Exception:
        fault = _unencodable(values)
    else:
        if len(encoded) <= MAX_PAYLOAD:
            return encoded
        raise PayloadTooLarge(f"the arguments take {len(encoded)} bytes of JSON; the limit is {MAX_PAYLOAD}")
    raise refused(fault)


def _unencodable(values: dict[str, object]) -> Fault:
    for name, value in values.items():
        if fault := _encoding_fault(value):
            return _below(path_of(name), fault)
    return "$", _BAD_NAME


def _encoding_fault(value: object, depth: int = 0) -> Fault | None:
    """Find the innermost part that cannot be encoded."""
    try:
        _ENCODER.encode(value)
        return None
    except RecursionError:
        depth = MAX_DEPTH
    except Exception:
        pass
    if depth == MAX_DEPTH:
        return "", TOO_DEEP
    for step, part in _parts(value) or []:
        if fault := _encoding_fault(part, depth + 1):
            return _below(step, fault)
    if isinstance(value, str) and _SURROGATE.search(value):
        return "", "contains half of a surrogate pair"
    return "", f"a `{type(value).__name__}` like this cannot be stored"


def _verify(values: dict[str, object], encoded: bytes, decode: Callable[[bytes], dict[str, object]]) -> None:
    try:
        fault = first_fault(values, decode(encoded))
    except RecursionError:  # Python 3.14 can encode deeper nesting than it can decode
        fault = first_fault(values, values) or ("$", TOO_DEEP)
    except Exception as error:
        # The cause may be in the values themselves: a NaN, for example, is written as null.
        fault = first_fault(values, values) or misfit(error, values)
    if fault:
        raise refused(fault)


def first_fault(values: dict[str, object], arrived: dict[str, object]) -> Fault | None:
    for name, value in values.items():
        if type(name) is not str:
            return "$", _BAD_NAME
        if fault := _fault(value, arrived.get(name, _MISSING)):
            return _below(path_of(name), fault)
    return None


def _fault(sent: Any, arrived: Any, depth: int = 0) -> Fault | None:
    """The first place where ``arrived`` differs from ``sent``, or where ``sent`` cannot be stored."""
    kind = type(sent)
    certain = kind in _EXACT or (kind is int and LEAST <= sent <= GREATEST)
    if certain and kind is type(arrived) and sent == arrived:
        return None
    if flaw := _flaw(sent):
        return "", flaw
    if kind is not type(arrived):
        given, read = kind.__name__, type(arrived).__name__
        if type(arrived) not in PLAIN | {list, dict}:
            return "", f"expected `{read}`, got `{given}`"
        return "", f"a `{given}` would arrive as `{read}`; annotate it with its type"
    if kind in _EXACT or kind in _WITH_CARE or isinstance(sent, Enum):
        return None if _same(sent, arrived) else ("", _CHANGED)
    parts, counterparts = _parts(sent), _parts(arrived, like=sent)
    if depth == MAX_DEPTH:
        return "", TOO_DEEP
    if parts is None or counterparts is None or len(parts) != len(counterparts):
        return "", _CHANGED
    for (step, part), (_, counterpart) in zip(parts, counterparts, strict=True):
        if fault := _fault(part, counterpart, depth + 1):
            return _below(step, fault)
    # A model's == also compares private attributes, which are not in its JSON.
    return ("", _CHANGED) if _is_model(kind) and sent != arrived else None


def _flaw(value: object) -> str | None:
    """Why a value cannot be stored under any annotation; None if it can be stored."""
    match value:
        case int() if not LEAST <= value <= GREATEST:
            return "is an integer of more than 64 bits"
        case float() if not math.isfinite(value):
            return "is not a finite number"
        case Decimal() if not value.is_finite():
            return "is not a finite number"
        case datetime() if value.utcoffset() is None:
            return "is a datetime without a time zone"
    return None


def _same(sent: Any, arrived: Any) -> bool:
    """Whether two values are the same. The caller has checked that both have the same type and no parts."""
    match sent:
        case Enum():
            return sent is arrived
        case float() | Decimal():
            # == is not enough: 0.0 == -0.0, and Decimal("1.10") == Decimal("1.1").
            return str(sent) == str(arrived)
        case datetime():
            # In the hour that a clock change repeats, == between two time zones is always false. astimezone() does not
            # help: the same instant in UTC may be before the year 1, or after 9999.
            apart = sent.replace(tzinfo=None) - arrived.replace(tzinfo=None)
            return bool(apart == sent.utcoffset() - arrived.utcoffset())
        case time():
            # Without a date, a named zone has no offset. JSON would lose the zone, and == would not notice.
            return bool(sent == arrived) and (sent.tzinfo is None) == (arrived.tzinfo is None)
    return bool(sent == arrived)


def _parts(value: Any, like: object = None) -> Parts | None:
    """The parts of a container or of an object with fields. The parts of a set are in the order of the set ``like``."""
    match value:
        case dict():
            return [(_SOMEWHERE, part) for pair in value.items() for part in pair]
        case list():
            return list(enumerate(value))
        case tuple():
            names = [f".{name}" for name in getattr(value, "_fields", ())] or range(len(value))
            return list(zip(names, value, strict=True))
        case set() | frozenset():
            found = {part: part for part in value}
            order = like if isinstance(like, set | frozenset) else value
            return [(_SOMEWHERE, found.get(part, _MISSING)) for part in order]
    return _fields(value)


def _fields(value: Any) -> Parts | None:
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    elif _is_model(kind):
        names = tuple(kind.model_fields)
    elif (attributes := getattr(kind, "__attrs_attrs__", None)) is not None:
        names = tuple(attribute.name for attribute in attributes)
    else:
        return None
    return [(f".{name}", getattr(value, name, _MISSING)) for name in names]


def _below(step: str | int, fault: Fault) -> Fault:
    place, reason = fault
    step = f"[{step}]" if isinstance(step, int) else step
    return step if reason is TOO_DEEP else step + place, reason


def _ordered(value: Any) -> Any:
    """The value with each set replaced by a sorted list.

    msgspec's own ``order="deterministic"`` refuses sets of enums and keys that are not text, and leaves a set
    of frozensets in the order of their hashes.
    """
    if type(value) in _EXACT or type(value) in _WITH_CARE:
        return value
    match value:
        case set() | frozenset():
            return sorted(map(_ordered, value), key=_ENCODER.encode)
        case dict():
            return {key: _ordered(part) for key, part in value.items()}
        case list() | tuple():
            return [_ordered(part) for part in value]
    changes = {str(step)[1:]: _ordered(part) for step, part in _fields(value) or []}
    return _copied(value, changes) if changes else value


def _copied(value: Any, changes: dict[str, object]) -> Any:
    if _is_model(type(value)):
        return value.model_copy(update=changes)
    duplicate = copy.copy(value)
    assign = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name, part in changes.items():
        assign(duplicate, name, part)
    return duplicate


def _encoded_result(value: object) -> bytes:
    try:
        return _RESULT_ENCODER.encode(value)
    except UnicodeEncodeError:
        return _RESULT_ENCODER.encode(_mended(msgspec.to_builtins(value, str_keys=True, enc_hook=_simpler)))


def _mended(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATE.sub(_REPLACEMENT, value)
        case dict():
            return {_mended(key): _mended(part) for key, part in value.items()}
        case list() | tuple():
            return [_mended(part) for part in value]
    return value


def _is_model(kind: Any) -> bool:
    """Whether this is a pydantic model. It is recognized by its methods, because pydantic may not be installed."""
    return hasattr(kind, "model_dump") and hasattr(kind, "model_validate")


def _dumped(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    raise NotImplementedError


def _simpler(value: Any) -> Any:
    """Convert subclasses of str and float, and values with ``__index__``: results need not keep their type."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return operator.index(value) if hasattr(value, "__index__") else _dumped(value)


def _model(kind: Any, value: object) -> Any:
    if not _is_model(kind):
        return value  # msgspec checks that it is an instance of ``kind``
    try:
        # Validate JSON, not Python values: a strict model accepts a date as text only in JSON.
        return kind.model_validate_json(msgspec.json.encode(value))
    except Exception:
        # msgspec adds the path to the error only if it is a ValueError.
        raise ValueError from None


_ENCODER = msgspec.json.Encoder(enc_hook=_dumped)
_RESULT_ENCODER = msgspec.json.Encoder(enc_hook=_simpler)
