"""Attributes that are computed at their first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload

T = TypeVar("T")


class lazy(Generic[T]):
    """``functools.cached_property`` without its lock, as in Python 3.12 and later.

    In Python 3.11, all objects of a class share that lock: a child forked while another thread computes the attribute
    would wait for ever. Without a lock, two threads may both compute the value. The value that is stored first is kept.
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
        # The object's own attribute is found first from now on, because this descriptor has no __set__.
        return cast(T, vars(one).setdefault(self._name, self._make(one)))
