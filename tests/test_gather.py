"""Single enqueues of many tasks of one event loop are written together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import App
from perdure.errors import UnknownTask
from perdure.ops.enqueue import enqueue_each
from perdure.ops.op import Operation

MANY = 40


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
