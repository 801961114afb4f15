"""One operation is one transaction, in as few round trips as possible."""

from __future__ import annotations

import psycopg
import pytest

from perdure.errors import InternalError, Invalid, Refused, StoreBusy
from perdure.ops.op import Op, Operation, Query, RoundTrip, ask, ask_all, operation
from perdure.store.postgres.session import Session
from perdure.store.postgres.store import PostgresStore
from tests.store.proxy import Proxy
from tests.store.things import (
    insert,
    insert_and_refuse,
    insert_in_steps,
    insert_two,
    insert_without_end,
    postgres_store,
    read,
    read_twice,
    run,
    run_urgently,
)

MAIL = frozenset({"queue/mail"})
SYNC = b"S\0\0\0\4"


def test_an_operation_returns_its_value_and_is_committed(store: PostgresStore) -> None:
    assert store.perform(insert, "a") == [("a",)]
    assert store.perform(read) == ["a"]


@pytest.mark.parametrize("both", [insert_two, insert_in_steps], ids=lambda operation: operation.name)
def test_an_error_undoes_the_statements_before_it(
    store: PostgresStore, both: Operation[[str, str], object]
) -> None:
    store.perform(insert, "b")
    with pytest.raises(InternalError):
        store.perform(both, "a", "b")
    assert store.perform(read) == ["b"]
    store.perform(both, "c", "d")
    assert store.perform(read) == ["b", "c", "d"]


def test_a_refusal_undoes_everything_and_reaches_the_caller(store: PostgresStore) -> None:
    with pytest.raises(Refused, match="Not today"):
        store.perform(insert_and_refuse, "a")
    assert store.perform(read) == []


def test_an_operation_without_a_final_step_is_committed_too(store: PostgresStore) -> None:
    assert store.perform(insert_without_end, "a") == [("a",)]
    assert store.perform(read) == ["a"]


def test_statements_of_one_step_see_the_ones_before(store: PostgresStore) -> None:
    @operation("write")
    def insert_and_read() -> Op[object]:
        return (yield from ask_all(Query("insert", {"id": "a", "note": None}), Query("read", {}), final=True))

    assert store.perform(insert_and_read) == [[("a",)], [("a", None)]]


def test_an_operation_may_not_go_on_after_its_final_step(store: PostgresStore) -> None:
    @operation("write")
    def goes_on() -> Op[None]:
        yield from ask_all(Query("insert", {"id": "a", "note": None}), final=True)
        yield from ask("read")

    with pytest.raises(InternalError, match="after its final round trip"):
        store.perform(goes_on)


def test_a_bad_value_in_the_middle_of_a_step_leaves_nothing_behind(store: PostgresStore) -> None:
    @operation("write")
    def half_bad(final: bool) -> Op[None]:
        yield RoundTrip(
            [Query("insert", {"id": "a", "note": None}), Query("insert", {"id": "\0", "note": None})], final
        )

    for final in (True, False):
        with pytest.raises(Invalid, match="NUL"):
            store.perform(half_bad, final)
    assert store.perform(read) == []


@pytest.mark.parametrize(
    ("operation", "args", "expected"),
    [
        (insert, ("a",), 1),
        (insert, ("a", None, MAIL), 1),
        (insert_two, ("a", "b"), 1),
        (insert_in_steps, ("a", "b"), 2),
        (insert_without_end, ("a", MAIL), 2),
        (run, ("one",), 1),
        (read, (), 1),
        (read_twice, (), 2),
    ],
)
def test_round_trips(
    admin, proxy: Proxy, operation: Operation[..., object], args: tuple, expected: int
) -> None:
    store = postgres_store(proxy.url)
    store.perform(run, "one")
    before, proxy.latency = proxy.round_trips, 0.05
    store.perform(operation, *args)
    assert proxy.round_trips - before == expected
    store.close()


def test_a_refusal_costs_a_round_trip_and_keeps_the_connection(admin, proxy: Proxy) -> None:
    store = postgres_store(proxy.url)
    for id in ("a", "b"):
        with pytest.raises(Refused):
            store.perform(insert_and_refuse, id)
    assert proxy.connections == 1
    store.close()


def test_a_constraint_keeps_the_connection(store: PostgresStore) -> None:
    backend = store.perform(run, "backend")
    for wake in (frozenset[str](), MAIL):
        with pytest.raises(InternalError):
            store.perform(insert, None, None, wake)  # type: ignore[arg-type]
    assert store.perform(run, "backend") == backend


@pytest.mark.parametrize("steps", [1, 2])
def test_topics_arrive_at_other_connections(
    store: PostgresStore, admin: psycopg.Connection, steps: int
) -> None:
    admin.execute("LISTEN perdure")
    topics = frozenset({"queue/mail", 'queue/"odd\\', "x" * 7001})
    store.perform(insert if steps == 1 else insert_without_end, "a", wake=topics)
    heard = {note.payload for note in admin.notifies(timeout=10, stop_after=2)}
    assert heard == {"queue/mail", 'queue/"odd\\'}


def test_a_schema_of_another_name_has_a_channel_of_its_own(postgres_url: str) -> None:
    names = ["perdure", "other", "x" * 63, 'we"ird x;--']
    channels = {PostgresStore(postgres_url, schema=name).channel for name in names}
    assert len(channels) == len(names)
    assert "perdure" in channels
    assert all(len(channel.encode()) <= 63 for channel in channels)


def test_listeners_in_the_process_hear_of_commits_only(store: PostgresStore) -> None:
    heard: list[frozenset[str]] = []
    unsubscribe = store.subscribe(heard.append)
    with pytest.raises(Refused):
        store.perform(insert_and_refuse, "a", wake=MAIL)
    assert heard == []
    store.perform(insert, "a", wake=MAIL)
    assert heard == [MAIL]
    unsubscribe()
    unsubscribe()
    store.perform(insert, "b", wake=MAIL)
    assert heard == [MAIL]


def test_a_listener_that_fails_takes_nothing_back(store: PostgresStore, caplog) -> None:
    def fail(topics: frozenset[str]) -> None:
        raise RuntimeError("listener")

    store.subscribe(fail)
    assert store.perform(insert, "a", wake=MAIL) == [("a",)]
    assert "A listener failed" in caplog.text


def test_the_writing_transaction_does_not_notify(admin, proxy: Proxy) -> None:
    """NOTIFY in it would hold a lock of the whole server until the commit is on the disk."""
    store = postgres_store(proxy.url, prepare=False)
    store.perform(run, "one")
    for writes, end in ((insert, SYNC), (insert_without_end, b"COMMIT\0")):
        proxy.heard.clear()
        store.perform(writes, writes.name, wake=MAIL)
        written, ended, notified = (proxy.heard.index(word) for word in (b"INSERT", end, b"pg_notify"))
        assert written < ended < notified
    store.close()


def test_a_failed_notice_does_not_fail_the_operation(store: PostgresStore) -> None:
    # The server cannot read a NUL in JSON.
    assert store.perform(insert, "a", wake=frozenset({"queue/\0"})) == [("a",)]
    assert store.perform(insert_without_end, "b", wake=frozenset({"queue/\ud800"})) == [("b",)]
    assert store.perform(read) == ["a", "b"]


def test_a_commit_that_fails_is_an_error(store: PostgresStore, admin: psycopg.Connection) -> None:
    admin.execute(
        "ALTER TABLE perdure_thing ADD parent text REFERENCES perdure_thing DEFERRABLE INITIALLY DEFERRED"
    )
    admin.execute("ALTER TABLE perdure_thing ALTER parent SET DEFAULT 'nobody'")
    heard: list[frozenset[str]] = []
    store.subscribe(heard.append)
    for writes in (insert, insert_without_end):
        with pytest.raises(InternalError) as refused:
            store.perform(writes, "a", wake=MAIL)
        assert refused.value.code == "store.constraint"
    assert heard == []
    assert store.perform(read) == []


@pytest.mark.parametrize("prepare", [None, False])
def test_timeouts_hold_and_leave_no_trace_where_a_backend_may_be_shared(
    postgres_url: str, admin: psycopg.Connection, prepare: bool | None
) -> None:
    store = postgres_store(postgres_url, prepare=prepare)

    @operation("write")
    def settings() -> Op[list[str]]:
        queries = [Query("setting", {"setting": name}) for name in names]
        return [rows[0][0] for rows in (yield from ask_all(*queries))]

    names = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]
    assert store.perform(settings) == ["30s", "5s", "30s"]
    assert store.perform(run, "setting", setting="statement_timeout") == [("30s",)]
    assert store.perform(run_urgently, "setting", setting="statement_timeout") == [("10s",)]
    with store._pool.lend("normal", timeout=1) as session:
        for name in names:
            session.send(store._parsed["setting"], {"setting": name})
        session.sync()
        left = ["0", "0", "0"] if prepare is False else ["10s", "3s", "10s"]
        assert session.receive() == [[(value,)] for value in left]
    locks = admin.execute(
        "SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid"
        " WHERE locktype = 'advisory' AND datname = current_database()"
    ).fetchall()
    assert locks == [(0,)]


def test_a_statement_that_takes_too_long_is_stopped(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.store.postgres import transaction as module

    monkeypatch.setattr(module, "READ_SETTINGS", module._settings(1, 1, 1))
    with pytest.raises(StoreBusy, match="too long"):
        store.perform(run, "sleep", seconds=60)


def test_a_role_with_another_isolation_still_reads_committed(
    admin: psycopg.Connection, postgres_url: str, proxy: Proxy
) -> None:
    (database,) = admin.execute("SELECT current_database()").fetchone() or ("",)
    admin.execute(f'ALTER DATABASE "{database}" SET default_transaction_isolation = serializable'.encode())
    store = postgres_store(proxy.url)
    assert store.perform(run, "isolation") == [("read committed",)]
    before = proxy.round_trips
    store.perform(insert, "a")
    assert proxy.round_trips - before == 1
    assert store.perform(read) == ["a"]
    store.close()


def test_many_large_statements_in_one_step_do_not_block_each_other(store: PostgresStore) -> None:
    """Both sides write more than the network buffers."""
    note = "x" * 300_000

    @operation("write")
    def flood() -> Op[int]:
        queries = [Query("insert", {"id": str(n), "note": note}) for n in range(40)]
        reads = [Query("read", {})] * 5
        answers = yield from ask_all(*queries, *reads, final=True)
        return sum(len(row[1]) for rows in answers[40:] for row in rows)

    assert store.perform(flood) == 40 * 5 * len(note)


def test_the_pool_lends_the_last_used_and_closes_the_idle(
    store: PostgresStore, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lend_two() -> tuple[Session, Session]:
        with (
            store._pool.lend("normal", timeout=1) as one,
            store._pool.lend("normal", timeout=1) as two,
        ):
            return one, two

    one, _ = lend_two()
    with store._pool.lend("normal", timeout=1) as last:
        assert last is one
    monkeypatch.setattr("perdure.store.postgres.pool.IDLE_SECONDS", 0.0)
    store.perform(run, "one")
    assert len(store._pool._idle) == 1
