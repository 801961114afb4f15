"""``perdure queue``, which shows and changes one queue; ``perdure pause`` and ``perdure resume``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from perdure.cli import typed
from perdure.cli.acts import ACTS, act_line, actor
from perdure.cli.documents import (
    act_document,
    as_json,
    pause_document,
    print_json,
    queue_document,
    settings_document,
)
from perdure.cli.failures import Failure, Misuse
from perdure.cli.fleet import COUNTS, pause_text, queue_status
from perdure.cli.jobs import meant
from perdure.cli.output import number, say
from perdure.cli.suggest import did_you_mean
from perdure.cli.tables import facts, table
from perdure.cli.target import Target, pass_target, where
from perdure.model.time_text import length

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.client.queues import QueueSettings
    from perdure.client.views import WorkerRow

LAST_ACTS = 5

_PAUSE_OPTIONS = (
    click.option("--reason", help="Why; perdure queues shows it."),
    click.option(
        "--resume-at",
        metavar="TIME",
        callback=typed.parse_time,
        help="When the pause ends by itself: 2026-03-01T12:00:00+01:00.",
    ),
    click.option(
        "--for",
        "length",
        metavar="SPAN",
        callback=typed.duration,
        help="How long it lasts: 90s, 15m, 2h, 1d.",
    ),
)


def pause_options(function: Any) -> Any:
    for option in reversed(_PAUSE_OPTIONS):
        function = option(function)
    return function


@click.command()
@click.argument("name")
@click.argument("act", type=click.Choice(["set", "pause", "resume", "warm", "reset"]), required=False)
@click.argument("settings", nargs=-1, metavar="[SETTING=VALUE]...")
@pause_options
@actor
@as_json
@where
@pass_target
def queue(target: Target, /, name: str, act: str | None, settings: tuple[str, ...], **asked: Any) -> None:
    """Show everything about a queue, or change it.

    The settings are concurrency, timeout and backoff; the value none removes a setting. A change reaches all workers
    within a second, and the settings in the code do not override it. reset returns to the settings in the code; warm
    ends a cool-down.

    \b
    Examples:
      perdure queue mail
      perdure queue mail set concurrency=5 timeout=90s backoff=none
      perdure queue mail pause --for 2h --reason "the gateway is down"
      perdure queue mail resume
      perdure queue mail warm
      perdure queue mail reset
    """
    _check(act, settings, asked)
    as_json = asked["as_json"]
    with target.app_with_tables() as app:
        if act is None:
            _show(app, name, as_json=as_json)
        elif act == "set":
            _set(app, name, dict(_changes(settings)), actor=asked["actor"], as_json=as_json)
        elif act == "pause":
            _pause(app, name, **asked)
        elif act == "resume":
            _resume(app, name, actor=asked["actor"], as_json=as_json)
        elif act == "warm":
            _warm(app, name, actor=asked["actor"], as_json=as_json)
        else:
            _reset(app, name, actor=asked["actor"], as_json=as_json)


@click.command()
@click.argument("queue")
@pause_options
@actor
@as_json
@where
@pass_target
def pause(target: Target, /, queue: str, **asked: Any) -> None:
    """Stop handing out jobs of a queue. Running jobs go on.

    perdure queues shows who paused the queue, since when, why, and until when.

    \b
    Examples:
      perdure pause mail
      perdure pause mail --for 30m
      perdure pause mail --reason "the gateway is down" --actor "night shift"
    """
    with target.app_with_tables() as app:
        _pause(app, queue, **asked)


@click.command()
@click.argument("queue")
@actor
@as_json
@where
@pass_target
def resume(target: Target, queue: str, actor: str | None, as_json: bool) -> None:
    """Hand out jobs of a queue again.

    Prints who paused the queue, since when and why, and how many jobs are ready.

    \b
    Examples:
      perdure resume mail
      perdure resume mail --actor "day shift"
    """
    with target.app_with_tables() as app:
        _resume(app, queue, actor=actor, as_json=as_json)


def _check(act: str | None, settings: Sequence[str], asked: Mapping[str, Any]) -> None:
    if settings and act != "set":
        raise Misuse(
            f"{settings[0]!r} does not belong here: perdure queue NAME set SETTING=VALUE changes a setting."
        )
    if act == "set" and not settings:
        raise Misuse("Give a setting and its value, such as concurrency=5.")
    if act != "pause" and any(asked[option] is not None for option in ("reason", "resume_at", "length")):
        raise Misuse("--reason, --resume-at and --for belong to pause.")


def _pause(
    app: App,
    queue: str,
    *,
    reason: str | None,
    resume_at: datetime | None,
    length: timedelta | None,
    actor: str | None,
    as_json: bool,
) -> None:
    if resume_at is not None and length is not None:
        raise Misuse("Give --resume-at or --for, not both.")
    hint = meant(app, queue, None)
    app.pause_queue(queue, resume_at=resume_at or length, reason=reason, by=actor)
    found = next((one.pause for one in app.list_queues() if one.name == queue), None)
    until = None if found is None else found.resume_at
    if as_json:
        print_json({"queue": queue, "paused": True, "pause": pause_document(found)})
    else:
        say(f"The queue {queue} is paused{'' if until is None else f' until {until:%Y-%m-%d %H:%M:%S} UTC'}.")
    if hint:
        say(f"No task has this queue.{hint}", err=True)


def _resume(app: App, queue: str, *, actor: str | None, as_json: bool) -> None:
    ended = app.resume_queue(queue, by=actor)
    ready = app.count_jobs(queue=queue).get(queue, {}).get("ready", 0)
    hint = "" if ended is not None else meant(app, queue, None)
    if as_json:
        print_json({"queue": queue, "paused": False, "pause": pause_document(ended), "ready": ready})
        return
    jobs = "1 job is ready." if ready == 1 else f"{number(ready)} jobs are ready."
    if ended is None:
        say(f"The queue {queue} was not paused. {jobs}{hint}")
    else:
        say(f"The queue {queue} hands out jobs again; it was {pause_text(ended)}. {jobs}")


def _set(app: App, queue: str, changes: dict[str, Any], *, actor: str | None, as_json: bool) -> None:
    hint = meant(app, queue, None)
    app.set_queue(queue, **changes, by=actor)
    (found,) = [one for one in app.list_queues() if one.name == queue]
    edits = [edit for edit in found.edits if edit.setting in changes]
    if as_json:
        print_json({"queue": queue, "settings": settings_document(found)})
    else:
        say(f"The queue {queue} has {'; '.join(map(str, edits))}.")
    if hint:
        say(f"No task has this queue.{hint}", err=True)


def _warm(app: App, queue: str, *, actor: str | None, as_json: bool) -> None:
    warmed = app.warm_queue(queue, by=actor)
    hint = "" if warmed else meant(app, queue, None)
    if as_json:
        print_json({"queue": queue, "warmed": warmed})
    elif warmed:
        say(f"The cool-down of the queue {queue} has ended.")
    else:
        say(f"The queue {queue} did not cool down.{hint}")


def _reset(app: App, queue: str, *, actor: str | None, as_json: bool) -> None:
    ended = app.reset_queue(queue, by=actor)
    if as_json:
        print_json({"queue": queue, "reset": [edit.setting for edit in ended]})
    elif ended:
        say(f"The queue {queue} has the settings of the code again; it had {'; '.join(map(str, ended))}.")
    else:
        say(f"No operator has set anything for the queue {queue}.{meant(app, queue, None)}")


def _show(app: App, name: str, *, as_json: bool) -> None:
    from perdure.client.stats import IDLE

    stats, tasks = app.stats(since=None), app.views.task_queues()
    ours = sorted(task for task, queue in tasks.items() if queue == name)
    if name not in stats.queues and not ours:
        raise Failure(f"There is no queue {name}.{did_you_mean(name, {*stats.queues, *tasks.values()})}")
    found = stats.queues.get(name, IDLE)
    served = [worker.name for worker in stats.workers if _serves(worker, name)]
    acts = app.list_acts(subject=f"queue {name}", limit=LAST_ACTS)
    if as_json:
        listed = {"tasks": ours, "served_by": served, "acts": [act_document(act) for act in acts]}
        print_json({**queue_document(name, found, stats), **listed})
        return
    jobs = ", ".join(f"{number(found.counts[state])} {state}" for state in COUNTS if found.counts.get(state))
    facts(
        [
            ("queue", name),
            ("status", ", ".join(queue_status(name, found, stats)) or "open"),
            ("jobs", jobs or "none"),
            ("lag", length(found.lag) if found.lag else None),
            *_settings(found.settings),
            ("tasks", ", ".join(ours) or None),
            ("served by", ", ".join(served) or "no live worker"),
        ]
    )
    if acts:
        say()
        table(ACTS, [act_line(act, time.time_ns() // 1000) for act in acts])


def _settings(settings: QueueSettings | None) -> Iterator[tuple[str, str]]:
    """Each setting, its value in effect, and where it comes from."""
    from perdure.client.queues import show_value
    from perdure.model.queue_settings import NAMES

    edits = {} if settings is None else {edit.setting: edit for edit in settings.edits}
    for name in NAMES:
        value = getattr(settings, name, None)
        shown = "none" if value is None else show_value(name, value)
        if name in edits:
            declared = edits[name].declared
            says = "" if declared is None else f", code says {show_value(name, declared)}"
            shown += f" (set by operator{says})"
        elif value is not None:
            shown += " (declared in code)"
        yield name, shown


def _serves(worker: WorkerRow, queue: str) -> bool:
    from perdure.client.views import names_in

    return worker.queues is None or queue in names_in(worker.queues)


def _changes(settings: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for setting in settings:
        name, given, value = setting.partition("=")
        if not given:
            raise Misuse(f"{setting!r} has no value: write {name}=VALUE, or {name}=none to remove it.")
        if name not in _READ:
            raise Misuse(f"{name!r} is not a setting.{did_you_mean(name, _READ) or f' Use {_SETTINGS}.'}")
        yield name, None if value == "none" else _READ[name](value)


def _concurrency(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise Misuse(f"concurrency is a whole number, not {value!r}.") from None


def _backoff(value: str) -> Any:
    """A back-off: a duration, or a policy as JSON."""
    if not value.startswith("{"):
        return typed.span(value)
    import msgspec

    from perdure.errors import InvalidOption
    from perdure.model.backoff import Backoff
    from perdure.model.json_text import UNREADABLE

    try:
        return msgspec.json.decode(value.encode(), type=Backoff)
    except (*UNREADABLE, InvalidOption):
        raise Misuse(
            'A backoff is a duration, or JSON such as {"base": 5, "cap": 900, "codes": {}}.'
        ) from None


_READ: Mapping[str, Callable[[str], Any]] = {
    "concurrency": _concurrency,
    "timeout": typed.span,
    "backoff": _backoff,
}
_SETTINGS = "concurrency, timeout or backoff"
