"""Connections that are refused, with the code of the refusal."""

from __future__ import annotations

import pytest

from perdure.errors import UnsupportedConnection
from perdure.store.borrowed import join
from perdure.store.store import Store
from tests.store.things import insert


def refuses(conn: object, store: Store, code: str, *, match: str | None = None) -> None:
    with pytest.raises(UnsupportedConnection, match=match) as refused:
        join.perform(conn, store, insert, "refused")
    assert refused.value.code == code


async def arefuses(conn: object, store: Store, code: str, *, match: str | None = None) -> None:
    with pytest.raises(UnsupportedConnection, match=match) as refused:
        await join.aperform(conn, store, insert, "refused")
    assert refused.value.code == code
