"""Single enqueues of many tasks of one event loop are written together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from perdure import App
from perdure.client.job import Job
from perdure.errors import PerdureError, SchemaMissing, StoreAway, TaskDisabled, UnknownTask
from perdure.ops.enqueue import enqueue_each
from perdure.ops.op import Operation
from perdure.ops.tasks import list_tasks
from perdure.plan import once_per_loop
from perdure.plan.coalesce import Coalescer
from tests.harness.waiting import auntil

MANY = 40
SOME_DAY = datetime(2100, 1, 1, tzinfo=UTC)


class Groups:
    """How many jobs each call of the store wrote."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.hold = asyncio.Event()
        self.hold.set()
        aperform = app.store.aperform

        async def counted(operation: Operation[..., Any], *args: Any, **kwargs: Any) -> Any:
            if operation is enqueue_each:
                (asked,) = args
                self.sizes.append(len(asked))
                await self.hold.wait()
            return await aperform(operation, *args, **kwargs)

        monkeypatch.setattr(app.store, "aperform", counted)


@pytest.fixture
async def app(url: str) -> Any:
    app = App(url)
    await app.amigrate()
    yield app
    await asyncio.to_thread(app.close)


async def known(app: App) -> Any:
    """A task that the database knows already, by one job."""

    @app.task(name="note")
    async def note(n: int) -> None: ...

    await note.aenqueue(-1)
    return note


def ids(jobs: Sequence[Any]) -> set[str]:
    return {job.id for job in jobs}


async def test_callers_at_the_same_time_share_a_few_commits(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = await known(app)
    groups = Groups(app, monkeypatch)
    jobs = await asyncio.gather(*(note.aenqueue(n) for n in range(MANY)))
    assert sum(groups.sizes) == MANY
    assert len(groups.sizes) <= 4
    assert all(job.created and job.queue == "default" for job in jobs)
    rows = await app.alist_jobs(limit=MANY + 1)
    assert len(ids(jobs)) == MANY
    assert ids(jobs) < ids(rows)


class Looks:
    """How often the tasks that the database knows are asked for; the first time it answers with an ``error``."""

    def __init__(
        self, app: App, monkeypatch: pytest.MonkeyPatch, *, error: PerdureError | None = None
    ) -> None:
        self.n = 0
        self.hold = asyncio.Event()
        self.hold.set()
        aperform = app.store.aperform

        async def counted(operation: Operation[..., Any], *args: Any, **kwargs: Any) -> Any:
            if operation is list_tasks:
                self.n += 1
                first = self.n == 1
                await asyncio.sleep(0)  # the others come
                await self.hold.wait()
                if first and error is not None:
                    raise error
            return await aperform(operation, *args, **kwargs)

        monkeypatch.setattr(app.store, "aperform", counted)


async def test_the_first_callers_of_a_process_look_once_and_keep_their_order(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="note")
    async def note(n: int) -> None: ...

    looks = Looks(app, monkeypatch)
    jobs = await asyncio.gather(*(note.aenqueue(n) for n in range(MANY)))
    assert looks.n == 1
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)


async def test_a_database_that_is_away_is_waited_for_by_one_for_all(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="note")
    async def note(n: int) -> None: ...

    monkeypatch.setattr(once_per_loop, "monotonic", lambda: 0.0)  # they all come at once
    looks = Looks(app, monkeypatch, error=StoreAway())
    answers = await asyncio.gather(*(note.aenqueue(n) for n in range(MANY)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreAway}
    assert len(set(map(id, answers))) == MANY, "each has a traceback of its own"
    assert looks.n == 1
    assert (await note.aenqueue(0)).created


async def test_who_came_late_has_patience_of_its_own(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(name="note")
    async def note(n: int) -> None: ...

    looks, waiting, calls = Looks(app, monkeypatch, error=StoreAway()), app._save_once._waiting, list[Any]()
    looks.hold.clear()
    for now in (0.0, 1.0, 4.0):
        monkeypatch.setattr(once_per_loop, "monotonic", lambda now=now: now)
        calls.append(asyncio.create_task(note.aenqueue(len(calls))))
        await auntil(lambda: looks.n == 1 and [*map(len, waiting.values())] == [len(calls) - 1])
    monkeypatch.setattr(once_per_loop, "monotonic", lambda: 5.0)
    looks.hold.set()
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert (type(first), type(second)) == (StoreAway, StoreAway)
    assert isinstance(third, Job)


async def test_who_looks_in_vain_leaves_it_to_the_next(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(name="note")
    async def note(n: int) -> None: ...

    looks = Looks(app, monkeypatch, error=SchemaMissing())
    answers = await asyncio.gather(*(note.aenqueue(n) for n in range(MANY)), return_exceptions=True)
    assert [type(answer) for answer in answers].count(SchemaMissing) == 1
    assert isinstance(answers[0], SchemaMissing)
    assert len(await app.alist_jobs(limit=MANY)) == MANY - 1
    assert looks.n == 2


async def test_who_looks_and_is_cancelled_leaves_it_to_the_next(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="note")
    async def note(n: int) -> None: ...

    looks = Looks(app, monkeypatch)
    looks.hold.clear()
    first, second, third = (asyncio.create_task(note.aenqueue(n)) for n in range(3))
    await auntil(lambda: looks.n == 1)
    first.cancel()
    second.cancel()
    await auntil(lambda: looks.n == 2)
    looks.hold.set()
    assert (await third).created
    assert first.cancelled()
    assert second.cancelled()


async def test_nobody_waits_for_company(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    note = await known(app)
    groups = Groups(app, monkeypatch)
    for n in range(3):
        await note.aenqueue(n)
    assert groups.sizes == [1, 1, 1]


async def test_a_refusal_is_only_for_whom_it_concerns(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    note = await known(app)
    groups = Groups(app, monkeypatch)
    asked = [note.aenqueue(n) for n in range(MANY)]
    asked.insert(MANY // 2, app.aenqueue("unheard of"))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [type(error) for error in refused] == [UnknownTask]
    assert max(groups.sizes) > 1
    jobs = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(ids(jobs)) == MANY
    assert await app.acount_jobs() == {"default": {"ready": MANY + 1}}


async def test_a_caller_that_was_cancelled_in_line_has_asked_for_nothing(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = await known(app)
    groups = Groups(app, monkeypatch)
    groups.hold.clear()
    callers = [asyncio.create_task(note.aenqueue(n)) for n in range(MANY)]
    await asyncio.sleep(0)
    for caller in callers[-10:]:
        caller.cancel()
    groups.hold.set()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert sum(isinstance(answer, asyncio.CancelledError) for answer in answers) == 10
    assert await app.acount_jobs() == {"default": {"ready": 1 + MANY - 10}}


async def test_the_line_moves_on_when_whoever_is_in_front_gives_up(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = await known(app)
    groups = Groups(app, monkeypatch)
    groups.hold.clear()
    callers = [asyncio.create_task(note.aenqueue(n)) for n in range(MANY)]
    await asyncio.sleep(0)
    for caller in callers[:2]:
        caller.cancel()
    await asyncio.wait(callers[:2])
    groups.hold.set()
    jobs = await asyncio.gather(*callers[2:])
    assert len(ids(jobs)) == MANY - 2


def test_event_loops_come_and_go(url: str) -> None:
    app = App(url)
    app.migrate()

    @app.task(name="note")
    async def note(n: int) -> None: ...

    async def some() -> None:
        await asyncio.gather(*(note.aenqueue(n) for n in range(MANY)))

    for _ in range(3):
        asyncio.run(some())
    assert app.count_jobs() == {"default": {"ready": 3 * MANY}}
    app.close()


async def test_each_gets_what_it_asked_for_whoever_asks_beside_it(app: App) -> None:
    note = await known(app)
    asked: list[tuple[Any, dict[str, Any]]] = [
        (note, {"queue": "default", "priority": 0, "tenant": None, "later": False}),
        (note.using(queue="b", priority=3), {"queue": "b", "priority": 3, "tenant": None, "later": False}),
        (note.using(tenant="acme"), {"queue": "default", "priority": 0, "tenant": "acme", "later": False}),
        (note.using(delay=60), {"queue": "default", "priority": 0, "tenant": None, "later": True}),
        (note.using(run_at=SOME_DAY), {"queue": "default", "priority": 0, "tenant": None, "later": True}),
    ]
    for groups in ([each] * MANY for each in asked), [asked * 8]:
        for group in groups:
            jobs = await asyncio.gather(*(task.aenqueue(n) for n, (task, _) in enumerate(group)))
            rows = await app.aget_jobs([job.id for job in jobs])
            for n, (job, row, (_, wanted)) in enumerate(zip(jobs, rows, group, strict=True)):
                assert row is not None
                stored = row._row
                assert stored is not None
                later = stored.run_at > stored.created_at
                found = {
                    "queue": row.queue,
                    "priority": stored.priority,
                    "tenant": stored.tenant,
                    "later": later,
                }
                assert (found, stored.payload, job.queue, job.created) == (
                    wanted,
                    f'{{"n":{n}}}',
                    row.queue,
                    True,
                )


async def test_a_disabled_task_refuses_all_who_ask_for_it_together(app: App) -> None:
    note = await known(app)
    await app.aset_task("note", enabled=False)
    answers = await asyncio.gather(*(note.aenqueue(n) for n in range(MANY)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {TaskDisabled}
    assert await app.acount_jobs() == {"default": {"ready": 1}}


class Held:
    """A store that answers when it is told to."""

    def __init__(self) -> None:
        self.sent: list[Sequence[str]] = []
        self.answers: list[asyncio.Future[None]] = []

    async def aperform(self, _: object, asked: Sequence[str]) -> list[str]:
        self.sent.append(asked)
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]
        return [*asked]


async def test_the_next_group_is_sent_before_those_of_the_last_one_go_on() -> None:
    """Or the database would wait while they ask for more, which takes as long as to write it."""
    store, seen = Held(), list[int]()
    sent, answers = store.sent, store.answers
    coalescer: Coalescer[str, str] = Coalescer(cast(Any, None))

    async def caller(name: str) -> None:
        assert await coalescer.aperform(cast(Any, store), name) == name
        seen.append(len(sent))

    callers = [asyncio.create_task(caller(name)) for name in "abcde"]
    await asyncio.sleep(0)
    assert sent == [["a"], ["b"]]
    answers[0].set_result(None)
    await callers[0]
    await asyncio.sleep(0)
    callers += [asyncio.create_task(caller(name)) for name in "fg"]
    await asyncio.sleep(0)
    assert sent == [["a"], ["b"], ["c", "d", "e"]]
    seen.clear()
    answers[2].set_result(None)
    await asyncio.gather(*callers[2:5])
    assert seen == [4, 4, 4]
    assert sent[3:] == [["f", "g"]]
    for answer in (answers[1], answers[3]):
        answer.set_result(None)
    await asyncio.gather(*callers)


async def test_the_line_moves_on_although_who_should_serve_it_is_cancelled_before_it_begins() -> None:
    """As a program does that cancels whatever is there, and then says a last word."""
    store = Held()
    coalescer: Coalescer[str, str] = Coalescer(cast(Any, None))
    here = asyncio.current_task()

    async def caller(name: str) -> None:
        assert await coalescer.aperform(cast(Any, store), name) == name
        if name in "ab":
            for task in asyncio.all_tasks() - {here, asyncio.current_task(), *callers}:
                task.cancel()

    async def answer(n: int) -> None:
        await auntil(lambda: len(store.answers) > n)
        store.answers[n].set_result(None)

    callers = [asyncio.create_task(caller(name)) for name in "abc"]
    for n in range(3):
        await answer(n)
    await asyncio.wait_for(asyncio.gather(*callers), 60)
    assert store.sent == [["a"], ["b"], ["c"]]
    await asyncio.wait_for(asyncio.gather(caller("d"), answer(3)), 10)
