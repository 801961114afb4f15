"""Limits that tasks share, as callers declare, change and see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.client.jobs import optional_text
from perdure.errors import InvalidOption
from perdure.ops import limits
from perdure.ops.limits import NamedLimit
from perdure.plan.plan import Plan, async_method, perform, sync_method
from perdure.request.options import INTEGER, number, text, whole


class LimitMethods:
    """The methods of an app for named limits."""

    if TYPE_CHECKING:
        from perdure.store.store import Store

        declared_limits: dict[str, int]

        @property
        def store(self) -> Store: ...

    def limit(self, name: str, *, concurrency: int) -> None:
        """Declare a limit that tasks share: of all tasks with ``limits=[name]`` at most this many jobs run at once.

        It is written to the database with the tasks. What an operator has set by ``set_limit`` stays.
        """
        declared = number("concurrency", concurrency, 1, INTEGER)
        if self.declared_limits.setdefault(text("limit", name), declared) != declared:
            raise InvalidOption(f"The limit {name} is already declared with another concurrency.")

    def _set_limit(self, name: str, *, concurrency: int | None, by: str | None = None) -> Plan[None]:
        """Set a named limit for the whole cluster; None lifts it. Jobs that run go on."""
        limit, value = text("limit", name), whole("concurrency", concurrency, 1, INTEGER)
        yield from perform(limits.set_limit, limit, value, by=optional_text("by", by))

    def _reset_limit(self, name: str, *, by: str | None = None) -> Plan[int | None]:
        """Go back to the concurrency that the code declares, and return it."""
        return (yield from perform(limits.reset_limit, text("limit", name), by=optional_text("by", by)))

    def _list_limits(self) -> Plan[list[NamedLimit]]:
        """The named limits."""
        return (yield from perform(limits.list_limits))

    def _limits_differ(self) -> Plan[bool]:
        """Whether the database lacks a limit that this program declares, or has another declaration of it."""
        if not self.declared_limits:
            return False
        known = {limit.name: limit.declared for limit in (yield from perform(limits.list_limits))}
        return any(known.get(name) != concurrency for name, concurrency in self.declared_limits.items())

    set_limit, aset_limit = sync_method(_set_limit), async_method(_set_limit)
    reset_limit, areset_limit = sync_method(_reset_limit), async_method(_reset_limit)
    list_limits, alist_limits = sync_method(_list_limits), async_method(_list_limits)
