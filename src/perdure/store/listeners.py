"""The listeners of this process for commits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

Listener: TypeAlias = Callable[[frozenset[str]], None]

_log = logging.getLogger("perdure.store")


class Listeners:
    """Called with the topics of a commit, from the thread that committed."""

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}

    def add(self, listener: Listener) -> Callable[[], None]:
        """Returns what removes it again."""
        key = object()
        self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    def tell(self, topics: frozenset[str]) -> None:
        """A listener that fails changes nothing: the topics are committed."""
        if not topics:
            return
        for listener in list(self._listeners.values()):
            try:
                listener(topics)
            except Exception:
                _log.exception("A listener failed")
