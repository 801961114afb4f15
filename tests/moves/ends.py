"""The source and the target of a move."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import NamedTuple

import psycopg
import pytest

from perdure import App
from perdure.errors import Refused
from tests.moves.small_store import run


class Ends(NamedTuple):
    source: str
    target: str

    def migrate(self) -> None:
        for url in self:
            with closing(App(url)) as app:
                app.migrate()


def is_open(url: str) -> bool:
    """Whether anybody can write there."""
    try:
        run(url, "INSERT INTO perdure.queue (name) VALUES ('trial')")
    except (sqlite3.IntegrityError, psycopg.DatabaseError) as error:
        if "moved" not in str(error):
            raise
        return False
    run(url, "DELETE FROM perdure.queue WHERE name = 'trial'")
    return True


def refuses(url: str) -> str:
    """The message of the refusal for a program that checks before it writes."""
    with closing(App(url)) as app, pytest.raises(Refused) as refusal:
        app.check_schema()
    assert refusal.value.code == "store.moved"
    return str(refusal.value)
