"""Live settings of queues: operators change them while workers run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.errors import InvalidOption
from perdure.model.backoff import Backoff, dump_backoff
from perdure.model.job import SECOND, Instant, Span
from perdure.model.pause import Pause
from perdure.model.queue_settings import NAMES, Settings, dump_settings, in_effect, load_names, load_settings
from perdure.model.time_text import stamp
from perdure.ops.audit import act
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Query, Row, announce, ask, ask_all, ask_last, operation
from perdure.ops.running import read_policy
from perdure.ops.topics import LIMITS, QUEUES, queue_topics

CHANGED = frozenset([QUEUES])


class Queue(NamedTuple):
    """A queue that has settings. Each field is the column of that name."""

    name: str
    paused: bool
    cool_until: Instant | None
    throttles: int
    backoff: Backoff | None
    paused_at: Instant | None
    paused_by: str | None
    pause_reason: str | None
    resume_at: Instant | None
    timeout: Span | None
    concurrency: int | None
    declared: Settings | None
    edited: frozenset[str]

    @property
    def pause(self) -> Pause | None:
        if not self.paused:
            return None
        return Pause(self.paused_at, self.paused_by, self.pause_reason, self.resume_at)

    @property
    def settings(self) -> Settings:
        """The settings in effect."""
        return Settings(backoff=self.backoff, timeout=self.timeout, concurrency=self.concurrency)

    @property
    def edits(self) -> Mapping[str, Any]:
        """The settings that operators have set, by name."""
        return self.settings.only(self.edited)


class LiveSettings(NamedTuple):
    """The settings that workers need: the timeouts of queues, and how soon the first pause ends by itself."""

    timeouts: Mapping[str, Span]
    opens_in: Span | None


@operation("write")
def pause(
    name: str,
    *,
    resume_at: Instant | None = None,
    resume_in: Span | None = None,
    reason: str | None = None,
    by: str | None = None,
) -> Op[None]:
    """Stop claims from this queue, at most until a time or for a duration. Running jobs continue."""
    end: Instant | None = None
    if resume_at is not None or resume_in is not None:
        ((now,),) = yield from ask("read_clock")
        end = now + (resume_in or 0) if resume_at is None else resume_at
        if end <= now:
            raise InvalidOption("resume_at must lie in the future.")
    write = Query("pause_queue", {"name": name, "reason": reason, "by": by, "resume_at": end})
    until = None if end is None else stamp(end)
    done = act("pause_queue", f"queue {name}", by, reason=reason, resume_at=until)
    # If the pause has an end, workers must learn it.
    yield from ask_all(write, done, final=True, wake=frozenset() if end is None else CHANGED)


@operation("write")
def resume(name: str, *, by: str | None = None) -> Op[Pause | None]:
    """Let workers claim from this queue again. Return the pause that this ends; None if the queue was not paused."""
    before, _, _ = yield from ask_all(
        Query("lock_pause", {"name": name}),
        Query("resume_queue", {"name": name}),
        act("resume_queue", f"queue {name}", by),
        final=True,
        wake=queue_topics([name]),
    )
    return Pause(*before[0]) if before else None


@operation("write")
def end_pauses() -> Op[list[str]]:
    """Remove pauses that are over from the rows.

    Claims already ignore such pauses, so this is only for readers of the rows.
    """
    rows = yield from ask_last("end_pauses")
    names = [name for (name,) in rows]
    yield from announce(queue_topics(names))
    return names


@operation("write")
def set_queue(name: str, changes: Mapping[str, Any], *, by: str | None = None) -> Op[None]:
    """Change these settings; None removes a setting. From now on they override the code's declarations."""
    (before,) = yield from _lock([name])
    after = msgspec.structs.replace(before.settings, **changes)
    removed = [setting for setting in changes if changes[setting] is None]
    done = act(
        "set_queue",
        f"queue {name}",
        by,
        **_shown(after.only(changes.keys())),
        before=_shown(before.settings.only(changes.keys() - set(removed))) or None,
        removed=_shown(before.settings.only(removed)) or None,
    )
    write = _write(name, after, before.declared, before.edited | changes.keys())
    yield from _write_all([*_limit_changes(before.settings, after), write, done])


@operation("write")
def reset_queue(name: str, *, by: str | None = None) -> Op[Queue | None]:
    """Go back to the settings that the code declares, if any.

    Return the queue as it was; None if no setting was edited.
    """
    rows = yield from ask("lock_settings", names=rows_of([name]))
    before = read_queue(rows[0]) if rows else None
    if before is None or not before.edited:
        return None
    after = in_effect(before.declared, {})
    write = _write(name, after, before.declared, frozenset())
    done = act("reset_queue", f"queue {name}", by, removed=_shown(before.edits) or None)
    yield from _write_all([*_limit_changes(before.settings, after), write, done])
    return before


@operation("write")
def sync_queues(declared: Mapping[str, Settings], *, exact: bool = False) -> Op[None]:
    """Write the settings that the code declares.

    Settings of operators stay in effect. ``exact``: queues that the code does not declare lose their stored
    declarations.
    """
    others: list[str] = []
    if exact:
        stored = [read_queue(row) for row in (yield from ask("list_queues"))]
        others = [queue.name for queue in stored if queue.declared is not None and queue.name not in declared]
    writes = []
    for queue in (yield from _lock([*declared, *others])):
        ours = declared.get(queue.name)
        after = in_effect(ours, queue.edits)
        if (ours, after) != (queue.declared, queue.settings):
            writes += [*_limit_changes(queue.settings, after), _write(queue.name, after, ours, queue.edited)]
    if writes:
        yield from _write_all(writes)


@operation("read")
def find_unknown(names: Sequence[str]) -> Op[tuple[list[str], set[str]]]:
    """The names that are not known as queues, and all known queues. A known queue has a task, a due job or settings."""
    tasks, settings, *due = yield from ask_all(
        Query("list_tasks", {}),
        Query("list_queues", {}),
        *(Query("find_front", {"queue": name}) for name in names),
        final=True,
    )
    known = {row[1] for row in tasks} | {row[0] for row in settings}
    known |= {name for name, rows in zip(names, due, strict=True) if rows}
    return [name for name in names if name not in known], known


@operation("read")
def list_queues() -> Op[list[Queue]]:
    clock, rows = yield from ask_all(Query("read_clock", {}), Query("list_queues", {}), final=True)
    ((now,),) = clock
    return [read_queue(row, now) for row in rows]


@operation("read")
def list_live_settings() -> Op[LiveSettings]:
    rows = yield from ask_last("list_live_settings")
    return LiveSettings(
        {name: timeout for name, timeout, _, _ in rows if timeout is not None},
        min((resume_at - now for _, _, resume_at, now in rows if resume_at is not None), default=None),
    )


def read_queue(row: Row, now: Instant | None = None) -> Queue:
    """A row of ``list_queues``.

    With ``now``, a pause that is over is left out, because ``end_pauses`` may not have removed it yet.
    """
    stored = Queue(*row)
    policy: Any = stored.backoff
    declared: Any = stored.declared
    edited: Any = stored.edited
    queue = stored._replace(
        paused=bool(stored.paused),
        backoff=None if policy is None else read_policy(policy),
        declared=load_settings(declared),
        edited=load_names(edited),
    )
    if now is None or queue.resume_at is None or queue.resume_at > now:
        return queue
    return queue._replace(paused=False, paused_at=None, paused_by=None, pause_reason=None, resume_at=None)


def _lock(names: Sequence[str]) -> Op[list[Queue]]:
    """The rows of these queues, inserted if necessary, and locked in the order of their names."""
    sorted_names = rows_of(sorted(names))
    _, rows = yield from ask_all(
        Query("ensure_queues", {"names": sorted_names}), Query("lock_settings", {"names": sorted_names})
    )
    return [read_queue(row) for row in rows]


def _write(name: str, settings: Settings, declared: Settings | None, edited: frozenset[str]) -> Query:
    backoff = settings.backoff
    return Query(
        "write_settings",
        {
            "name": name,
            "backoff": None if backoff is None else dump_backoff(backoff),
            "timeout": settings.timeout,
            "concurrency": settings.concurrency,
            "declared": dump_settings(declared),
            "edited": rows_of([setting for setting in NAMES if setting in edited]) if edited else None,
        },
    )


def _write_all(writes: Sequence[Query]) -> Op[None]:
    limits = any(write.name == "change_limits" for write in writes)
    yield from ask_all(*writes, final=True, wake=CHANGED | {LIMITS} if limits else CHANGED)


def _limit_changes(before: Settings, after: Settings) -> list[Query]:
    """The statement that raises the version of all limits, if the concurrency of a queue changes; otherwise nothing.

    A worker that knows an older version gets no jobs until it has read the limits again. The statement also locks the
    limits, so run it before the statement that writes the settings.
    """
    return [Query("change_limits", {})] if before.concurrency != after.concurrency else []


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are set, for people, with a timeout in seconds."""
    return {
        name: value / SECOND if name == "timeout" else value
        for name, value in values.items()
        if value is not None
    }
