"""A weak registry of live objects in this process."""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """A weak registry that any thread can list.

    A WeakSet would raise an error if one thread added to it while another thread iterated.
    """

    def __init__(self) -> None:
        self._by_id: WeakValueDictionary[int, T] = WeakValueDictionary()

    def add(self, one: T) -> None:
        self._by_id[id(one)] = one

    def now(self) -> list[T]:
        # valuerefs() copies atomically, whereas values() iterates.
        return [one for reference in self._by_id.valuerefs() if (one := reference()) is not None]

    def forget(self) -> None:
        self._by_id.clear()
