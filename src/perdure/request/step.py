"""Steps of a workflow, as a program describes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

from perdure.errors import InvalidOption, InvalidWorkflow
from perdure.model.canonical import Request
from perdure.model.canonical_workflow import StepRequest
from perdure.model.graph import GATE, GATES, Shape
from perdure.model.job import NewStep, Span, StepOptions
from perdure.model.new_steps import NewSteps
from perdure.model.reference import Reference, escaped, keys_in
from perdure.request.ids import new_ids
from perdure.request.job import JobRequest, Template
from perdure.request.options import KEY_BYTES, text
from perdure.request.times import duration_us

R_co = TypeVar("R_co", covariant=True)

Resolution: TypeAlias = Literal["succeeded", "failed", "canceled"]
RESOLUTIONS: tuple[Resolution, ...] = ("succeeded", "failed", "canceled")


class Step(Generic[R_co]):
    """A job of a workflow. It waits until the steps in ``after`` succeeded and the steps in ``after_done`` ended.

    ``after`` and ``after_done`` take steps or their keys.
    """

    def __init__(
        self,
        key: str,
        job: JobRequest[R_co],
        *,
        after: Iterable[Step[Any] | str] = (),
        after_done: Iterable[Step[Any] | str] = (),
    ) -> None:
        self.key = step_key(key)
        if not isinstance(job, JobRequest):
            raise InvalidWorkflow(f"The step {self.key} needs what task.job(...) returns.")
        for option in ("idempotency_key", "unique_key"):
            if getattr(job.template.options, option) is not None:
                raise InvalidWorkflow(f"The step {self.key} has an {option}: only its workflow can have one.")
        self._request: JobRequest[R_co] | None = job
        self.after = keys_of(self.key, "after", after)
        self.after_done = keys_of(self.key, "after_done", after_done)
        self.references = keys_in(job.payload) if job.template.refers else []

    def __repr__(self) -> str:
        return f"<Step {self.key}>"

    @property
    def result(self) -> R_co:
        """The step's future result, to pass to a later step as an argument or a part of an argument."""
        return cast(R_co, Reference(self.key))

    @property
    def request(self) -> JobRequest[R_co] | None:
        """The request of the step's job; None for a gate."""
        return self._request

    @property
    def shape(self) -> Shape:
        return Shape(self.key, self.after, self.after_done, self.references, self._request is None)

    def new(self, id: str, request: JobRequest[Any] | None, shared: Mapping[str, Any]) -> NewStep:
        """The row to insert. ``request``: the request after middleware. ``shared``: fields that several steps share."""
        assert request is not None
        payload = request.payload if request.template.refers else escaped(request.payload)
        if request.template.concurrency_key is not None:
            shared = {**shared, "concurrency_key": request.options.concurrency_key}
        return NewStep(id=id, step_key=self.key, payload=payload, **shared)

    def asked(self) -> StepRequest:
        """The step in the form that is stored, and compared when its workflow or its append is requested again."""
        assert self._request is not None
        template, arguments = self._request.template, self._request.arguments
        if arguments is None:
            arguments = escaped(template.canonical(self._request.payload))
        return StepRequest(
            key=self.key,
            after=self.after,
            after_done=self.after_done,
            task=template.task,
            tenant=template.options.tenant,
            request=Request(arguments, template.options),
        )


class Gate(Step[Any]):
    """A step that no worker runs.

    It opens when the steps before it have ended as required, and waits until somebody resolves it or its timeout ends.
    """

    def __init__(
        self,
        key: str,
        *,
        after: Iterable[Step[Any] | str] = (),
        after_done: Iterable[Step[Any] | str] = (),
        timeout: float | timedelta | None = None,
        on_timeout: Resolution = "failed",
    ) -> None:
        self.key = step_key(key)
        self._request = None
        self.after = keys_of(self.key, "after", after)
        self.after_done = keys_of(self.key, "after_done", after_done)
        self.references = []
        if on_timeout not in RESOLUTIONS:
            raise InvalidWorkflow(
                f"on_timeout of the gate {self.key} must be one of {', '.join(RESOLUTIONS)}."
            )
        self.timeout: Span | None = None if timeout is None else duration_us("timeout", timeout, least=1)
        self.on_timeout: Resolution = on_timeout

    def __repr__(self) -> str:
        return f"<Gate {self.key}>"

    def new(self, id: str, request: JobRequest[Any] | None, shared: Mapping[str, Any]) -> NewStep:
        return NewStep(
            id=id,
            step_key=self.key,
            task=GATE,
            queue=GATES,
            payload=f'{{"on_timeout":"{self.on_timeout}"}}' if self.timeout else "{}",
            timeout=self.timeout,
            **shared,
        )

    def asked(self) -> StepRequest:
        return StepRequest(
            key=self.key,
            after=self.after,
            after_done=self.after_done,
            timeout=self.timeout,
            on_timeout=self.on_timeout if self.timeout else None,
        )


def step_key(key: object) -> str:
    try:
        return text("key", key, KEY_BYTES)
    except InvalidOption as error:
        raise InvalidWorkflow(f"A step's {error}") from None


def keys_of(step: str, what: str, parents: Iterable[Step[Any] | str]) -> list[str]:
    if isinstance(parents, str | Step) or not isinstance(parents, Iterable):
        raise InvalidWorkflow(f"{what} of the step {step} must be a list of steps or of their keys.")
    return [parent.key if isinstance(parent, Step) else step_key(parent) for parent in parents]


def checked_steps(method: str, steps: object) -> Sequence[Step[Any]]:
    if isinstance(steps, str | bytes) or not isinstance(steps, Iterable):
        raise InvalidWorkflow(f"{method} takes a list of steps.")
    listed = list(steps)
    if not listed:
        raise InvalidWorkflow(f"{method} needs at least one step.")
    if not all(isinstance(step, Step) for step in listed):
        raise InvalidWorkflow(f"{method} takes Step(key, task.job(...)).")
    return listed


def new_steps_of(steps: Sequence[Step[Any]], new: Iterable[NewStep]) -> NewSteps:
    """The steps to add to a workflow, with their rows."""
    return NewSteps(tuple(step.shape for step in steps), tuple(new), tuple(step.asked() for step in steps))


def new_steps(
    steps: Sequence[Step[Any]],
    changed: Iterable[JobRequest[Any]],
    workflow: str,
    *,
    tenant: str | None = None,
    parent_job: str | None = None,
) -> Iterator[NewStep]:
    """The rows to insert. ``changed``: the steps' requests, after middleware."""
    requests = iter(changed)
    shared: dict[Template | None, dict[str, Any]] = {
        None: {"workflow_id": workflow, "tenant": tenant, "parent_job": parent_job}
    }
    for id, step in zip(new_ids(len(steps)), steps, strict=True):
        request = None if step.request is None else next(requests)
        template = None if request is None else request.template
        # There may be thousands of steps, but few templates.
        if template is not None and template not in shared:
            shared[template] = shared[None] | _asked_of(template)
        yield step.new(id, request, shared[template])


def _asked_of(template: Template) -> dict[str, Any]:
    options = {name: getattr(template.options, name) for name in StepOptions.__struct_fields__}
    # The queue is set here, so that the operation that inserts the step knows which topic to announce.
    asked = {**options, "task": template.task, "queue": template.queue}
    return {name: value for name, value in asked.items() if value is not None}
