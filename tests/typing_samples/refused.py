"""Every line with a remark ``refused`` is wrong, and no other: both checkers must say so of exactly these."""

from datetime import datetime

from perdure import CONTEXT, App, Backoff, Context, Workflow

app = App("sqlite:///jobs.db")
App("sqlite:///jobs.db", synchronous="off")  # refused: no such value
App(colour="blue")  # refused: no such option


@app.task(queue="mail")
async def send(to: str, subject: str, *, ctx: Context = CONTEXT) -> dict[str, str]:
    ctx.progress("half")  # refused: a number is wanted
    return {"to": to}


@app.task
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task(retries=3)  # refused: no such option
def nothing() -> None: ...


def arguments() -> None:
    send.enqueue("a@b.c", "hi")
    send.enqueue(to=3)  # refused: wrong type, and one is missing
    send.enqueue("a@b.c")  # refused: one is missing
    send.enqueue("a@b.c", subject=3)  # refused: wrong type
    send.enqueue("a@b.c", "hi", copies=3)  # refused: unknown
    send.enqueue("a@b.c", "hi", "there")  # refused: one too many
    send.delay("a@b.c")  # refused: one is missing
    send.job("a@b.c")  # refused: one is missing
    add("1")  # refused: wrong type
    add.enqueue(b=1)  # refused: one is missing
    add.enqueue(1.5)  # refused: wrong type
    add.using(delay=5).enqueue("1")  # refused: wrong type
    app.enqueue("add", [1])  # refused: arguments have names
    app.enqueue_many([add])  # refused: a task is no request
    app.enqueue_many(add.job(1))  # refused: one alone


def options() -> None:
    add.using(colour="blue")  # refused: no such option
    add.using(delay="60")  # refused: wrong type
    add.using(run_at=60)  # refused: wrong type
    add.using(priority=1.5)  # refused: wrong type
    add.using(tags=[1])  # refused: wrong type
    add.using(5)  # refused: options have names
    add.using(delay=60).using(retries=3)  # refused: no such option
    app.set_queue("mail", backoff="5")  # refused: wrong type
    app.set_queue("mail", colour="blue")  # refused: no such setting
    app.enqueue("add", {"a": 1}, colour="blue")  # refused: no such option
    app.enqueue("add", {"a": 1}, run_at=60)  # refused: wrong type
    app.list_jobs(state="done")  # refused: no such state
    app.list_jobs(task=add.using(delay=5))  # refused: neither a name nor a task
    app.set_task(print, enabled=False)  # refused: neither a name nor a task
    app.requeue_jobs(colour="blue")  # refused: no such condition
    app.delete_jobs(created_before=60)  # refused: wrong type
    Backoff(base="5")  # refused: wrong type


def results() -> None:
    job = send.enqueue("a@b.c", "hi")
    wrong: int = job.get()  # refused: the result is a dict
    maybe: dict[str, str] = job.result  # refused: it may not be there yet
    when: datetime = job.run_at  # refused: it may not be known yet
    job.get("soon")  # refused: a number of seconds
    job.state = 7  # refused: no such state
    words: list[str] = add.enqueue(1).get()  # refused: the result is an int
    number: int = send("a@b.c", "hi")  # refused: it was not awaited
    print(wrong, maybe, when, words, number, job.reslut)  # refused: no such name


def workflows() -> None:
    flow = Workflow("sums")
    first = flow.step("first", send.job("a@b.c", "hi"))
    flow.step("second", add.job(first.result), after=[first])  # refused: the result is a dict
    flow.step("third", add)  # refused: not a request
    flow.gate("gate", add.job(1))  # refused: no worker runs it
    app.resolve_gate("id", "gate", "done")  # refused: no such end


async def colours() -> None:
    await send.enqueue("a@b.c", "hi")  # refused: a blocking verb
    await app.pause_queue("mail")  # refused: a blocking verb
    await add(1)  # refused: not an async task
    send.aenqueue("a@b.c", "hi")  # refused: not awaited
    app.apause_queue("mail")  # refused: not awaited
    send("a@b.c", "hi")  # refused: not awaited
    (await send.aenqueue("a@b.c", "hi")).aget().get()  # refused: not awaited
    word: str = await (await send.aenqueue("a@b.c", "hi")).aget()  # refused: the result is a dict
    print(word)
