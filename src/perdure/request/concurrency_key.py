"""The concurrency key of a job. Jobs of a task with the same key count against the same limit."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from string import Formatter

from perdure.errors import InvalidTask
from perdure.model.codec import ArgumentCodec
from perdure.model.signature import Signature
from perdure.request.options import KEY_BYTES, text

TENANT = "tenant"
NO_KEY = ""
"""The stored key of a job that the limit does not count."""


class ConcurrencyKey:
    """Computes keys from arguments: by a template such as ``"{customer}"``, or by a function of the arguments."""

    def __init__(
        self, asked: str | Callable[..., object], task: str, signature: Signature, arguments: ArgumentCodec
    ) -> None:
        self._asked = asked
        self._signature = signature
        self._arguments = arguments
        if isinstance(asked, str):
            _check(asked, task, signature)
        elif inspect.iscoroutinefunction(asked):
            raise InvalidTask(
                "concurrency_key must be a synchronous function: it is called by every enqueue."
            )
        elif not callable(asked):
            raise InvalidTask("concurrency_key must be a template, such as '{customer}', or a function.")

    def of(self, payload: str, tenant: str | None) -> str:
        """The key of the job with these arguments."""
        defaults = {each.name: each.default for each in self._signature.parameters if not each.required}
        values = {**defaults, **self._arguments.decode(payload)}
        if isinstance(self._asked, str):
            return _stored(self._asked.format_map({TENANT: tenant or "", **values}))
        args, kwargs = self._signature.call_arguments(values)
        key = self._asked(*args, **kwargs)
        return NO_KEY if key is None else _stored(str(key))


def _check(template: str, task: str, signature: Signature) -> None:
    try:
        parsed = [part for part in Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise InvalidTask(f"concurrency_key of the task {task} is not a template: {error}.") from None
    if any(spec or conversion for _, _, spec, conversion in parsed):
        raise InvalidTask(
            f"concurrency_key of the task {task} may only name arguments, as in '{{customer}}'. "
            "Give a function to format them."
        )
    fields = [str(field) for _, field, _, _ in parsed]
    if not fields:
        raise InvalidTask(
            f"concurrency_key of the task {task} names no argument, so all jobs would have the same key: "
            "leave it out."
        )
    for field in fields:
        if not (field == TENANT or (field.isidentifier() and signature.takes(field))):
            raise InvalidTask(
                f"concurrency_key names {field!r}, which is neither tenant nor a parameter of the task {task}."
            )


def _stored(key: str) -> str:
    """The key to store. A long key is replaced by its hash, so that it fits into an index."""
    if len(key.encode(errors="surrogatepass")) > KEY_BYTES:
        return "sha256:" + hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
    return text("concurrency_key", key, KEY_BYTES) if key else NO_KEY
