"""Limits that tasks share, as callers declare, change and see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from perdure.client.jobs import optional_text
from perdure.errors import InvalidOption
from perdure.model.limit_use import Holding, LimitUse
from perdure.ops import limit_use, limits
from perdure.ops.limits import NamedLimit
from perdure.plan.plan import Plan, async_method, perform, sync_method
from perdure.request.options import INTEGER, number, text, whole


class Exceeded(NamedTuple):
    """A limit with more running jobs than it allows.

    ``key``: the exceeded concurrency key; None if the limit does not count each key on its own.
    """

    key: str | None
    running: int
    jobs: list[str]
    """The ids of these jobs, in the order of their starts."""


class LimitStats(NamedTuple):
    """A limit and its use.

    ``kind``: ``"queue"``, ``"task"``, ``"named"``, or ``"key"`` if the limit of a task counts each concurrency key on
    its own. For ``"key"``, ``concurrency`` is for one key, and ``running`` and ``waiting`` are for all keys together.

    For ``"named"``, ``declared`` is the concurrency in the code, ``edited`` says whether an operator has set the limit,
    and ``concurrency`` is None if an operator has lifted it. For the other kinds, ``declared`` equals ``concurrency``,
    and ``edited`` is False.

    ``waiting``: the due jobs under the limit, counted up to 1,000; ``more_waiting``: whether there may be more.
    ``keys``: the keys of running jobs; ``full_keys``: the keys among them that have no free slot. ``tasks``: the tasks
    whose jobs the limit counts, and their aliases.
    """

    name: str
    concurrency: int | None
    declared: int | None
    edited: bool
    kind: str
    running: int
    waiting: int
    more_waiting: bool
    keys: int
    full_keys: int
    exceeded: list[Exceeded]
    tasks: list[str]


class LimitMethods:
    """The methods of an app for named limits."""

    if TYPE_CHECKING:
        from perdure.store.store import Store

        declared_limits: dict[str, int]

        @property
        def store(self) -> Store: ...

    def limit(self, name: str, *, concurrency: int) -> None:
        """Declare a limit that tasks share.

        Together, all tasks with ``limits=[name]`` run at most this many jobs at once.

        The limit is written to the database with the tasks. A limit that an operator has set by ``set_limit`` stays in
        effect.
        """
        declared = number("concurrency", concurrency, 1, INTEGER)
        if self.declared_limits.setdefault(text("limit", name), declared) != declared:
            raise InvalidOption(f"The limit {name} is already declared with another concurrency.")

    def _set_limit(self, name: str, *, concurrency: int | None, by: str | None = None) -> Plan[None]:
        """Set a named limit for all workers; None lifts the limit. Running jobs go on, even if they exceed it."""
        limit, value = text("limit", name), whole("concurrency", concurrency, 1, INTEGER)
        yield from perform(limits.set_limit, limit, value, by=optional_text("by", by))

    def _reset_limit(self, name: str, *, by: str | None = None) -> Plan[int | None]:
        """Go back to the concurrency that the code declares, and return it."""
        return (yield from perform(limits.reset_limit, text("limit", name), by=optional_text("by", by)))

    def _list_limits(self) -> Plan[list[LimitStats]]:
        """Every limit: its concurrency, how many of its jobs run and wait, and whether an operator has set it."""
        found = yield from perform(limit_use.read_use)
        return [_stats(use, found.named.get(use.name)) for use in found.uses]

    def _limits_differ(self) -> Plan[bool]:
        """Whether a limit that this program declares is stored with another declared concurrency, or not at all."""
        if not self.declared_limits:
            return False
        known = {limit.name: limit.declared for limit in (yield from perform(limits.list_limits))}
        return any(known.get(name) != concurrency for name, concurrency in self.declared_limits.items())

    set_limit, aset_limit = sync_method(_set_limit), async_method(_set_limit)
    reset_limit, areset_limit = sync_method(_reset_limit), async_method(_reset_limit)
    list_limits, alist_limits = sync_method(_list_limits), async_method(_list_limits)


def _stats(use: LimitUse, named: NamedLimit | None) -> LimitStats:
    setting = named if use.kind == "named" else None
    return LimitStats(
        use.name,
        use.concurrency,
        setting.declared if setting is not None else use.concurrency,
        setting is not None and setting.edited,
        use.kind,
        use.running,
        use.waiting,
        use.more_waiting,
        use.keys,
        use.full_keys,
        [_exceeded(one) for one in use.exceeded],
        use.tasks,
    )


def _exceeded(holding: Holding) -> Exceeded:
    kind, _, *key = holding.limit
    return Exceeded(key[0] if kind == "key" else None, len(holding.jobs), [*holding.jobs])
