"""The life of a first job, told as it happens: ``make demo``.

There is no worker yet, so ``work`` stands in for one: it does what a worker will do, through the same ledger.
"""

from __future__ import annotations

import tempfile

from perdure import App, IdempotencyConflict
from perdure.model.job import SECOND, Claimed
from perdure.model.lifecycle import Failed, Outcome, Report, Succeeded
from perdure.ops.report import LogLine, Said

directory = tempfile.TemporaryDirectory(prefix="perdure-")
app = App(f"sqlite:///{directory.name}/jobs.db")
mailbox: list[str] = []


@app.task(name="mail.welcome", queue="mail", max_attempts=3)
def welcome(to: str, greeting: str = "Hello") -> dict[str, int]:
    """The first letter is lost on the way."""
    mailbox.append(to)
    if len(mailbox) == 1:
        raise ConnectionError("the mail server hung up")
    return {"letters": len(f"{greeting}, {to}!")}


def work(claimed: Claimed) -> Outcome:
    """Call the function with the job's arguments; say how that ended."""
    task = app.tasks[claimed.task]
    args, kwargs = task.signature.call_arguments(task.arguments.decode(claimed.payload))
    try:
        result, reason = task.results.encode(task.function(*args, **kwargs))
    except Exception as error:
        return Failed(claimed.lease, "error", message=str(error))
    return Succeeded(claimed.lease, result, reason)


def main() -> None:
    ledger = app.ledger
    ledger.register("worker-1", name="demo", lease=30 * SECOND)

    title("Enqueued, and a key keeps it from happening twice")
    keyed = welcome.using(idempotency_key="welcome-7")
    job = keyed.enqueue("ann@example.com")
    say(f"job {job.id} is {job.state} in queue {job.queue}")
    again = keyed.enqueue("ann@example.com")
    say(f"the same request again: {'the same job' if again.id == job.id else 'another job'}")
    try:
        keyed.enqueue("bob@example.com")
    except IdempotencyConflict as conflict:
        say(f"a different request: {conflict}")

    title("Claimed by a worker, which says how far it is")
    (claimed,) = ledger.claim("worker-1", tasks=["mail.welcome"], n=1)
    say(f"attempt {claimed.attempt} of {claimed.max_attempts} with {claimed.payload}")
    ledger.report(
        [Said(claimed.lease, Report(stage="sending", done=1, total=2), [LogLine("info", "dialing")])]
    )
    if progress := job.refresh().progress:
        say(f"{progress.done} of {progress.total} done, {progress.stage}")

    title("Failed, and tried again")
    ledger.finish([work(claimed)])
    if error := job.refresh().error:
        say(f"{error.message}: {job.state} again, due at {job.run_at:%H:%M:%S}")
    say(f"nobody wants to wait that long: {app.run_now(job.id, by='ann')}")
    (claimed,) = ledger.claim("worker-1", tasks=["mail.welcome"], n=1)
    ledger.finish([work(claimed)])
    say(f"attempt {claimed.attempt} returned {job.get(timeout=1)}")

    title("Remembered")
    for entry in app.job_history(job.id):
        detail = ", ".join(f"{name} {value}" for name, value in entry.detail.items())
        say(f"{entry.at:%H:%M:%S.%f}  {entry.what:10} {detail}".rstrip())
    app.close()


def title(text: str) -> None:
    print(f"\n{text}")


def say(text: str) -> None:
    print(f"  {text}")


if __name__ == "__main__":
    with directory:
        main()
