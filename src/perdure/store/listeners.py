"""The listeners of this process: functions to call after commits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

Listener: TypeAlias = Callable[[frozenset[str]], None]

_log = logging.getLogger("perdure.store")


class Listeners:
    """A set of functions. ``notify`` calls each of them with the topics of a commit, in the current thread."""

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""
        key = object()
        self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    def notify(self, topics: frozenset[str]) -> None:
        """Call each listener. An error of a listener is only logged, because the commit is already done."""
        if not topics:
            return
        for listener in list(self._listeners.values()):
            try:
                listener(topics)
            except Exception:
                _log.exception("A listener failed")
