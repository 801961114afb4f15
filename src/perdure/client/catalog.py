"""The app's methods that declare queues, and that save the program's tasks and queues to the database."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from perdure.client.queues import QueueChanges, checked_settings
from perdure.errors import InvalidOption, StoreBusy, StoreReadOnly, TaskNotSaved, Unavailable
from perdure.model.job import TaskDefinition
from perdure.model.queue_settings import Settings
from perdure.ops import queues as queue_ops
from perdure.ops import tasks as task_ops
from perdure.plan.once_per_loop import OncePerLoop
from perdure.plan.plan import Plan, async_method, perform, perform_at_once, run_once, sync_method
from perdure.request.options import flag, text
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.client.task import Task

_log = logging.getLogger("perdure")


class CatalogMethods:
    """Methods of App that declare and save tasks and queues."""

    if TYPE_CHECKING:
        tasks: dict[str, Task[..., Any]]
        queues: dict[str, Settings]
        _unsaved: dict[str, TaskDefinition]
        _unsaved_queues: dict[str, Settings]
        declared_limits: dict[str, int]
        _save_once: OncePerLoop

        @property
        def store(self) -> Store: ...

        def _limits_differ(self) -> Plan[bool]: ...

    def queue(self, name: str, **settings: Unpack[QueueChanges]) -> None:
        """Declare settings of a queue: ``app.queue("mail", concurrency=20)``.

        ``set_queue`` overrides these settings.
        """
        queue, declared = text("queue", name), checked_settings(settings)
        if self.queues.get(queue, declared) != declared:
            raise InvalidOption(
                f"The queue {queue} is declared already, with other settings.", code="queue.declared_twice"
            )
        self.queues[queue] = self._unsaved_queues[queue] = declared

    def _save_tasks(self, *, exact: bool = False) -> Plan[None]:
        """Write the tasks and declared queues of this program to the database.

        ``exact`` disables all other tasks in the database, and removes the queue settings that other programs have
        declared.
        """
        definitions = [*self._definitions().values()]
        known = yield from perform(task_ops.list_tasks)
        names = {one.name for one in definitions}
        others = flag("exact", exact) and any(
            task.enabled for name, task in known.items() if name not in names
        )
        # If nothing differs, write nothing: the role may lack the right to write tasks.
        if others or _differing(definitions, known) or (yield from self._limits_differ()):
            yield from perform(task_ops.sync, definitions, limits=self.declared_limits, exact=exact)
        self._mark_saved(definitions)
        yield from self._save_queues(None, dict(self.queues), exact=exact)

    save_tasks, asave_tasks = sync_method(_save_tasks), async_method(_save_tasks)

    def _ready(self, conn: object | None, *, strict: bool = False) -> Plan[None]:
        """Save the tasks and queues that were declared and are not saved yet.

        ``strict``: raise if the database role may not write tasks, instead of logging a warning. Callers set this after
        the database refused a job because it lacks the job's task.
        """
        if conn is not None:
            yield from self._save_unsaved(conn, strict=strict)
            return
        # If several asyncio tasks call this at the same time, one of them saves, and the others wait until it is done.
        while self._unsaved or self._unsaved_queues:
            if (done := (yield from run_once(self._save_once))) is not None:
                away = None
                try:
                    yield from self._save_unsaved(None, strict=strict)
                except Unavailable as error:
                    away = error
                    raise
                finally:
                    done(away)

    def _save_unsaved(self, conn: object | None, *, strict: bool) -> Plan[None]:
        if self._unsaved:
            yield from self._save_unsaved_tasks(conn, strict=strict)
        if self._unsaved_queues:
            yield from self._save_unsaved_queues(conn)

    def _save_unsaved_tasks(self, conn: object | None, *, strict: bool) -> Plan[None]:
        definitions = list(self._unsaved.values())
        known: dict[str, task_ops.KnownTask] = {}
        # Do not wait for SQLite's write lock: the caller's own transaction may hold it, and does not end while we wait.
        do = perform if conn is None else perform_at_once
        try:
            known = yield from do(task_ops.list_tasks)
            stale = _differing(definitions, known)
            if stale or (yield from self._limits_differ()):
                yield from do(task_ops.sync, stale, limits=self.declared_limits)
        except StoreBusy:
            if conn is None:
                raise
            if missing := [one.name for one in definitions if one.name not in known]:
                raise TaskNotSaved(_not_saved(missing)) from None
            return
        except StoreReadOnly as error:
            # A job whose task is in the database must not fail because another task is missing.
            if strict or not known or error.code != "store.forbidden":
                raise
            _log.warning("Tasks of this program could not be written to the database: %s", error)
        self._mark_saved(definitions)

    def _save_unsaved_queues(self, conn: object | None) -> Plan[None]:
        try:
            yield from self._save_queues(conn, dict(self._unsaved_queues))
        except StoreBusy:
            if conn is None:
                raise
            # Jobs can be enqueued before these settings are saved. The next call tries to save them again.

    def _save_queues(
        self, conn: object | None, declared: Mapping[str, Settings], *, exact: bool = False
    ) -> Plan[None]:
        """Save settings of queues. If the database role may not write them, log a warning and leave it to workers."""
        if not (declared or exact):
            return
        do = perform if conn is None else perform_at_once
        try:
            known = {queue.name: queue.declared for queue in (yield from do(queue_ops.list_queues))}
            others = exact and any(known[name] is not None for name in known.keys() - declared.keys())
            if others or any(known.get(name) != settings for name, settings in declared.items()):
                yield from do(queue_ops.sync_queues, declared, exact=exact)
        except StoreReadOnly as error:
            if error.code != "store.forbidden":
                raise
            _log.warning("Settings of queues could not be written to the database: %s", error)
        self._mark_queues_saved(declared)

    def _mark_queues_saved(self, declared: Mapping[str, Settings]) -> None:
        for name, settings in declared.items():
            if self._unsaved_queues.get(name) == settings:
                del self._unsaved_queues[name]

    def _mark_saved(self, definitions: Sequence[TaskDefinition]) -> None:
        for definition in definitions:
            if self._unsaved.get(definition.name) == definition:
                del self._unsaved[definition.name]

    def _mark_all_unsaved(self) -> None:
        """Let the next operation save all tasks and queues.

        This is called when the database lacks a task of this program, for example because the database was restored.
        """
        self._unsaved.update(self._definitions())
        self._unsaved_queues.update(self.queues)

    def _definitions(self) -> dict[str, TaskDefinition]:
        """The definitions of all tasks, by name and alias."""
        return {name: renamed(task.definition, name) for name, task in self.tasks.items()}


def _differing(
    definitions: Sequence[TaskDefinition], known: Mapping[str, task_ops.KnownTask]
) -> list[TaskDefinition]:
    """The definitions that the database lacks, or has in another form."""
    return [one for one in definitions if one.name not in known or known[one.name].definition != one]


def _not_saved(names: Sequence[str]) -> str:
    """The message for tasks that are not saved. It names only one task: a single call saves them all."""
    who = f"{names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more are"
    return (
        f"The task {who} not in the database yet and cannot be written now: call app.save_tasks() beforehand."
    )


def renamed(definition: TaskDefinition, name: str) -> TaskDefinition:
    """The definition of a task under one of its aliases."""
    if name == definition.name:
        return definition
    scope = None if definition.concurrency is None else definition.name
    return msgspec.structs.replace(definition, name=name, concurrency_scope=scope)
