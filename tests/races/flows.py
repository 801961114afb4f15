"""What the processes of a race about workflows do."""

from __future__ import annotations

import random
from multiprocessing.synchronize import Barrier

from perdure import App, Step, Workflow
from perdure.client.task import SyncTask
from perdure.errors import AppendRefused, GateConflict, GateRefused, InvalidWorkflow
from perdure.model.job import Claimed
from perdure.model.lifecycle import Failed, Outcome, Succeeded
from tests.races.roles import TASK, hire


def nothing(n: int = 0) -> int:
    return n


def open_app(url: str) -> tuple[App, SyncTask[..., int]]:
    app = App(url, synchronous="normal")
    return app, app.task(name=TASK, max_attempts=5, backoff=0.001)(nothing)


def fan_in(task: SyncTask[..., int], width: int) -> Workflow:
    flow = Workflow("fan in")
    last = [flow.step(f"p{n}", task.job(n)) for n in range(width)]
    flow.step("end", task.job(), after=last)
    flow.step("tidy", task.job(), after_done=last)
    return flow


def finish_one_of_each(url: str, start: Barrier, rounds: int) -> None:
    """Each process has one parent of each workflow, and ends it when all others end theirs."""
    app, _ = open_app(url)
    operations, worker = app.operations, hire(app.operations)
    for _ in range(rounds):
        start.wait()  # the workflow is there
        jobs = operations.claim(worker, tasks=[TASK], n=1)
        start.wait()  # each has claimed
        assert operations.finish([succeeded(job) for job in jobs]).refused == []
        start.wait()  # each has ended
    app.close()


def succeeded(job: Claimed) -> Outcome:
    return Succeeded(job.lease, "1", workflow=job.workflow_id)


def meddle(url: str, workflows: list[str], acts: int, seed: int) -> None:
    """Finish, fail, cancel, append, resolve and requeue, whatever comes to mind."""
    app, task = open_app(url)
    rng, operations, worker = random.Random(seed), app.operations, hire(app.operations)
    for n in range(acts):
        workflow = rng.choice(workflows)
        jobs = operations.claim(worker, tasks=[TASK], n=rng.randint(0, 8))
        ends = [Failed(job.lease, "fatal") if rng.random() < 0.1 else succeeded(job) for job in jobs]
        rng.shuffle(ends)
        operations.finish(ends)
        try:
            match rng.randint(0, 5):
                case 0:
                    app.cancel_workflow(workflow)
                case 1:
                    app.requeue_workflow(workflow, steps=rng.choice(["all", "failed", "following"]))
                case 2:
                    step = Step(f"late-{seed}-{n}", task.job(n), after=["a0"], after_done=["gate"])
                    app.append_steps(workflow, window="gate", mutation_key=step.key, steps=[step])
                case 3:
                    app.resolve_gate(workflow, "gate", rng.choice(["succeeded", "failed"]))
                case 4:
                    steps = app.get_workflow(workflow).steps()
                    app.cancel_job(rng.choice(steps).id)
                case _:
                    operations.rescue()
        except (AppendRefused, GateConflict, GateRefused, InvalidWorkflow):
            pass
    app.close()


def tangle(task: SyncTask[..., int]) -> Workflow:
    flow = Workflow("tangle")
    before: list[Step[int]] = []
    for layer in range(4):
        steps = [
            flow.step(f"{'abcd'[layer]}{n}", task.job(n), after=before[:2], after_done=before[2:])
            for n in range(4)
        ]
        before = steps
    flow.gate("gate")
    flow.step("end", task.job(), after_done=["gate", *before])
    return flow
