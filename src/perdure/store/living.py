"""Those of a kind that live in this process."""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Living(Generic[T]):
    """They are kept alive by others. Any thread may add one, or see who there is.

    Not a WeakSet: to walk through one while another thread adds to it raises.
    """

    def __init__(self) -> None:
        self._by_id: WeakValueDictionary[int, T] = WeakValueDictionary()

    def add(self, one: T) -> None:
        self._by_id[id(one)] = one

    def now(self) -> list[T]:
        # valuerefs() is one copy that no thread gets in between of; values() is a walk.
        return [one for reference in self._by_id.valuerefs() if (one := reference()) is not None]

    def forget(self) -> None:
        self._by_id.clear()
