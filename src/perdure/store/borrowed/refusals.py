"""Errors for callers' connections that cannot be used. They are the same for all drivers."""

from __future__ import annotations

from perdure.errors import UnsupportedConnection


def closed() -> UnsupportedConnection:
    return UnsupportedConnection("The connection is closed.", code="conn.closed")


def of_another_thread() -> UnsupportedConnection:
    return UnsupportedConnection(
        "The connection is closed, or belongs to another thread.", code="conn.closed"
    )


def busy() -> UnsupportedConnection:
    return UnsupportedConnection("The connection is still busy with a statement.", code="conn.busy")


def aborted() -> UnsupportedConnection:
    return UnsupportedConnection("The transaction has failed: roll it back first.", code="conn.aborted")


def autocommit() -> UnsupportedConnection:
    return UnsupportedConnection(
        "The connection is in autocommit mode and no transaction is open: begin one first.",
        code="conn.autocommit",
    )


def elsewhere() -> UnsupportedConnection:
    return UnsupportedConnection(
        "The connection is to a different database than the app's.", code="conn.other_database"
    )


def wrong_encoding() -> UnsupportedConnection:
    return UnsupportedConnection("The connection's client_encoding is not UTF8.", code="conn.encoding")
