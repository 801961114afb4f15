"""What every contestant is asked, by its arguments, and how it answers: one JSON object per line.

    python -m bench.peers.NAME URL [--kind sync] [--blocking] [--uvloop] COMMAND [ARGUMENT...]

    version                      {"versions": {"celery": "5.7.0", ...}}
    setup                        makes the tables; {"ready": true}
    enqueue-singles N            one after the other; {"seconds": 1.2}
    enqueue-concurrent N CALLERS {"seconds": 1.2}, or null where there is no async API
    enqueue-many N               a thousand at a time; {"seconds": 1.2}, or null where there is no bulk call
    fill N                       the quickest way there is, not measured; {"ready": true}
    remaining                    jobs the store does not show as finished; {"remaining": 3}
    watch                        after each line on stdin waits until none remains; {"empty": NANOSECONDS}
    enqueue-tagged N PAUSE       one by one, PAUSE seconds apart on average; {"asked": [NANOSECONDS, ...]}
    enqueue-paced RATE SECONDS   by bulk calls every 10 ms; {"asked": [NANOSECONDS for each job, ...]}
    worker CONCURRENCY           {"first": NANOSECONDS} when the first handler begins, {"entered": N} as they go;
                                 ends with stdin, then tells {"began": [[TAG, NANOSECONDS], ...]}

Times are of ``time.monotonic_ns``, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import random
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")

BULK = 1000
TICK = 0.01
WARM_UP = 20
"""Calls before the clock starts: a pool opens, statements get prepared."""

TO, SUBJECT = "user@example.com", "Welcome aboard"
"""With its number, the arguments of every job."""
UNTAGGED = -1
"""The number of a job whose start nobody wants to know."""


class Peer:
    """One queue. A subclass says how it is used; what is done with it is the same for all.

    ``one``, ``many`` and ``remaining`` are coroutines even where the library blocks: such a coroutine never waits
    for an event loop and is run without one.
    """

    packages: ClassVar[tuple[str, ...]]
    kinds: ClassVar[tuple[str, ...]] = ("async", "sync")
    """Of handlers; the first is what it is measured with."""
    has_bulk: ClassVar[bool] = True
    has_async: bool = True

    def __init__(self, url: str, *, kind: str = "", blocking: bool = False) -> None:
        self.url = url
        self.kind = kind or self.kinds[0]
        self.blocking = blocking

    async def setup(self) -> None:
        """Make what it needs in an empty database."""

    async def connect(self) -> None:
        """Before the first of the calls below."""

    async def one(self, tag: int) -> None:
        """Enqueue a job; it is stored when this returns."""
        raise NotImplementedError

    async def many(self, tags: Sequence[int]) -> None:
        """Enqueue jobs by one call."""
        raise NotImplementedError

    async def remaining(self) -> int:
        """How many jobs are not finished, by the store's own truth."""
        raise NotImplementedError

    def work(self, concurrency: int) -> None:
        """Run jobs until the process is ended."""
        raise NotImplementedError


class Notes:
    """What a worker tells about its handlers. They call ``begin`` first of all."""

    def __init__(self) -> None:
        self._out = sys.stdout
        self._entered = itertools.count()
        self._begun = False
        self._began: list[tuple[int, int]] = []

    def take_stdout(self) -> None:
        """Libraries write there as they like; from now on only our own lines get there, theirs to stderr."""
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def tell(self, **what: object) -> None:
        self._out.write(json.dumps(what) + "\n")

    def begin(self, tag: int) -> None:
        now = time.monotonic_ns()
        if not self._begun:
            self._begun = True
            self.tell(first=now)
        next(self._entered)  # atomic, where += by several threads would lose some
        if tag != UNTAGGED:
            self._began.append((tag, now))

    def entered(self) -> int:
        return int(repr(self._entered)[6:-1])  # "count(7)": there is no other way to look without counting

    def follow(self) -> None:
        """Tell how many have begun, as long as the worker lives; end it with stdin."""
        threading.Thread(target=self._tell_progress, daemon=True).start()
        threading.Thread(target=self._end_with_stdin, daemon=True).start()

    def _tell_progress(self) -> None:
        told = 0
        while True:
            time.sleep(0.02)
            if (entered := self.entered()) != told:
                told = entered
                self.tell(entered=told)

    def _end_with_stdin(self) -> None:
        sys.stdin.read()
        self.tell(began=self._began, entered=self.entered())
        self._out.flush()
        os._exit(0)  # nothing that is measured is left to do, and some take seconds to stop


notes = Notes()


def main(peer: type[Peer], arguments: Sequence[str] | None = None) -> None:
    """Do what the arguments ask and tell the answer."""
    asked = _parse(arguments)
    notes.take_stdout()
    logging.disable(logging.WARNING)
    if asked.command == "version":
        notes.tell(versions={name: version(name) for name in peer.packages})
        return
    made = peer(asked.url, kind=asked.kind, blocking=asked.blocking)
    if asked.command == "worker":
        notes.follow()
        if asked.uvloop:
            _use_uvloop()
        made.work(int(asked.arguments[0]))
        return
    numbers = [float(argument) for argument in asked.arguments]
    run(made, COMMANDS[asked.command](made, *numbers))


def run(peer: Peer, work: Coroutine[Any, Any, T]) -> T:
    """In an event loop, or without one where the library blocks: some refuse to block inside a loop."""
    if peer.has_async:
        return asyncio.run(work)
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("A library that blocks has waited for an event loop.")


def _parse(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--kind", default="")
    parser.add_argument("--blocking", action="store_true")
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("command", choices=["version", "worker", *COMMANDS])
    parser.add_argument("arguments", nargs="*")
    return parser.parse_args(arguments)


def _use_uvloop() -> None:
    """For a worker alone, where its own command does so: which loop a program that enqueues has is its affair."""
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


async def _setup(peer: Peer) -> None:
    await peer.setup()
    notes.tell(ready=True)


async def _singles(peer: Peer, n: float) -> None:
    await peer.connect()
    for _ in range(WARM_UP):
        await peer.one(UNTAGGED)
    start = time.perf_counter()
    for _ in range(int(n)):
        await peer.one(UNTAGGED)
    notes.tell(seconds=time.perf_counter() - start)


async def _concurrent(peer: Peer, n: float, callers: float) -> None:
    if not peer.has_async:
        notes.tell(seconds=None)
        return
    await peer.connect()
    await _by_callers(peer, int(callers), 2)
    start = time.perf_counter()
    await _by_callers(peer, int(callers), int(n / callers))
    notes.tell(seconds=time.perf_counter() - start)


async def _by_callers(peer: Peer, callers: int, each: int) -> None:
    async def call() -> None:
        for _ in range(each):
            await peer.one(UNTAGGED)

    await asyncio.gather(*(call() for _ in range(callers)))


async def _many(peer: Peer, n: float) -> None:
    if not peer.has_bulk:
        notes.tell(seconds=None)
        return
    await peer.connect()
    await peer.many([UNTAGGED])
    start = time.perf_counter()
    for _ in range(0, int(n), BULK):
        await peer.many([UNTAGGED] * BULK)
    notes.tell(seconds=time.perf_counter() - start)


async def _fill(peer: Peer, n: float) -> None:
    await peer.connect()
    whole, rest = divmod(int(n), BULK)
    for size in [BULK] * whole + [rest] * bool(rest):
        if peer.has_bulk:
            await peer.many([UNTAGGED] * size)
        else:
            for _ in range(size):
                await peer.one(UNTAGGED)
    notes.tell(ready=True)


async def _remaining(peer: Peer) -> None:
    await peer.connect()
    notes.tell(remaining=await peer.remaining())


async def _watch(peer: Peer) -> None:
    await peer.connect()
    await peer.remaining()
    notes.tell(ready=True)
    while sys.stdin.readline():
        while left := await peer.remaining():
            # The look costs the machine something; the error it may make is a small part of the seconds measured.
            await _sleep(peer, 0.005 if left < BULK else 0.05)
        notes.tell(empty=time.monotonic_ns())


async def _tagged(peer: Peer, n: float, pause: float) -> None:
    await peer.connect()
    rng = random.Random(7)
    asked = []
    for tag in range(int(n)):
        await _sleep(peer, pause * rng.uniform(0.5, 1.5))
        asked.append(time.monotonic_ns())
        await peer.one(tag)
    notes.tell(asked=asked)


async def _paced(peer: Peer, rate: float, seconds: float) -> None:
    if not peer.has_bulk:
        notes.tell(asked=None)
        return
    await peer.connect()
    asked: list[int] = []
    start = time.monotonic()
    for tick in range(1, int(seconds / TICK) + 1):
        due = int(rate * TICK * tick) - len(asked)
        asked += [time.monotonic_ns()] * due
        await peer.many(range(len(asked) - due, len(asked)))
        await _sleep(peer, max(0.0, start + TICK * tick - time.monotonic()))
    notes.tell(asked=asked)


async def _sleep(peer: Peer, seconds: float) -> None:
    if peer.has_async:
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "setup": _setup,
    "enqueue-singles": _singles,
    "enqueue-concurrent": _concurrent,
    "enqueue-many": _many,
    "fill": _fill,
    "remaining": _remaining,
    "watch": _watch,
    "enqueue-tagged": _tagged,
    "enqueue-paced": _paced,
}
