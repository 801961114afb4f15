"""Attributes that are made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload

T = TypeVar("T")


class lazy(Generic[T]):
    """What ``functools.cached_property`` is since Python 3.12.

    In 3.11 it has a lock that all objects of a class share: a child forked while another thread makes the attribute
    of any of them would wait for ever. Two threads that come first may both make it; one of the two is kept.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, one: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, one: object, owner: type) -> T: ...
    def __get__(self, one: object | None, owner: type) -> lazy[T] | T:
        if one is None:
            return self
        # Found in the object itself from now on: this has no __set__.
        return cast(T, vars(one).setdefault(self._name, self._make(one)))
