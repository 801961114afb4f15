"""The log of rows that cannot be claimed or written. Each row is logged once for each thing that fails."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from perdure.worker.database_errors import safe_message

MOST_KNOWN = 10_000
"""How many of the logged rows are remembered."""

MOST_NAMED = 10
"""How many rows are logged in lines of their own at once. The others are only counted."""

_log = logging.getLogger("perdure.worker")


class RowLog:
    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], None] = {}

    def error(self, sentence: str, *args: object) -> None:
        _log.error(sentence, *args)

    def once(self, id: str, sentence: str, error: Exception) -> None:
        """Log once for each row."""
        if self._is_news(id, sentence):
            _log.error(sentence, id, safe_message(error))

    def some(self, rows: Iterable[tuple[str, str]], sentence: str, too: str) -> None:
        """Log each row once, at most ``MOST_NAMED`` of them by name. ``rows``: ids and reasons."""
        news = [(id, reason) for id, reason in rows if self._is_news(id, sentence)]
        for id, reason in news[:MOST_NAMED]:
            _log.error(sentence, *(id, reason, id)[: sentence.count("%s")])
        if len(news) > MOST_NAMED:
            _log.error(too, len(news) - MOST_NAMED)

    def _is_news(self, id: str, sentence: str) -> bool:
        if (sentence, id) in self._logged:
            return False
        if len(self._logged) >= MOST_KNOWN:
            del self._logged[next(iter(self._logged))]
        self._logged[sentence, id] = None
        return True
