"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence to append to an error message, or an empty string."""
    from difflib import get_close_matches

    close = get_close_matches(word, sorted(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
