"""How an operation runs on a connection of an embedded database, which answers at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from perdure.ops.op import Op, Param, Rows

T = TypeVar("T")

Execute: TypeAlias = Callable[[str, Mapping[str, Param]], Rows]


def drive(execute: Execute, op: Op[T]) -> tuple[T, frozenset[str]]:
    """Run ``op`` to its end; return its value and the topics to announce once it is committed."""
    wake: frozenset[str] = frozenset()
    try:
        trip = next(op)
        while True:
            wake |= trip.wake
            trip = op.send(
                [() if only == "server" else execute(name, params) for name, params, only in trip.queries]
            )
    except StopIteration as end:
        return end.value, wake
