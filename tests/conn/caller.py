"""A caller with a connection of its own, in a thread, with an event loop if the driver needs one."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any, ClassVar, Literal


class Caller:
    """The part common to all drivers. Subclasses define how their library opens, begins and ends.

    The methods that subclasses override run in the caller's thread, and may be coroutines.
    """

    mode: ClassVar[Literal["sync", "async"]] = "sync"
    driver = ""

    def __init__(self, url: str) -> None:
        self.url = url
        self.conn: Any = None
        self.spoiled = False
        self._loop = asyncio.Runner() if self.mode == "async" else None
        self._thread = ThreadPoolExecutor(1)
        self._wait(self.open)

    # What differs between libraries.

    def open(self) -> Any:
        raise NotImplementedError

    def close(self) -> Any:
        return self.conn.close()

    def say(self, sql: str) -> Any:
        return self.conn.execute(sql)

    def commit(self) -> Any:
        return self.conn.commit()

    def rollback(self) -> Any:
        return self.conn.rollback()

    def begin_to_read(self) -> Any:
        """On SQLite: a transaction that has no lock yet."""
        return self.say("BEGIN")

    async def nested(self, act: Callable[[], Any]) -> None:
        """Run the action inside a savepoint of the library, and roll it back."""
        await done(self.say("SAVEPOINT theirs"))
        await done(act())
        await done(self.say("ROLLBACK TO SAVEPOINT theirs"))

    # For tests.

    def does(self, act: Callable[..., Any], *args: Any) -> Any:
        return self._wait(act, *args)

    def inserts(self, id: int) -> None:
        self._wait(self.say, f"INSERT INTO {theirs(self.url)} VALUES ({id})")

    def verb(self, subject: Any, verb: str, *args: Any, **options: Any) -> Any:
        """Call a method, or its async version, whichever fits the connection."""
        return self.starts(subject, verb, *args, **options).result(60)

    def starts(self, subject: Any, verb: str, *args: Any, **options: Any) -> Future[Any]:
        name = f"a{verb}" if self.mode == "async" else verb
        return self._thread.submit(self._run, lambda: getattr(subject, name)(*args, **options))

    def wrong_verb(self, subject: Any, verb: str, *args: Any, **options: Any) -> Any:
        """Call the one that does not fit. Blocking methods run outside an event loop, async ones inside."""

        def act() -> Any:
            if self.mode == "async":
                return getattr(subject, verb)(*args, **options)
            return asyncio.run(getattr(subject, f"a{verb}")(*args, **options))

        return self._thread.submit(act).result(60)

    def rolls_back_a_savepoint_around(self, subject: Any, verb: str, *args: Any) -> None:
        name = f"a{verb}" if self.mode == "async" else verb
        self._wait(self._nested, lambda: getattr(subject, name)(*args))

    def closes(self) -> None:
        """Before the end of the test: at the end there is nothing left to close, or it fails."""
        self.spoiled = True
        self._wait(self.close)

    def ends(self) -> None:
        try:
            if self.spoiled and self.driver == "pg8000":
                self._close_and_collect()
                return
            with suppress(Exception) if self.spoiled else nullcontext():
                self._wait(self.close)
        finally:
            if self._loop is not None:
                self._thread.submit(self._loop.close).result(60)
            self._thread.shutdown()

    def _close_and_collect(self) -> None:
        """Collect a lost connection here, where it may complain, and not during the next test.

        pg8000 closes its socket, but not the file it has made of that: depending on which of the two the garbage
        collector finalizes first, the socket warns, or the file fails to send what it has buffered. SQLAlchemy logs
        the error, and pytest keeps the record, with the connection in its traceback.
        """
        hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        logging.disable()
        try:
            with suppress(Exception):
                self._wait(self.close)
            self.conn = None
            gc.collect()
        finally:
            logging.disable(logging.NOTSET)
            sys.unraisablehook = hook

    def _nested(self, act: Callable[[], Any]) -> Any:
        if self.mode == "async":
            return self.nested(act)
        # Nothing in it waits, so it ends after one step.
        try:
            self.nested(act).send(None)
        except StopIteration:
            return None
        raise AssertionError("a blocking caller has waited")

    def _wait(self, act: Callable[..., Any], *args: Any) -> Any:
        return self._thread.submit(self._run, act, *args).result(60)

    def _run(self, act: Callable[..., Any], *args: Any) -> Any:
        if self._loop is None:
            return act(*args)
        return self._loop.run(done_by(act, *args))


def theirs(url: str) -> str:
    """A table of the caller, outside perdure's schema."""
    return "theirs" if url.startswith("sqlite") else "public.theirs"


async def done_by(act: Callable[..., Any], *args: Any) -> Any:
    return await done(act(*args))


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
