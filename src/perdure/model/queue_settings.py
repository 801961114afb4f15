"""The settings of a queue: declared in code, set by an operator, and in effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from perdure.errors import InvalidOption
from perdure.model.backoff import Backoff
from perdure.model.job import SECOND, Span
from perdure.model.json_text import UNREADABLE

DEFAULT_TIMEOUT: Span = 900 * SECOND
"""The timeout of a task that declares no timeout."""


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings that code declares and operators change. None means "not set"."""

    backoff: Backoff | None = None
    """Overrides the back-off of the tasks whose jobs are in this queue."""
    timeout: Span | None = None
    """The timeout of a job if neither the job nor its task has a timeout."""
    concurrency: int | None = None
    """The most jobs that run at the same time, in all workers."""

    def only(self, names: Collection[str]) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__ if name in names}


NAMES = Settings.__struct_fields__


def in_effect(declared: Settings | None, edits: Mapping[str, Any]) -> Settings:
    """The settings in effect: an operator's edits override the code's settings. An edit may also remove a setting."""
    return msgspec.structs.replace(declared or Settings(), **edits)


def effective_timeout(own: Span | None, *, declared: bool, of_queue: Span | None) -> Span | None:
    """The timeout of a job. ``own``: its stored timeout; ``declared``: whether its task declares a timeout.

    If a task declares no timeout, its jobs are stored with the default. A timeout of the queue overrides the default.
    """
    if of_queue is None or not (own is None or (own == DEFAULT_TIMEOUT and not declared)):
        return own
    return of_queue


def dump_settings(settings: Settings | None) -> str | None:
    return None if settings is None else msgspec.json.encode(settings, order="deterministic").decode()


def load_settings(text: str | None) -> Settings | None:
    """Read the settings that the code declares.

    A text that cannot be read counts as no declaration. The next write of the settings replaces it.
    """
    try:
        return None if text is None else _decode_settings(text)
    except (*UNREADABLE, InvalidOption):
        return None


def load_names(text: str | None) -> frozenset[str]:
    """Read names of settings. Names that are not settings are left out."""
    try:
        return frozenset() if text is None else frozenset(_decode_names(text)).intersection(NAMES)
    except UNREADABLE:
        return frozenset()


_decode_settings = msgspec.json.Decoder(Settings).decode
_decode_names = msgspec.json.Decoder(list[str]).decode
