"""The options of a job, and their validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import TypedDict

import msgspec

from perdure.errors import BadArguments, InvalidOption, PayloadTooLarge
from perdure.model.codec import MAX_PAYLOAD, UNSTORABLE, encode_plain
from perdure.model.job import Options
from perdure.model.suggest import did_you_mean
from perdure.request.times import duration_us, to_us

NAME_BYTES = 255
"""The most bytes in the name of a task, queue or tenant. Names and a key together must fit into an index entry."""
KEY_BYTES = 512
CONFIG_BYTES = 65_536
"""The most bytes of a task's config. Every worker reads the config with each heartbeat."""
SMALLINT = 32_767
INTEGER = 2_147_483_647


class Asked(TypedDict, total=False):
    """The options of ``using`` as users pass them."""

    queue: str | None
    priority: int | None
    delay: float | timedelta | None
    run_at: datetime | None
    expires: float | timedelta | datetime | None
    max_attempts: int | None
    timeout: float | timedelta | None
    tenant: str | None
    idempotency_key: str | None
    unique_key: str | None
    concurrency_key: str | None
    tags: Sequence[str] | None
    meta: Mapping[str, object] | None
    conn: object | None


def checked(asked: Asked) -> Options:
    """Validate options. Raises InvalidOption."""
    if unknown := unknown_option("job", asked, Asked.__annotations__):
        raise InvalidOption(unknown)
    delay, run_at, expires = asked.get("delay"), asked.get("run_at"), asked.get("expires")
    if delay is not None and run_at is not None:
        raise InvalidOption("Use delay or run_at, not both.")
    timeout, tags, meta = asked.get("timeout"), asked.get("tags"), asked.get("meta")
    options = Options(
        queue=_optional("queue", asked.get("queue"), NAME_BYTES),
        priority=whole("priority", asked.get("priority"), -SMALLINT - 1, SMALLINT),
        delay=None if delay is None else duration_us("delay", delay),
        run_at=None if run_at is None else to_us("run_at", run_at),
        expires_in=None
        if expires is None or isinstance(expires, datetime)
        else duration_us("expires", expires),
        expires_at=to_us("expires", expires) if isinstance(expires, datetime) else None,
        max_attempts=whole("max_attempts", asked.get("max_attempts"), 1, INTEGER),
        timeout=None if timeout is None else duration_us("timeout", timeout, least=1),
        tenant=_optional("tenant", asked.get("tenant"), NAME_BYTES),
        idempotency_key=_optional("idempotency_key", asked.get("idempotency_key"), KEY_BYTES),
        unique_key=_optional("unique_key", asked.get("unique_key"), KEY_BYTES),
        concurrency_key=_optional("concurrency_key", asked.get("concurrency_key"), KEY_BYTES),
        tags=None if tags is None else msgspec.json.encode(texts("tags", tags)).decode(),
        meta=None if meta is None else _meta(meta),
    )
    _refuse_if_never_due(options)
    return options


def _refuse_if_never_due(options: Options) -> None:
    """Refuse a job that expires before it is due.

    A duration and a datetime are not compared: that would need the database's clock, which is not known here.
    """
    starts = ("delay", options.delay, options.expires_in), ("run_at", options.run_at, options.expires_at)
    for name, start, expires in starts:
        if start and expires is not None and expires <= start:
            raise InvalidOption(
                f"expires must be later than {name}: no attempt starts after a job has expired."
            )


MEANT = {
    "retries": "max_attempts, which counts the first try, too",
    "max_retries": "max_attempts, which counts the first try, too",
    "attempts": "max_attempts",
    "retry_delay": "backoff",
    "retry_backoff": "backoff",
    "time_limit": "timeout",
    "countdown": "delay",
    "eta": "run_at",
    "ttl": "expires",
    "key": "idempotency_key",
}
"""Names of the same options in other libraries, or likely guesses."""


def unknown_option(of: str, given: Iterable[str], known: Iterable[str]) -> str | None:
    """An error message for the first unknown option, if there is one."""
    known = set(known)
    for name in given:
        if name not in known:
            meant = MEANT.get(name, "")
            close = (
                f" Did you mean {meant}?" if meant.partition(",")[0] in known else did_you_mean(name, known)
            )
            return f"{name} is not an option of a {of}.{close}"
    return None


def text(name: str, value: object, most: int = NAME_BYTES) -> str:
    """Validate a text: both databases must be able to store and find it."""
    if not isinstance(value, str):
        raise InvalidOption(f"{name} must be a text.")
    if not value.strip():
        raise InvalidOption(f"{name} must not be blank.")
    if UNSTORABLE.search(value):
        raise InvalidOption(f"{name} has a character that cannot be stored.")
    if len(value.encode()) > most:
        raise InvalidOption(f"{name} must be at most {most} bytes long.")
    # Drivers may store a subclass of str differently, or refuse it.
    return str(value.value) if isinstance(value, Enum) else str.__str__(value)


class Named:
    """The base class of the objects that ``@app.task`` returns.

    Such an object can be passed instead of the task's name.
    """

    name: str


def task_name(value: object) -> str:
    """The name of a task, from the name or the task itself."""
    if isinstance(value, Named):
        return value.name
    if not isinstance(value, str):
        raise InvalidOption("task must be the name of a task, or the task itself: what @app.task makes.")
    return text("task", value)


def texts(name: str, values: Sequence[str]) -> list[str]:
    """Validate a list of texts. A single text is refused: it would be read as a list of characters."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidOption(f"{name} must be a list of texts.")
    return [text(f"{name}[{index}]", value) for index, value in enumerate(values)]


def filter_text(name: str, value: str | None) -> str | None:
    """Validate a text to search for; None means no condition."""
    return None if value is None else text(name, value)


def whole(name: str, value: int | None, least: int, most: int) -> int | None:
    """Validate an optional whole number."""
    return None if value is None else number(name, value, least, most)


def number(name: str, value: int, least: int, most: int) -> int:
    """Validate a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidOption(f"{name} must be a whole number.")
    if not least <= value <= most:
        raise InvalidOption(f"{name} must lie between {least} and {most}.")
    return value


def task_config(config: Mapping[str, object]) -> str:
    """Validate a task's config and return it as JSON."""
    if not isinstance(config, Mapping):
        raise InvalidOption("config must be a dict, or None.")
    try:
        encoded = encode_plain(config)
    except BadArguments as error:
        raise InvalidOption(
            f"config must be plain JSON with text keys: see config{error.path[1:]}."
        ) from None
    except PayloadTooLarge:
        encoded = None
    if encoded is None or len(encoded.encode()) > CONFIG_BYTES:
        raise InvalidOption(f"config must take at most {CONFIG_BYTES} bytes of JSON.")
    return encoded


def flag(name: str, value: bool) -> bool:
    """Validate a bool. Texts and numbers are refused because they are ambiguous."""
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} must be True or False.")
    return value


def _optional(name: str, value: str | None, most: int) -> str | None:
    return None if value is None else text(name, value, most)


def _meta(meta: Mapping[str, object]) -> str:
    if not isinstance(meta, Mapping):
        raise InvalidOption("meta must be a dict.")
    try:
        return encode_plain(meta)
    except (BadArguments, PayloadTooLarge):
        raise InvalidOption(f"meta must be plain JSON with text keys, at most {MAX_PAYLOAD} bytes.") from None
