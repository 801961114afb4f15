"""A database for the length of a block, and how it takes the place of the app's own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast

import msgspec

from perdure.model.job import TaskDefinition
from perdure.ops.op import Op, Operation, operation
from perdure.store.sqlite.store import SqliteStore
from perdure.store.store import Store
from perdure.testing.run import in_a_loop
from perdure.worker.operations import WorkerOperations

if TYPE_CHECKING:
    from perdure.app import App

P = ParamSpec("P")
T = TypeVar("T")


@operation("write")
def run_inline() -> Op[None]:
    """No transaction: what inline mode asks of its store after an enqueue."""
    yield from ()


class ThrowAwayStore(SqliteStore):
    """A store that also knows how to run its jobs, in blocking code and in async code."""

    def __init__(
        self, path: str, *, clock: Callable[[], int], inline: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        super().__init__(path, synchronous="normal", clock=clock)
        self._inline = inline

    def perform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if operation is run_inline:
            return cast(T, in_a_loop(self._inline()))
        return super().perform(operation, *args, **kwargs)

    async def aperform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if operation is run_inline:
            return cast(T, await self._inline())
        return await super().aperform(operation, *args, **kwargs)


class Place(NamedTuple):
    """What of an app belongs to its database."""

    url: str | None
    store: Store | None
    operations: WorkerOperations | None
    tasks: frozenset[str]
    unsaved: dict[str, TaskDefinition]

    @classmethod
    def taken(cls, app: App, store: SqliteStore) -> Place:
        """Put a new store, which knows none of the tasks yet, into the place of the app's own."""
        operations = vars(app).pop("operations", None)
        before = cls(app._url, app._store, operations, frozenset(app.tasks), app._unsaved)
        # The processes of a worker open the database by themselves.
        app._url, app._store = f"sqlite:///{store.path}", store
        app._unsaved = _definitions(app)
        return before

    def give_back(self, app: App) -> None:
        vars(app).pop("operations", None)
        if self.operations is not None:
            vars(app)["operations"] = self.operations
        app._url, app._store = self.url, self.store
        # What the block has registered is new to the app's own database.
        app._unsaved = {
            name: definition
            for name, definition in _definitions(app).items()
            if name in self.unsaved or name not in self.tasks
        }


def _definitions(app: App) -> dict[str, TaskDefinition]:
    """Of every task, under each of its names."""
    return {name: msgspec.structs.replace(task.definition, name=name) for name, task in app.tasks.items()}
