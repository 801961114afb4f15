"""Runs workflows in a ``World``: each step ends as the test says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure import StartedWorkflow, Workflow
from perdure.client.task import SyncTask
from perdure.model.job import Claimed
from perdure.model.lifecycle import Failed, Outcome, Succeeded
from tests.conformance.world import World


class Flow:
    """Workflows of one task, ``work(n)``, whose steps the test runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.app = world.app
        self.work: SyncTask[..., int] = world.task()

    def start(self, flow: Workflow, **options: Any) -> StartedWorkflow:
        return self.app.start_workflow(flow, **options)

    def of(
        self, name: str = "flow", /, *, options: dict[str, Any] | None = None, **steps: Sequence[str]
    ) -> Workflow:
        """A workflow whose steps come after others: ``a=[], b=["a"]``; "~a" means ``after_done``."""
        flow = Workflow(name, **options or {})
        for key, parents in steps.items():
            after = [parent for parent in parents if not parent.startswith("~")]
            done = [parent[1:] for parent in parents if parent.startswith("~")]
            if key.startswith("gate"):
                flow.gate(key, after=after, after_done=done)
            else:
                flow.step(key, self.work.job(1), after=after, after_done=done)
        return flow

    def claim(self, n: int = 1000) -> list[Claimed]:
        return self.world.claim(n)

    def run(self, *, fail: Sequence[str] = (), n: int = 1000) -> list[str]:
        """Run all ready steps; return the keys of those that ran."""
        jobs = self.claim(n)
        finished = self.world.finish(*(outcome(job, failed=job.step_key in fail) for job in jobs))
        assert finished.refused == []
        return sorted(job.step_key or "" for job in jobs)

    def run_all(self, *, fail: Sequence[str] = ()) -> list[list[str]]:
        """Run round after round, until nothing is ready."""
        rounds: list[list[str]] = []
        while ran := self.run(fail=fail):
            rounds.append(ran)
        return rounds

    def states(self, workflow: StartedWorkflow) -> dict[str, str]:
        return {step.key: step.state for step in workflow.steps()}

    def status(self, workflow: StartedWorkflow) -> str | None:
        self.check(workflow)
        return workflow.refresh().status

    def reasons(self, workflow: StartedWorkflow) -> dict[str, str | None]:
        return {step.key: step.reason for step in workflow.steps() if step.reason is not None}

    def check(self, workflow: StartedWorkflow) -> None:
        """The counts of the workflow equal those of its steps."""
        states = [*self.states(workflow).values()]
        row = workflow.refresh().row
        assert row is not None
        counted = (
            states.count("waiting"),
            states.count("ready") + states.count("running"),
            states.count("open"),
            states.count("failed") + states.count("canceled"),
            len(states),
        )
        assert (row.waiting, row.active, row.open, row.spoiled, row.total) == counted


def outcome(job: Claimed, *, failed: bool = False, **more: Any) -> Outcome:
    if failed:
        return Failed(job.lease, "fatal")
    return Succeeded(job.lease, "1", workflow=job.workflow_id, **more)
