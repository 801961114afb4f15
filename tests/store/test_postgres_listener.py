"""Notifications of others arrive, also after lost connections. If none arrive, the log says so once."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure.errors import StoreClosed
from perdure.ops.notify import notify
from perdure.ops.topics import ANYTHING
from perdure.store import listener_thread
from perdure.store.postgres import listener
from perdure.store.postgres.listener import PostgresListener
from perdure.store.postgres.store import PostgresStore
from tests.harness.waiting import until
from tests.postgres import with_database
from tests.store.proxy import Proxy
from tests.store.test_postgres_processes import output
from tests.store.things import insert, postgres_store

SOMETHING = frozenset([ANYTHING])
DEAF = "Notifications do not arrive here"


def listener_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "perdure-postgres-listener"]


def listening(store: PostgresStore) -> list[frozenset[str]]:
    """What is heard from here on."""
    heard: list[frozenset[str]] = []
    store.listen(heard.append)
    until(lambda: SOMETHING in heard)
    heard.clear()
    return heard


def topics(heard: list[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*heard)


def cut_listeners(admin: psycopg.Connection[Any]) -> int:
    """End every backend that listens, as an operator or a restart would."""
    rows = admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%LISTEN%'"
    ).fetchall()
    return len(rows)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed in a moment."""
    monkeypatch.setattr(listener, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(listener, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(listener, "DEAF_SECONDS", 0.1)


@pytest.fixture
def pooler(proxy: Proxy) -> Proxy:
    """It forwards what a backend answers, and drops what one says unasked."""
    proxy.on_reply = lambda data: b"" if data.startswith(b"A") else data
    return proxy


@pytest.fixture
def through_proxy(admin: psycopg.Connection[Any], postgres_url: str, proxy: Proxy) -> Iterator[PostgresStore]:
    """Only the listener's connection leads through the proxy."""
    store = postgres_store(postgres_url, listen_url=f"{proxy.url}?connect_timeout=2")
    yield store
    store.close()


def test_what_another_process_commits_is_heard(store: PostgresStore, postgres_url: str) -> None:
    heard = listening(store)
    assert output("store.perform(insert, 'a', wake=frozenset(['queue/mail']))", postgres_url) == []
    until(lambda: heard)
    assert heard == [{"queue/mail"}]


def test_a_ring_is_heard_by_all_and_writes_nothing(store: PostgresStore, postgres_url: str) -> None:
    other = postgres_store(postgres_url)
    theirs, ours = listening(other), listening(store)
    store.perform(notify, frozenset(["a", "b"]))
    assert ours[0] == {"a", "b"}, "told at once in this process"
    until(lambda: topics(theirs) == {"a", "b"})
    other.close()


def test_another_schema_is_another_channel(store: PostgresStore, postgres_url: str) -> None:
    other = postgres_store(postgres_url, schema="other")
    heard, theirs = listening(store), listening(other)
    other.perform(notify, frozenset(["theirs"]))
    until(lambda: theirs)
    assert output("store.perform(insert, 'a', wake=frozenset(['ours']))", postgres_url) == []
    until(lambda: heard)
    assert heard == [{"ours"}]
    other.close()


def test_what_arrives_together_is_told_together(store: PostgresStore, admin: psycopg.Connection[Any]) -> None:
    heard = listening(store)
    admin.execute("SELECT pg_notify('perdure', 'topic ' || n) FROM generate_series(1, 500) AS n")
    until(lambda: len(topics(heard)) == 500)
    assert len(heard) < 50


def test_a_notice_without_a_topic_may_mean_anything(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    heard = listening(store)
    admin.execute("NOTIFY perdure")
    until(lambda: heard)
    assert heard == [SOMETHING]


def test_a_connection_that_was_cut_is_replaced_without_a_word(
    store: PostgresStore, admin: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure.store")
    heard = listening(store)
    for number in range(3):
        assert cut_listeners(admin) == 1
        until(lambda: SOMETHING in heard)
        heard.clear()
        admin.execute(f"NOTIFY perdure, 'topic {number}'".encode())
        until(lambda: heard)
        assert heard == [{f"topic {number}"}]
        heard.clear()
    assert caplog.messages == []


def test_a_database_that_goes_and_comes_back_is_two_lines_in_the_log(
    through_proxy: PostgresStore,
    proxy: Proxy,
    admin: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = listening(through_proxy)
    proxy.refuse()
    until(lambda: proxy.refused > 4)
    (lost,) = caplog.messages
    assert lost.startswith("Notifications are lost")
    proxy.admit()
    until(lambda: SOMETHING in heard)
    assert caplog.messages == [lost, "Notifications arrive again"]
    admin.execute("NOTIFY perdure, 'topic'")
    until(lambda: {"topic"} in heard)


def test_a_network_that_falls_silent_is_noticed(
    quick: None, through_proxy: PostgresStore, proxy: Proxy, admin: psycopg.Connection[Any]
) -> None:
    heard = listening(through_proxy)
    before = proxy.connections
    proxy.freeze()
    until(lambda: proxy.connections > before)
    proxy.thaw()
    until(lambda: SOMETHING in heard)
    admin.execute("NOTIFY perdure, 'topic'")
    until(lambda: {"topic"} in heard)


def test_a_quiet_connection_is_kept(
    quick: None,
    through_proxy: PostgresStore,
    proxy: Proxy,
    admin: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "ANSWER_SECONDS", 60.0)
    heard = listening(through_proxy)
    before, spoken = proxy.connections, len(proxy.heard)
    until(lambda: len(proxy.heard) > spoken + 100)
    admin.execute("NOTIFY perdure, 'topic'")
    until(lambda: {"topic"} in heard)
    assert proxy.connections == before


def test_behind_a_pooler_the_log_says_so_once(
    quick: None, pooler: Proxy, through_proxy: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[frozenset[str]] = []
    through_proxy.listen(heard.append)
    # Quietly, now and then.
    until(lambda: pooler.connections >= 4)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(DEAF)
    assert heard == []
    pooler.on_reply = lambda data: data
    until(lambda: heard)
    assert caplog.messages[1:] == ["Notifications arrive again"]


def test_a_pooler_is_asked_seldom_however_many_listen(
    pooler: Proxy,
    through_proxy: PostgresStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(listener, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(listener_thread, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(listener_thread, "_LONGEST_WAIT", 0.01)
    for _ in range(3):
        end = through_proxy.listen(print)
        until(lambda: caplog.messages)
        end()
        until(lambda: not listener_threads())
    assert pooler.connections == 1


def test_listening_in_another_database_is_as_good_as_deaf(
    quick: None,
    admin: psycopg.Connection[Any],
    postgres_url: str,
    postgres_server: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = postgres_store(postgres_url, listen_url=with_database(postgres_server, "postgres"))
    store.listen(print)
    until(lambda: caplog.messages)
    assert caplog.messages[0].startswith(DEAF)
    store.close()


def test_where_listen_is_refused_the_log_says_so(
    quick: None, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener_thread = PostgresListener(postgres_url, 'a "syntax error', announce=lambda channel: None)
    listener_thread.add(print)
    until(lambda: caplog.messages)
    assert caplog.messages[0].startswith(DEAF)
    listener_thread.stop()


def test_an_address_where_nobody_is_harms_nobody(
    admin: psycopg.Connection[Any], postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = postgres_store(postgres_url, listen_url="postgresql://ann:secret@127.0.0.1:1/jobs")
    heard: list[frozenset[str]] = []
    store.listen(heard.append)
    store.perform(insert, "a", wake=frozenset(["topic"]))
    assert heard == [{"topic"}]
    until(lambda: caplog.messages)
    assert caplog.messages[0].startswith("Notifications are lost")
    assert "secret" not in caplog.text
    assert "ann" not in caplog.text
    store.close()


def test_closing_waits_for_no_network(
    quick: None, through_proxy: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening(through_proxy)
    monkeypatch.setattr(listener, "ANSWER_SECONDS", 3600.0)
    proxy.freeze()
    time.sleep(0.2)  # by now the connection is probed, and nothing answers
    through_proxy.close()
    proxy.thaw()
    until(lambda: not listener_threads())
    with pytest.raises(StoreClosed):
        through_proxy.listen(print)


def test_a_connection_outlives_its_listener_for_a_while(
    store: PostgresStore, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def backends() -> list[Any]:
        return admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%LISTEN%'"
            " AND pid <> pg_backend_pid()"
        ).fetchall()

    heard: list[frozenset[str]] = []
    end = store.listen(heard.append)
    until(lambda: heard)
    before = backends()
    end()
    again = store.listen(heard.append)
    assert backends() == before
    assert len(before) == 1
    monkeypatch.setattr(listener_thread, "LINGER_SECONDS", 0.0)
    again()
    admin.execute("NOTIFY perdure")
    until(lambda: not backends())
    until(lambda: not listener_threads())


def test_a_store_that_is_forgotten_stops_listening(admin: Any, postgres_url: str) -> None:
    store = postgres_store(postgres_url)
    listening(store)
    del store
    gc.collect()
    until(lambda: not listener_threads())


@pytest.mark.parametrize("ending", ["", "store.close()", "del store; gc.collect()"])
def test_a_program_that_listens_ends_without_a_word(admin: Any, postgres_url: str, ending: str) -> None:
    script = f"""
heard = threading.Event()
store.listen(lambda topics: heard.set())
heard.wait(30)
{ending}
"""
    assert output(script, postgres_url) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_listens_anew_and_the_parent_goes_on(admin: Any, postgres_url: str) -> None:
    script = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
from perdure.ops.notify import notify
def listen(name):
    ready, heard = threading.Event(), threading.Event()
    store.listen(lambda topics: ready.set() if "*" in topics else heard.set() if name in topics else None)
    assert ready.wait(30)
    return heard
parent = listen("for the parent")
here, there = os.pipe()
pid = os.fork()
if not pid:
    child = listen("for the child")
    os.write(there, b"!")
    assert child.wait(30)
    assert not parent.is_set()
    store.perform(notify, frozenset(["for the parent"]))
    os._exit(0)
os.read(here, 1)
store.perform(notify, frozenset(["for the child"]))
_, status = os.waitpid(pid, 0)
print(status, parent.wait(30))
"""
    assert output(script, postgres_url) == ["0", "True"]
