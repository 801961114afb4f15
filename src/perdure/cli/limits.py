"""``perdure limits`` lists the limits; ``perdure limit`` changes one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.acts import actor
from perdure.cli.documents import as_json, print_json
from perdure.cli.failures import Misuse
from perdure.cli.output import number, say
from perdure.cli.suggest import did_you_mean
from perdure.cli.tables import Column, table
from perdure.cli.target import Target, pass_target, where

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.client.limits import LimitStats

LIMITS = (
    Column("LIMIT", least=8, keep_end=True),
    Column("KIND", rank=3),
    Column("CONCURRENCY", right=True),
    Column("RUNNING", right=True),
    Column("WAITING", right=True),
    Column("NOTE", rank=1, least=10),
    Column("TASKS", rank=2, least=10),
)
MOST_NAMED = 3
"""The most jobs of an exceeded limit that are named."""


@click.command()
@as_json
@where
@pass_target
def limits(target: Target, as_json: bool) -> None:
    """List the limits on how many jobs run at once.

    CONCURRENCY is how many jobs may run in the whole cluster, RUNNING how many jobs run. WAITING counts jobs that are
    due, up to 1,000. A limit of the kind "key" counts the jobs of each concurrency key on its own.

    \b
    Examples:
      perdure limits
      perdure limits --json | jq '.[] | select(.running >= .concurrency) | .name'
    """
    with target.app_with_tables() as app:
        found = app.list_limits()
    if as_json:
        print_json([limit_document(limit) for limit in found])
        return
    table(LIMITS, [limit_line(limit) for limit in found])
    if not found:
        say("No limits.", err=True)


@click.command()
@click.argument("name")
@click.argument("act", type=click.Choice(["set", "reset"]))
@click.argument("concurrency", metavar="[N|none]", required=False)
@actor
@as_json
@where
@pass_target
def limit(
    target: Target, name: str, act: str, concurrency: str | None, actor: str | None, as_json: bool
) -> None:
    """Set a shared limit for all workers, or go back to the code's.

    "set N" lets at most N jobs run at once, "set none" lifts the limit. Running jobs go on. The limit stays as set
    here, even if programs that declare another limit start. "reset" goes back to the limit that the code declares. The
    limits of tasks can be changed only in the code.

    \b
    Examples:
      perdure limit printer set 2
      perdure limit printer set none
      perdure limit printer reset
    """
    wanted = _wanted(act, concurrency)
    with target.app_with_tables() as app:
        if act == "set":
            app.set_limit(name, concurrency=wanted, by=actor)
        else:
            wanted = app.reset_limit(name, by=actor)
        unused = _unused(app, name)
    if as_json:
        print_json({"limit": name, "concurrency": wanted, "edited": act == "set"})
    else:
        allowed = "is lifted" if wanted is None else f"is {number(wanted)}"
        say(f"The limit {name} {allowed}{', as the code says' if act == 'reset' else ''}.")
    if unused:
        say(unused, err=True)


def limit_document(limit: LimitStats) -> dict[str, Any]:
    return {**limit._asdict(), "exceeded": [one._asdict() for one in limit.exceeded]}


def exceeded_lines(limits: Sequence[LimitStats]) -> Iterator[str]:
    """A sentence for each limit, or key of a limit, that has more running jobs than it allows."""
    for limit in limits:
        for one in limit.exceeded:
            name = limit.name if one.key is None else f"{limit.name} for the key {one.key}"
            jobs = ", ".join([*one.jobs[:MOST_NAMED], *(["…"] if len(one.jobs) > MOST_NAMED else ())])
            allowed, running = number(limit.concurrency or 0), number(one.running)
            yield f"exceeded: the limit {name} is {allowed}, but {running} jobs run: {jobs}"


def _wanted(act: str, concurrency: str | None) -> int | None:
    if (act == "set") != (concurrency is not None):
        raise Misuse(
            "Give perdure limit NAME set N, perdure limit NAME set none, or perdure limit NAME reset."
        )
    if concurrency is None or concurrency == "none":
        return None
    if not (concurrency.isascii() and concurrency.isdigit() and 1 <= len(concurrency) <= 10):
        raise Misuse('The concurrency must be a whole number of at least 1, or "none".')
    return int(concurrency)


def _unused(app: App, name: str) -> str:
    """A note if no task has this limit."""
    used = [limit.name for limit in app.list_limits() if limit.kind == "named" and limit.tasks]
    return "" if name in used else f"No task has this limit.{did_you_mean(name, used)}"


def limit_line(limit: LimitStats) -> list[str]:
    waiting = f"{number(limit.waiting)}{'+' if limit.more_waiting else ''}" if limit.waiting else ""
    return [
        limit.name,
        limit.kind,
        "none" if limit.concurrency is None else number(limit.concurrency),
        number(limit.running) if limit.running else "",
        waiting,
        ", ".join(_notes(limit)),
        ", ".join(limit.tasks),
    ]


def _notes(limit: LimitStats) -> list[str]:
    notes: list[str] = []
    if limit.exceeded:
        notes.append("exceeded")
    if limit.kind == "key" and limit.keys:
        keys = "1 key" if limit.keys == 1 else f"{number(limit.keys)} keys"
        notes.append(f"{keys}, {number(limit.full_keys)} full")
    if limit.edited:
        said = "lifted" if limit.concurrency is None else f"set to {number(limit.concurrency)}"
        code = "" if limit.declared is None else f", code says {number(limit.declared)}"
        notes.append(f"{said} by an operator{code}")
    return notes
