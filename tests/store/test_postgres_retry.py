"""An operation is retried when that helps; otherwise its caller gets the error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from perdure.errors import InternalError, PerdureError, StoreAway, StoreBusy, StoreClosed, StoreReadOnly
from perdure.ops.op import Op, ask, ask_last, operation
from perdure.store.postgres import session, transaction
from perdure.store.postgres.adapt import Statement
from perdure.store.postgres.retry import Retrier
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.url import servers
from tests.harness.waiting import until
from tests.store.proxy import Proxy
from tests.store.things import insert, insert_once, postgres_store, read, run, run_urgently


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def brief_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    brief = transaction._settings(30, 1, 30)
    monkeypatch.setattr(transaction, "READ_SETTINGS", brief)
    monkeypatch.setattr(transaction, "WRITE_SETTINGS", dict.fromkeys(("normal", "urgent"), brief))


def test_a_deadlock_is_run_again(
    store: PostgresStore, admin: psycopg.Connection[Any], pool: ThreadPoolExecutor
) -> None:
    both_hold_one = threading.Barrier(2)

    @operation("write")
    def update(first: str, second: str, runs: list[str]) -> Op[None]:
        runs.append(first)
        yield from ask("update", id=first, note=second)
        if len(runs) == 1:
            both_hold_one.wait(30)
        yield from ask_last("update", id=second, note=first)

    for id in ("a", "b"):
        store.perform(insert, id)
    runs: tuple[list[str], list[str]] = ([], [])
    one = pool.submit(store.perform, update, "a", "b", runs[0])
    two = pool.submit(store.perform, update, "b", "a", runs[1])
    one.result(30), two.result(30)
    assert len(runs[0]) + len(runs[1]) == 3


def test_a_serialization_failure_is_run_again(
    store: PostgresStore, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Statement.parse("BEGIN ISOLATION LEVEL REPEATABLE READ")
    monkeypatch.setattr(transaction, "_BEGIN", begin)
    runs = []

    @operation("write")
    def update() -> Op[None]:
        rows = yield from ask("read")
        runs.append(rows[0][1])
        if len(runs) == 1:
            admin.execute("UPDATE perdure_thing SET note = 'theirs'")
        yield from ask_last("update", id="a", note="ours")

    store.perform(insert, "a")
    store.perform(update)
    assert runs == [None, "theirs"]
    assert admin.execute("SELECT note FROM perdure_thing").fetchall() == [("ours",)]


REFUSING = """
CREATE FUNCTION public.refuse(state text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'no' USING ERRCODE = state; END $$
"""


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("state", ["40001", "55P03", "57P01", "08006", "25006", "0A000", "23505"])
def test_what_the_server_refuses_is_run_again_as_often_as_the_operation_wants(
    admin: psycopg.Connection[Any], postgres_url: str, state: str, retries: int
) -> None:
    admin.execute(REFUSING)
    store = postgres_store(postgres_url, more={"refuse": "SELECT public.refuse(:state)"}, patience=3)
    runs = []

    @operation("write", retries=retries)
    def refused() -> Op[None]:
        runs.append(1)
        yield from ask_last("refuse", state=state)

    with pytest.raises(PerdureError):
        store.perform(refused)
    # Outdated prepared statements, and rows that others wrote first, need a second run.
    assert len(runs) == 1 + retries + (state in ("0A000", "23505"))
    store.close()


def test_a_lock_is_waited_for_whatever_retries_the_operation_wants(
    store: PostgresStore, admin: psycopg.Connection[Any], pool: ThreadPoolExecutor, brief_locks: None
) -> None:
    runs = []

    @operation("write", retries=0)
    def update() -> Op[None]:
        runs.append(1)
        yield from ask_last("update", id="a", note="ours")

    store.perform(insert, "a")
    with psycopg.connect(admin.info.dsn, password=admin.info.password) as other:
        other.execute("SELECT 1 FROM perdure_thing FOR UPDATE")
        updated = pool.submit(store.perform, update)
        until(lambda: len(runs) == 2)
        other.rollback()
        updated.result(30)


def test_a_row_that_somebody_else_wrote_first_is_found_by_looking_again(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    @operation("write")
    def find_or_insert() -> Op[str]:
        if (yield from ask("read")):
            return "found"
        admin.execute("INSERT INTO perdure_thing (id) VALUES ('a')")
        yield from ask("insert", id="a", note=None)
        return "inserted"

    assert store.perform(find_or_insert) == "found"


def test_a_row_that_stands_in_the_way_for_good_is_an_error(store: PostgresStore) -> None:
    runs = []

    @operation("write")
    def insert_again() -> Op[None]:
        runs.append(1)
        yield from ask_last("insert", id="a", note=None)

    store.perform(insert, "a")
    with pytest.raises(InternalError) as refused:
        store.perform(insert_again)
    assert refused.value.code == "store.constraint"
    assert len(runs) == 6


def test_a_backend_killed_in_the_middle_costs_nothing_but_a_run(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    backends = []

    @operation("write")
    def insert_slowly() -> Op[None]:
        [(backend,)] = yield from ask("backend")
        backends.append(backend)
        yield from ask("insert", id="a", note=None)
        if len(backends) == 1:
            admin.execute("SELECT pg_terminate_backend(%s, 10000)", [backend])
        yield from ask_last("insert", id="b", note=None)

    store.perform(insert_slowly)
    assert len(set(backends)) == 2
    assert store.perform(read) == ["a", "b"]


def test_a_backend_that_kills_itself_for_ever_is_an_error(admin, postgres_url: str) -> None:
    store = postgres_store(postgres_url, patience=0.2)
    with pytest.raises(StoreAway):
        store.perform(run, "cut")
    store.close()


def test_idle_connections_that_were_cut_are_not_used(
    store: PostgresStore,
    admin: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.store.postgres.pool.FRESH_SECONDS", 0.0)
    caplog.set_level(logging.DEBUG, "perdure.store")
    [(backend,)] = store.perform(run, "backend")
    admin.execute("SELECT pg_terminate_backend(%s, 10000)", [backend])
    assert store.perform(run, "backend") != [(backend,)]
    assert caplog.text == ""


def test_one_that_was_cut_just_now_is_noticed_when_it_is_used(
    store: PostgresStore,
    admin: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.store.postgres.pool.FRESH_SECONDS", 60.0)
    [(backend,)] = store.perform(run, "backend")
    admin.execute("SELECT pg_terminate_backend(%s, 10000)", [backend])
    store.perform(insert_once, "a")
    assert store.perform(read) == ["a"]
    assert caplog.text == ""


def test_a_commit_whose_answer_is_lost_is_run_again_and_counts_once(admin, proxy: Proxy) -> None:
    store = postgres_store(proxy.url)
    store.perform(run, "one")
    runs = []

    @operation("write")
    def insert_slowly() -> Op[None]:
        runs.append(1)
        yield from ask("insert_once", id="b", note=None)
        if len(runs) == 1:
            proxy.swallow_next_reply()
        yield from ask_last("insert_once", id="c", note=None)

    proxy.swallow_next_reply()
    store.perform(insert_once, "a")
    store.perform(insert_slowly)
    assert len(runs) == 2
    assert proxy.connections == 3
    assert store.perform(read) == ["a", "b", "c"]
    assert admin.execute("SELECT count(*) FROM perdure_thing").fetchall() == [(3,)]
    store.close()


def test_a_connection_that_stops_answering_is_given_up(
    admin, proxy: Proxy, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = postgres_store(proxy.url)
    store.perform(run, "one")
    monkeypatch.setattr(session, "STATEMENT_SECONDS", 0.1)
    monkeypatch.setattr(session, "GRACE_SECONDS", 0.1)
    proxy.freeze()
    try:
        inserted = pool.submit(store.perform, insert_once, "a")
        until(lambda: proxy.connections == 2)
    finally:
        proxy.thaw()
    inserted.result(30)
    assert store.perform(read) == ["a"]
    store.close()


def test_the_log_tells_once_that_the_database_is_away_and_once_that_it_is_back(
    admin, proxy: Proxy, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    store = postgres_store(proxy.url, patience=None)
    store.perform(run, "one")
    proxy.refuse()
    calls = [pool.submit(store.perform, insert_once, str(n)) for n in range(4)]
    until(lambda: "away" in caplog.text and proxy.refused > 12)
    proxy.admit()
    for call in calls:
        call.result(30)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    server = servers(proxy.url)
    away = f"The database is away (connection lost, {server}); trying again"
    assert warnings == [away, "The database is back"]
    store.close()


def test_patience_runs_out(proxy: Proxy) -> None:
    store = postgres_store(proxy.url, patience=1)
    proxy.refuse()
    with pytest.raises(StoreAway) as away:
        store.perform(run, "one")
    assert away.value.__cause__ is None
    assert away.value.__context__ is None
    assert proxy.refused > 1
    store.close()


def test_who_waits_for_a_database_that_is_away_has_less_patience_until_a_worker_is_here(proxy: Proxy) -> None:
    store = postgres_store(proxy.url, patience=1000, patience_away=0.1)
    proxy.refuse()
    with pytest.raises(StoreAway):
        store.perform(run, "one")
    store.use_worker_patience()
    refused = proxy.refused
    with ThreadPoolExecutor() as pool:
        call = pool.submit(store.perform, run, "one")
        # By then the pauses alone have been longer than it had patience before.
        until(lambda: proxy.refused > refused + 6)
        proxy.admit()
        assert call.result(30) == [(1,)]
    store.close()


def test_closing_ends_the_wait_of_those_who_retry(proxy: Proxy, pool: ThreadPoolExecutor) -> None:
    store = postgres_store(proxy.url, patience=None)
    proxy.refuse()
    call = pool.submit(store.perform, run, "one")
    until(lambda: proxy.refused > 1)
    store.close()
    with pytest.raises(StoreClosed):
        call.result(30)


def test_closed_is_closed(store: PostgresStore) -> None:
    store.perform(run, "one")
    store.close()
    store.close()
    for verb in (lambda: store.perform(run, "one"), store.migrate, store.check_schema):
        with pytest.raises(StoreClosed):
            verb()


def test_a_lock_is_waited_for_within_patience(
    brief_locks: None, admin: psycopg.Connection[Any], store: PostgresStore, postgres_url: str
) -> None:
    store.perform(insert, "a")
    hasty = postgres_store(postgres_url, patience=0.5)
    runs = []

    @operation("write")
    def update(release: Callable[[], object]) -> Op[None]:
        runs.append(1)
        if len(runs) == 2:
            release()
        yield from ask_last("update", id="a", note="ours")

    with psycopg.connect(postgres_url) as holder:
        holder.execute("UPDATE perdure_thing SET note = 'theirs'")
        with pytest.raises(StoreBusy):
            hasty.perform(run, "update", id="a", note="ours")
        store.perform(update, holder.commit)
    assert len(runs) == 2
    hasty.close()


def test_every_connection_in_use_is_busy_except_for_what_is_urgent(admin, postgres_url: str) -> None:
    store = postgres_store(postgres_url, size=1, patience=0.2)
    with store._pool.lend("normal", timeout=1):
        with pytest.raises(StoreBusy, match="in use"):
            store.perform(run, "one")
        assert store.perform(run_urgently, "one") == [(1,)]
    assert store.perform(run, "one") == [(1,)]
    store.close()


def test_a_standby_is_read_only(admin: psycopg.Connection[Any], postgres_url: str) -> None:
    (database,) = admin.execute("SELECT current_database()").fetchone() or ("",)
    admin.execute(f'ALTER DATABASE "{database}" SET default_transaction_read_only = on'.encode())
    store = postgres_store(postgres_url, patience=0.3)
    with pytest.raises(StoreReadOnly):
        store.perform(insert, "a")
    store.close()


def test_a_server_without_a_connection_to_spare_is_asked_again(
    admin: psycopg.Connection[Any], postgres_url: str, pool: ThreadPoolExecutor
) -> None:
    admin.execute("CREATE ROLE lonely LOGIN PASSWORD 'x' CONNECTION LIMIT 0")
    try:
        store = postgres_store(_as(postgres_url, "lonely", "x"), patience=0.2)
        with pytest.raises(StoreAway, match="no free connections"):
            store.perform(run, "one")
        store.close()
    finally:
        admin.execute("DROP ROLE lonely")


def test_nobody_waits_for_what_nobody_wants() -> None:
    tries = []

    def fail() -> None:
        tries.append(1)
        raise psycopg.OperationalError("gone")

    with pytest.raises(StoreAway):
        Retrier(None, drop_connections=lambda: None).until_done(fail, wanted=lambda: len(tries) < 3)
    assert len(tries) == 3


def test_a_migration_under_our_feet_is_no_error(store: PostgresStore, admin: psycopg.Connection[Any]) -> None:
    """Prepared statements remember what they return."""
    for _ in range(2):
        store.perform(insert, "a" * (1 + _))
        store.perform(run, "read")
    admin.execute("ALTER TABLE perdure_thing ALTER note TYPE varchar")
    assert len(store.perform(run, "read")) == 2


def _as(url: str, user: str, password: str) -> str:
    return psycopg.conninfo.make_conninfo(url, user=user, password=password)
