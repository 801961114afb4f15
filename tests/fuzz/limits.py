"""Limits: what a program declares is what the database has, or all of it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

from hypothesis import strategies as st

from perdure import App
from perdure.client.limits import LimitStats
from perdure.errors import PerdureError
from tests.fuzz.explore import Subject
from tests.fuzz.ground import Ground
from tests.fuzz.methods import backoff, name
from tests.fuzz.odd import SECRET, Values, anything, integers, mostly, plain, some, spans, texts

concurrency: Values = mostly(1, 2, 2**31 - 1, integers)
limit: Values = mostly("printer", "oven", texts.filter(lambda name: SECRET not in name))
"""The name of a limit may be shown."""
task_limits: Values = some(
    concurrency=mostly(None, 1, 3, integers),
    concurrency_key=mostly(None, "{n}", "{tenant}", "{n}-{note}", "{n!r}", texts),
    limits=mostly((), ["printer"], ["oven", "printer", "oven"], st.lists(limit, max_size=2)),
)
programs: Values = st.tuples(
    st.lists(st.tuples(limit, concurrency), max_size=2),
    st.lists(
        st.tuples(
            name, some(concurrency=mostly(None, 3, integers), timeout=mostly(None, 3, spans), backoff=backoff)
        ),
        max_size=2,
    ),
    task_limits,
)


def _work(n: Any = 0, *, note: Any = "") -> None: ...


def _declare(ground: Ground, example: tuple[list[Any], list[Any], dict[str, Any]]) -> None:
    """All is written, or nothing."""
    limits, queues, asked = example
    with closing(App(ground.url)) as app:

        def declare() -> None:
            for limit, most in limits:
                app.limit(limit, concurrency=most)
            for queue, settings in queues:
                app.queue(queue, **settings)
            app.task(name="limited", **asked)(_work)
            app.save_tasks()

        if isinstance(ground.ask(declare), PerdureError):
            return
        declared = {one.name: one.declared for one in _named(app)}
        assert {limit: most for limit, most in limits}.items() <= declared.items()
        stored = {queue.name: queue for queue in app.list_queues()}
        for queue, settings in queues:
            assert (stored[queue].declared or {}).get("concurrency") == settings.get("concurrency")
    ((most, keyed, names),) = ground.sql(
        "SELECT concurrency, keyed, CAST(limits AS text) FROM perdure.task WHERE name = 'limited'"
    )
    assert (most, bool(keyed)) == (asked.get("concurrency"), asked.get("concurrency_key") is not None)
    assert json.loads(names or "[]") == sorted({*asked.get("limits", ())})


def _operate(ground: Ground, example: tuple[Any, Any, Any]) -> None:
    """What an operator sets is in effect, and can be taken back."""
    limit, declared, most = example
    with closing(App(ground.url)) as app:
        if isinstance(ground.ask(lambda: app.limit(limit, concurrency=declared)), PerdureError):
            return
        app.save_tasks()
        in_effect = declared
        if not isinstance(ground.ask(lambda: app.set_limit(limit, concurrency=most)), PerdureError):
            in_effect = most
        assert in_effect in {one.concurrency for one in _named(app) if one.name == limit}
        assert app.reset_limit(limit) == declared


def _named(app: App) -> list[LimitStats]:
    return [one for one in app.list_limits() if one.kind == "named"]


TEMPLATES = ("{n}", "{tenant}", "{n}{note}", "{n:}", "a{{{n}}}", "{note}" * 99 + "x" * 600)


def _key(ground: Ground, example: tuple[Any, Any, Any, Any]) -> None:
    """The key of each job is stored, or the job is refused."""
    asked, n, note, tenant = example
    with closing(App(ground.url)) as app:
        key = asked if isinstance(asked, str) else _returning(asked[0])
        task = app.task(name="keyed", concurrency=1, concurrency_key=key)(_work)
        app.save_tasks()
        job = ground.ask(lambda: task.using(tenant=tenant).enqueue(n, note=note))
        if isinstance(job, PerdureError):
            return
        ((stored,),) = ground.sql(f"SELECT concurrency_key FROM perdure.job WHERE id = '{job.id}'")
        assert stored is not None
        assert len(stored.encode()) <= 512
        if asked == "{tenant}":
            assert stored == (tenant or "")
        elif not isinstance(asked, str):
            assert stored == ("" if asked[0] is None else str(asked[0])) or stored.startswith("sha256:")


def _is_text(value: object) -> bool:
    """Whether a function may return it as a key: otherwise the error is the caller's own."""
    try:
        str(value)
    except (ValueError, RecursionError):
        return False
    return True


def _returning(value: Any) -> Callable[..., Any]:
    return lambda n, note: value


SUBJECTS: dict[str, Subject] = {
    "limits of a program": Subject(programs, _declare, 300),
    "limits of an operator": Subject(
        st.tuples(limit, concurrency, mostly(None, 1, 2, integers)), _operate, 200
    ),
    "concurrency keys": Subject(
        st.tuples(
            st.sampled_from(TEMPLATES) | st.tuples((st.none() | texts | plain | anything).filter(_is_text)),
            plain | texts,
            texts,
            mostly(None, "acme", texts),
        ),
        _key,
        300,
    ),
}
