"""A first job: enqueued once under a key, fails, is retried, succeeds; then its history is printed."""

from __future__ import annotations

import tempfile

from perdure import CONTEXT, App, Context, IdempotencyConflict, Retry

directory = tempfile.TemporaryDirectory(prefix="perdure-")
app = App(f"sqlite:///{directory.name}/jobs.db")


@app.task(name="mail.welcome", queue="mail", backoff=0.1)
async def welcome(to: str, greeting: str = "Hello", *, ctx: Context = CONTEXT) -> dict[str, int]:
    """Send a letter. The first attempt fails."""
    ctx.stage("sending")
    ctx.log(f"attempt {ctx.attempt}")
    if ctx.attempt == 1:
        raise Retry("the mail server hung up", code="smtp.421")
    return {"letters": len(f"{greeting}, {to}!")}


async def main() -> None:
    keyed = welcome.using(idempotency_key="welcome-7")
    job = await keyed.aenqueue("ann@example.com")
    print(f"job {job.id} is {job.state} in queue {job.queue}")
    again = await keyed.aenqueue("ann@example.com")
    print(f"the same request again: {'the same job' if again.id == job.id else 'another job'}")
    try:
        await keyed.aenqueue("bob@example.com")
    except IdempotencyConflict as conflict:
        print(f"a different request: {conflict}")

    async with app.worker(poll=0.1):
        print(f"it returned {await job.aget(timeout=10)}")

    for entry in await app.ajob_history(job.id):
        detail = ", ".join(f"{name} {value}" for name, value in entry.detail.items())
        print(f"  {entry.at:%H:%M:%S.%f}  {entry.what:10} {detail}".rstrip())
    await app.aclose()


if __name__ == "__main__":
    import asyncio

    with directory:
        asyncio.run(main())
