"""Builds a workflow: a graph of steps, which is checked as a whole before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from perdure.client.drawing import mermaid, tree
from perdure.errors import InvalidWorkflow
from perdure.model.canonical_workflow import canonical_workflow
from perdure.model.graph import MOST_STEPS, Shape, check, foreign_references, no_ancestor
from perdure.model.job import NewWorkflow
from perdure.request.job import JobRequest
from perdure.request.options import Asked, checked, number, text
from perdure.request.step import Gate, Resolution, Step

R = TypeVar("R")


class Workflow:
    """Steps that are started together: ``app.start_workflow(flow)``.

    ``result``: the step whose result becomes the workflow's result. ``idempotency_key``: a second start with the same
    key returns the first workflow. ``unique_key``: at most one workflow of this name and key runs at a time.
    """

    def __init__(
        self,
        name: str,
        *,
        idempotency_key: str | None = None,
        unique_key: str | None = None,
        tenant: str | None = None,
        result: str | Step[Any] | None = None,
        meta: Mapping[str, object] | None = None,
        most_steps: int = MOST_STEPS,
    ) -> None:
        self.name = text("name", name)
        asked: Asked = {
            "idempotency_key": idempotency_key,
            "unique_key": unique_key,
            "tenant": tenant,
            "meta": meta,
        }
        self._options = checked(asked)
        self.result_step = result.key if isinstance(result, Step) else result
        self._most = number("most_steps", most_steps, 1, MOST_STEPS * 50)
        self._steps: dict[str, Step[Any]] = {}
        self._in_order = True
        """Whether each step was added after its parents and names none of them twice. ``check`` is then not needed."""

    def __repr__(self) -> str:
        return f"<Workflow {self.name} of {len(self._steps)} steps>"

    def __str__(self) -> str:
        """A tree for terminals."""
        return "\n".join([self.name, *tree(self.shapes())])

    @property
    def steps(self) -> list[Step[Any]]:
        return [*self._steps.values()]

    @property
    def tenant(self) -> str | None:
        return self._options.tenant

    def step(
        self,
        key: str,
        job: JobRequest[R],
        *,
        after: Iterable[Step[Any] | str] = (),
        after_done: Iterable[Step[Any] | str] = (),
    ) -> Step[R]:
        """Add a job that runs once all of ``after`` succeeded and all of ``after_done`` ended."""
        step = Step(key, job, after=after, after_done=after_done)
        self.add(step)
        return step

    def gate(
        self,
        key: str,
        job: None = None,
        *,
        after: Iterable[Step[Any] | str] = (),
        after_done: Iterable[Step[Any] | str] = (),
        timeout: float | timedelta | None = None,
        on_timeout: Resolution = "failed",
    ) -> Gate:
        """Add a step that a person or program resolves.

        ``timeout`` begins when the gate opens; ``on_timeout`` is the outcome if nobody resolves the gate in that time.
        """
        if job is not None:
            raise InvalidWorkflow(f"{key} is a gate: no worker runs it, so it takes no job.")
        gate = Gate(key, after=after, after_done=after_done, timeout=timeout, on_timeout=on_timeout)
        self.add(gate)
        return gate

    def add(self, step: Step[Any]) -> None:
        if step.key in self._steps:
            raise InvalidWorkflow(f"There are two steps named {step.key}.")
        if len(self._steps) == self._most:
            raise InvalidWorkflow(f"{step.key} is one step too many: this workflow may have {self._most}.")
        parents = {*step.after, *step.after_done}
        once = len(parents) == len(step.after) + len(step.after_done)
        self._in_order = self._in_order and once and parents <= self._steps.keys()
        self._steps[step.key] = step

    def shapes(self) -> list[Shape]:
        """The whole graph, validated, parents first. If a step is wrong, InvalidWorkflow names it."""
        if not self._steps:
            raise InvalidWorkflow(f"The workflow {self.name} has no steps.")
        shapes = [step.shape for step in self._steps.values()]
        if not self._in_order:
            shapes = check(shapes)
        for step, key, _ in foreign_references(shapes):
            raise no_ancestor(step.key, key)
        if self.result_step is not None and self.result_step not in self._steps:
            raise InvalidWorkflow(
                f"result names {self.result_step}, which is not a step of this workflow. It cannot name a step "
                "that is appended later: that step may never come."
            )
        return shapes

    def to_mermaid(self) -> str:
        return mermaid(self.shapes(), self.name)

    def new(self, id: str) -> NewWorkflow:
        """The workflow in the form that operations take."""
        options = self._options
        return NewWorkflow(
            id=id,
            name=self.name,
            tenant=options.tenant,
            result_step=self.result_step,
            meta=options.meta,
            unique_key=options.unique_key,
            idempotency_key=options.idempotency_key,
            request=self._canonical() if options.idempotency_key is not None else None,
        )

    def _canonical(self) -> str:
        return canonical_workflow(
            [step.asked() for step in self._steps.values()],
            tenant=self._options.tenant,
            result=self.result_step,
            unique_key=self._options.unique_key,
        )


class _Names:
    """Makes keys for steps that have no key: the last part of the task's name, with a number if it is repeated."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def of(self, job: JobRequest[Any]) -> str:
        if not isinstance(job, JobRequest):
            raise InvalidWorkflow("chain and group take what task.job(...) returns.")
        name = job.template.task.rpartition(".")[2]
        self._seen[name] = self._seen.get(name, 0) + 1
        return name if self._seen[name] == 1 else f"{name}-{self._seen[name]}"


def chain(*jobs: JobRequest[Any], name: str = "chain", **options: Any) -> Workflow:
    """A workflow that runs each job after the previous job succeeded. Its result is the result of the last job."""
    names = _Names()
    keys = [names.of(job) for job in jobs]
    flow = Workflow(name, **{"result": keys[-1] if keys else None, **options})
    before: list[str] = []
    for key, job in zip(keys, jobs, strict=True):
        flow.step(key, job, after=before)
        before = [key]
    return flow


def group(
    jobs: Iterable[JobRequest[Any]],
    *,
    then: JobRequest[Any] | None = None,
    name: str = "group",
    **options: Any,
) -> Workflow:
    """A workflow that runs jobs in parallel, and the job ``then`` once all of them succeeded.

    The job ``then`` finds their results in ``ctx.results``. The result of ``then`` is the workflow's result.
    """
    names = _Names()
    jobs = [*jobs]
    keys = [names.of(job) for job in jobs]
    last = None if then is None else names.of(then)
    flow = Workflow(name, **{"result": last, **options})
    for key, job in zip(keys, jobs, strict=True):
        flow.step(key, job)
    if then is not None and last is not None:
        flow.step(last, then, after=keys)
    return flow
