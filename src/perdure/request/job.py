"""A job to be enqueued, as ``task.job(...)`` returns it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar

import msgspec

from perdure.errors import InvalidOption
from perdure.model.canonical import Request, canonical
from perdure.model.job import NewJob, Options
from perdure.request.concurrency_key import ConcurrencyKey
from perdure.request.ids import new_id
from perdure.request.middleware import Middleware, around_enqueue
from perdure.request.options import Asked, checked

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

NOTHING_ASKED = Options()


class Template(msgspec.Struct, frozen=True, eq=False):
    """The values that all requests of one task with the same options share."""

    task: str
    options: Options
    decode: Callable[[str], object]
    queue: str | None
    """The queue of the jobs; None if only the database knows the queue."""
    canonical: Callable[[str], str] = str
    """Converts a payload to canonical form."""
    refers: bool = False
    """Whether arguments refer to results of other steps. Only a step can have such arguments."""
    concurrency_key: ConcurrencyKey | None = None
    """Computes the concurrency key of each job."""

    @property
    def bulk(self) -> bool:
        """Whether one compact statement can insert many such jobs: only ids and payloads differ, and no key is set."""
        plain = self.options.run_at is None and not self.refers
        return plain and self.queue is not None and not self.options.keyed and self.concurrency_key is None

    @property
    def meta(self) -> dict[str, Any]:
        text = self.options.meta
        return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])

    def with_meta(self, meta: dict[str, Any]) -> Template:
        if meta == self.meta:
            return self
        asked: Asked = {"meta": meta}
        options = msgspec.structs.replace(self.options, meta=checked(asked).meta)
        return msgspec.structs.replace(self, options=options)


class JobRequest(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """A job to be enqueued: its arguments are bound, checked and encoded."""

    template: Template
    payload: str
    arguments: str | None = None
    """The arguments in canonical form, if there is an idempotency key or a reference to a step's result."""

    def __repr__(self) -> str:
        """Leave out the arguments: a request may be logged."""
        return f"<JobRequest {self.template.task}>"

    @property
    def options(self) -> Options:
        """The options of this job: the options of its template, and the concurrency key computed from its arguments."""
        template = self.template
        options = template.options
        if template.concurrency_key is None or options.concurrency_key is not None:
            return options
        if template.refers:
            raise InvalidOption(
                f"The concurrency key of {template.task} depends on the result of another step: "
                "give concurrency_key in using()."
            )
        key = template.concurrency_key.of(self.payload, options.tenant)
        return msgspec.structs.replace(options, concurrency_key=key)

    def new(self) -> NewJob:
        """The job to insert. Every call makes another job with a new id, because a request can be enqueued again."""
        task, options = self.template.task, self.options
        if self.template.refers:
            raise InvalidOption("The result of a step can only be an argument of a later step.")
        if options is NOTHING_ASKED:
            return NewJob(id=new_id(), task=task, payload=self.payload)
        request = (
            None if self.arguments is None else canonical(Request(self.arguments, self.template.options))
        )
        return NewJob(
            id=new_id(),
            task=task,
            payload=self.payload,
            request=request,
            **msgspec.structs.asdict(options),
        )


def checked_requests(method: str, requests: Iterable[JobRequest[R]]) -> list[JobRequest[R]]:
    requests = list(requests)
    if not set(map(type, requests)) <= {JobRequest}:
        raise InvalidOption(f"{method} takes what task.job(...) returns.")
    return requests


@contextmanager
def inside(chain: Sequence[Middleware], requests: Sequence[JobRequest[R]]) -> Iterator[list[JobRequest[R]]]:
    """Enter the middleware, once per template, and yield the requests with the middleware's changes."""
    if not chain:
        yield [*requests]
        return
    with ExitStack() as stack:
        changed: dict[Template, Template] = {}
        for template in dict.fromkeys(request.template for request in requests):
            meta = template.meta
            stack.enter_context(around_enqueue(chain, template.task, meta))
            changed[template] = template.with_meta(meta)
        yield [msgspec.structs.replace(one, template=changed[one.template]) for one in requests]
