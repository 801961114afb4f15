"""The workloads of ``perdure bench``. perdure and bare SQL take turns, each for a share of the time.

They take turns because a machine may be half as fast a minute later. Only figures measured close together can be
compared.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from statistics import median, quantiles
from typing import NamedTuple

import click

from perdure.cli.bench.bare import BULK, Bare, open_bare
from perdure.cli.bench.tables import Place, drivers_errors
from perdure.cli.bench.worker import PICK_UP, TASK, another_worker, begun

ROUNDS = 3
CALLERS = 50
SLOTS = 100
MOST = 50_000
"""The most rows that one round writes in bulk. They take seconds to drain, and do not fill a disk."""
LOOK = 0.01

TO, SUBJECT = "user@example.com", "Welcome aboard"


class Range(NamedTuple):
    """The slowest and the fastest round of a workload."""

    low: float
    high: float


class Figures(NamedTuple):
    """Jobs per second by workload, for perdure and for bare SQL; and seconds until an idle worker begins a job."""

    ours: dict[str, float]
    """The median of the rounds."""
    bare: dict[str, float]
    pick_up: dict[int, float]
    """Seconds, by percentile."""
    ours_range: dict[str, Range]
    bare_range: dict[str, Range]


class Step(NamedTuple):
    title: str
    share: int
    run: Callable[[float], object]
    """Takes the number of seconds that the step may run."""


def measure(place: Place, seconds: float) -> Figures:
    with closing(open_bare(place)) as bare:
        work = Work(place, bare)
        steps = list(work.steps())
        each = seconds / sum(step.share for step in steps)
        with click.progressbar(
            length=sum(step.share for step in steps),
            label="Measuring",
            item_show_func=_title,
            width=24,
            file=sys.stderr,
        ) as bar:
            for step in steps:
                bar.update(0, step.title)
                step.run(each * step.share)
                bar.update(step.share, step.title)
        return work.figures()


class Work:
    """The workloads, and their measurements so far."""

    def __init__(self, place: Place, bare: Bare) -> None:
        self._place = place
        self._app = place.app
        self._bare = bare
        self._ours: dict[str, list[float]] = {}
        self._theirs: dict[str, list[float]] = {}
        self._waits: list[float] = []
        self._run = 0
        self._first = 0.0

        async def send(to: str, subject: str, *, number: int) -> None:
            self._first = self._first or time.perf_counter()
            self._run += 1

        self._send = self._app.task(name="perdure.bench.send")(send)
        self._begun = self._app.task(name=TASK, queue=PICK_UP)(begun)

    def steps(self) -> Iterator[Step]:
        """The steps in order.

        The time is divided into equal shares, and each step gets one or more. By default, one share is about as long as
        a workload needs to reach its full rate.
        """
        yield Step("warming up", 1, self._warm_up)
        for number in range(ROUNDS):
            queue = f"bench-{number}"
            yield Step("bare one by one", 1, partial(self._bare_rate, "singles", self._bare.insert))
            yield Step("one by one", 1, self._singles)
            yield Step(f"{CALLERS} callers", 1, self._callers)
            yield Step("bare bulk", 1, partial(self._bare_rate, "bulk", self._bare.insert_many, most=MOST))
            yield Step("in bulk", 1, partial(self._bulk, queue))
            yield Step("bare drain", 1, partial(self._bare_rate, "drain", self._bare.cycle))
            yield Step("drain", 2, partial(self._drain, queue))
        yield Step("pick-up", 3, self._pick_up)

    def figures(self) -> Figures:
        points = quantiles(self._waits, n=100, method="inclusive")
        return Figures(
            {name: median(rates) for name, rates in self._ours.items()},
            {name: median(rates) for name, rates in self._theirs.items()},
            {at: points[at - 1] for at in (50, 99)},
            {name: Range(min(rates), max(rates)) for name, rates in self._ours.items()},
            {name: Range(min(rates), max(rates)) for name, rates in self._theirs.items()},
        )

    def _warm_up(self, seconds: float) -> None:
        """Open connections and prepare statements."""
        _rate(self._one, seconds / 2, most=20)
        with drivers_errors(self._place.bare.dialect):
            _rate(self._bare.insert, seconds / 2, most=20)

    def _bare_rate(
        self, name: str, do: Callable[[], int], seconds: float, *, most: float = float("inf")
    ) -> None:
        with drivers_errors(self._place.bare.dialect):
            self._theirs.setdefault(name, []).append(_rate(do, seconds, most=most))

    def _singles(self, seconds: float) -> None:
        self._note("singles", _rate(self._one, seconds))

    def _one(self) -> int:
        self._send.enqueue(TO, SUBJECT, number=1)
        return 1

    def _callers(self, seconds: float) -> None:
        async def call(until: float) -> int:
            n = 0
            while time.perf_counter() < until:
                await self._send.aenqueue(TO, SUBJECT, number=n)
                n += 1
            return n

        async def together() -> float:
            start = time.perf_counter()
            done = await asyncio.gather(*(call(start + seconds) for _ in range(CALLERS)))
            return sum(done) / (time.perf_counter() - start)

        self._note("callers", asyncio.run(together()))

    def _bulk(self, queue: str, seconds: float) -> None:
        task = self._send.using(queue=queue)

        def many() -> int:
            return len(self._app.enqueue_many([task.job(TO, SUBJECT, number=n) for n in range(BULK)]))

        self._note("bulk", _rate(many, seconds, most=MOST))

    def _drain(self, queue: str, seconds: float) -> None:
        """Run the queue's jobs with a worker in this process. The process does nothing else meanwhile."""
        waiting = sum(self._app.count_jobs(queue=queue)[queue].values())

        async def work() -> float:
            self._run, self._first = 0, 0.0
            async with self._app.worker(queues=[queue], concurrency=SLOTS):
                until = time.perf_counter() + seconds
                while self._run < waiting and (not self._run or time.perf_counter() < until):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK)
                return self._run / (time.perf_counter() - self._first)

        self._note("drain", asyncio.run(work()))

    def _pick_up(self, seconds: float) -> None:
        """Measure how soon an idle worker in another process begins a job."""
        with another_worker(self._place):
            until = time.perf_counter() + seconds
            self._pick_up_one()  # not measured: it waits until the worker runs
            while time.perf_counter() < until or len(self._waits) < 2:
                self._waits.append(self._pick_up_one())

    def _pick_up_one(self) -> float:
        before = time.monotonic_ns()
        return (self._begun.enqueue().get(timeout=30) - before) / 1e9

    def _note(self, name: str, rate: float) -> None:
        self._ours.setdefault(name, []).append(rate)


def _title(title: str | None) -> str | None:
    return title


def _rate(do: Callable[[], int], seconds: float, *, most: float = float("inf")) -> float:
    """The rate per second, measured until the time is up, ``most`` is reached, or nothing is left to do."""
    start = time.perf_counter()
    n, done = 0, 1
    while done and n < most and time.perf_counter() < start + seconds:
        done = do()
        n += done
    return n / (time.perf_counter() - start)
