"""A fast path to JSON for arguments of the types in ``signature.PLAIN``.

JSON keeps plain values exactly, so they need not be decoded again and compared. Integers of more than 64 bits and
floats that are not finite do not count as plain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import Parameter as Shape
from typing import Any, TypeAlias

from perdure.model.signature import Parameter

# msgspec can write larger integers, but most other JSON readers convert such a number to a float.
LEAST, GREATEST = -(2**63), 2**64 - 1

Kinds: TypeAlias = Mapping[str, frozenset[type]]
"""The types in ``signature.PLAIN`` that each parameter accepts."""

OURS = "perdure_"
"""The prefix of our own names in generated code, which also contains the names of a task's parameters."""

_NOTHING: frozenset[type] = frozenset()


def are_plain(values: Mapping[str, object], kinds: Kinds) -> bool:
    return all(is_plain(value, kinds.get(name, _NOTHING)) for name, value in values.items())


def is_plain(value: Any, kinds: frozenset[type]) -> bool:
    kind = type(value)
    if kind is int:
        return kind in kinds and LEAST <= value <= GREATEST
    return kind in kinds and (kind is not float or math.isfinite(value))


def shortcut(
    parameters: tuple[Parameter, ...], kinds: Kinds, encode: Callable[[object], bytes]
) -> Callable[..., bytes | None]:
    """Build a function that takes these parameters, all required, and returns the arguments as JSON.

    That function returns None if a value is not plain; the caller then encodes in the usual way. It takes half the time
    of ``Signature.bind`` and encoding, because Python itself binds the arguments.
    """
    by_position = [each.name for each in parameters if each.kind is Shape.POSITIONAL_OR_KEYWORD]
    by_name = [each.name for each in parameters if each.kind is Shape.KEYWORD_ONLY]
    names = by_position + by_name
    if len(names) < len(parameters) or any(name.startswith(OURS) for name in names):
        return _no_shortcut
    takes = ", ".join(by_position + (["*", *by_name] if by_name else []))
    tests = " and ".join(_test(name, kinds[name]) for name in names) or "True"
    values = ", ".join(f"{name!r}: {name}" for name in names)
    known = {"encode": encode, "is_plain": is_plain, "kinds": kinds, "type": type, "str": str, "int": int}
    function: Callable[..., bytes | None] = eval(
        f"lambda {takes}: {OURS}encode({{{values}}}) if {tests} else None",
        {f"{OURS}{name}": value for name, value in known.items()},
    )
    return function


def _test(name: str, kinds: frozenset[type]) -> str:
    if kinds == {str}:
        return f"{OURS}type({name}) is {OURS}str"
    if kinds == {int}:
        return f"{OURS}type({name}) is {OURS}int and {LEAST} <= {name} <= {GREATEST}"
    return f"{OURS}is_plain({name}, {OURS}kinds[{name!r}])"


def _no_shortcut(*_: object, **__: object) -> None:
    return None
