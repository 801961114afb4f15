"""A permanent mistake in a URL is an error at once, by the option's name; a condition that may change is retried."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import App
from perdure.errors import InvalidConfig, StoreAway
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.url import servers
from tests.chain import assert_carries_no_driver_error, told
from tests.harness.processes import run_cli
from tests.harness.waiting import until
from tests.store.things import postgres_store, run

WRONG = "has a wrong value"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sslmode=hunter2", f"sslmode .*{WRONG}"),
        ("sslmode=", f"sslmode .*{WRONG}"),
        ("connect_timeout=hunter2", f"connect_timeout .*{WRONG}"),
        ("connect_timeout=inf", f"connect_timeout .*{WRONG}"),
        ("keepalives=hunter2", f"keepalives .*{WRONG}"),
        ("tcp_user_timeout=9999999999", f"tcp_user_timeout .*{WRONG}"),
        ("target_session_attrs=hunter2", f"target_session_attrs .*{WRONG}"),
        ("application_name=x&channel_binding=hunter2&sslmode=hunter2", f"channel_binding .*{WRONG}"),
        ("sslmode=require&sslrootcert=system", f"sslrootcert .*{WRONG}"),
        ("service=hunter2", f"service .*{WRONG}"),
        ("port=99999", r"port .* 1 to 65535"),
        ("port=0", r"port .* 1 to 65535"),
        ("port=5_432", r"port .* 1 to 65535"),
        ("port=1,2", "host, hostaddr, port"),
        ("hostaddr=127.0.0.1,127.0.0.2", "host, hostaddr, port"),
        ("colour=hunter2", "does not know: colour"),
        ("options=-chunter2=x", "options .*cannot be read"),
        ("sslmode", "sslmode .*cannot be read"),
        ("options=-chunter2%3Dx", "server refuses settings .*options"),
        ("options=-cwork_mem%3Dhunter2", "server refuses settings .*options"),
        ("options=-cblock_size%3D1", "server refuses settings .*options"),
        ("options=--hunter2", "server refuses settings .*options"),
        ("options=hunter2", "server refuses settings .*options"),
        ("replication=hunter2", "server refuses settings .*replication"),
    ],
)
async def test_what_is_wrong_for_good_is_told_at_once_by_its_name(
    postgres_url: str, caplog: pytest.LogCaptureFixture, query: str, said: str
) -> None:
    caplog.set_level(logging.DEBUG, "perdure")
    store = PostgresStore(f"{postgres_url}?{query}", patience=None)
    verbs: tuple[Callable[[], object], ...] = (
        lambda: store.perform(run, "one"),
        store.migrate,
        store.connect,
    )
    for verb in verbs:
        with pytest.raises(InvalidConfig, match=said) as refused:
            verb()
        assert_kept(refused.value, caplog)
    with pytest.raises(InvalidConfig, match=said) as refused:
        await store.aconnect()
    assert_kept(refused.value, caplog)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    store.close()


def assert_kept(error: InvalidConfig, caplog: pytest.LogCaptureFixture) -> None:
    assert error.code == "config.invalid"
    assert "hunter2" not in f"{told(error)}{vars(error)}{caplog.text}"
    assert_carries_no_driver_error(error)


def test_a_wrong_value_in_the_environment_is_none_of_the_url_s(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSSLMODE", "hunter2")
    store = PostgresStore(f"{postgres_url}?application_name=x", patience=None)
    with pytest.raises(InvalidConfig, match="environment") as refused:
        store.perform(run, "one")
    assert_carries_no_driver_error(refused.value)
    monkeypatch.setenv("PGSSLMODE", "prefer")
    monkeypatch.setenv("PGPORT", "hunter2")
    with pytest.raises(InvalidConfig, match=r"\$PGPORT"):
        PostgresStore("postgresql://127.0.0.1/x", patience=None).check_schema()
    store.close()


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("sslmode=require", "The server does not support SSL, which sslmode requires"),
        (
            "target_session_attrs=standby",
            "The server is not a standby, but target_session_attrs requires one",
        ),
        ("target_session_attrs=read-only", "The server is writable, which target_session_attrs"),
        (
            "channel_binding=require",
            "The server does not offer what channel_binding or require_auth requires",
        ),
        ("require_auth=gss", "The server does not offer what channel_binding or require_auth requires"),
    ],
)
async def test_what_may_change_is_waited_for_and_told_with_its_reason(
    postgres_url: str, caplog: pytest.LogCaptureFixture, query: str, reason: str
) -> None:
    url = f"{postgres_url}?{query}"
    store = PostgresStore(url, patience=0.3)
    said = f"^{reason}.* {re.escape(f'({servers(url)})')}\\.$"
    with pytest.raises(StoreAway, match=said) as away:
        store.perform(run, "one")
    assert away.value.code == "store.away"
    with pytest.raises(StoreAway, match=said):
        await store.aconnect()
    [told] = caplog.messages
    assert told.startswith(f"The database is away (the {reason.removeprefix('The ')}")
    assert told.endswith(f", {servers(url)}); trying again")
    store.close()


def test_a_port_and_numbers_as_libpq_takes_them_are_accepted(postgres_url: str) -> None:
    query = "connect_timeout=2.5&keepalives=%201%20&tcp_user_timeout=-1&application_name=a@b"
    store = postgres_store(f"{postgres_url}?{query}", patience=0)
    assert store.perform(run, "one")
    store.close()


@pytest.mark.parametrize(
    ("query", "option"), [("sslmode=hunter2", "sslmode"), ("options=-cfoo%3Dbar", "options")]
)
def test_a_worker_ends_with_the_exit_code_of_a_wrong_url(
    postgres_url: str, tmp_path: Path, query: str, option: str
) -> None:
    (tmp_path / "shop.py").write_text(
        "import perdure\napp = perdure.App()\napp.task(name='x')(lambda: None)\n"
    )
    ran = run_cli("worker", "shop:app", cwd=tmp_path, PERDURE_URL=f"{postgres_url}?{query}")
    assert ran.returncode == 2
    [said] = [line for line in ran.stderr.splitlines() if line.startswith("Error: ")]
    assert option in said
    assert said.endswith("[config.invalid]")
    assert "hunter2" not in ran.stderr
    assert "away" not in ran.stderr


def test_a_listen_url_that_is_wrong_is_told(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    app = App(postgres_url, listen_url=f"{postgres_url}?sslmode=hunter2")
    app.migrate()
    stop = app.store.listen(lambda topics: None)
    until(lambda: "Notifications are lost (The option sslmode" in caplog.text)
    assert "hunter2" not in caplog.text
    stop()
    app.close()
