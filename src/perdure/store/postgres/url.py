"""What a PostgreSQL URL asks for, what of it may be shown, and what in it can never work.

What is wrong is told by the option's name, never by its value: a slip in a URL easily makes a piece of the password a
host, a port, a database or an option.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from perdure.errors import InvalidConfig

_UNREADABLE: Final = "The PostgreSQL URL cannot be read."
_ENCODE_AT: Final = (
    "The PostgreSQL URL has an @ too many: in a user, a password or a name "
    "write @ as %40, / as %2F and ? as %3F."
)
_PORT: Final = "The port in the PostgreSQL URL, or in $PGPORT, is not one: 1 to 65535."
_PAIRS: Final = "The PostgreSQL URL has not as many of one as of the other: host, hostaddr, port."

# libpq reads these only while it connects, and then calls them a server that cannot be reached.
_INTEGERS: Final = (
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)
_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]{1,9}\s*")

# Nothing is contacted: no server has such an address.
_NOWHERE: Final[Mapping[str, str]] = {"host": "x", "hostaddr": "x", "port": "1"}


def parse_url(url: str) -> dict[str, Any]:
    """What a URL asks for."""
    query = _query(url)
    if "\0" in url:
        raise InvalidConfig(_UNREADABLE)  # libpq would read what stands before it
    asked = _parsed(url)
    if asked is None:
        raise InvalidConfig(_unreadable(query))
    _refuse_places(asked)
    for name in _INTEGERS:
        if name in asked and not _INTEGER.fullmatch(str(asked[name])):
            raise _wrong(name)
    if "connect_timeout" in asked and not _is_number(str(asked["connect_timeout"])):
        raise _wrong("connect_timeout")
    return asked


def _parsed(url: str) -> dict[str, Any] | None:
    """None if libpq cannot read it: an error that is raised while libpq's is handled would carry that, with the URL."""
    try:
        return conninfo_to_dict(url)
    except (psycopg.ProgrammingError, ValueError):
        return None


def servers(url: str) -> str:
    """Host and port of each server that a URL leads to; nothing else in it is fit to be shown."""
    asked = parse_url(url)
    hosts = _hosts(asked) or _list(asked, "hostaddr") or ["localhost"]
    ports = _ports(asked) or ["5432"]
    if len(ports) < len(hosts):
        ports *= len(hosts)
    return ",".join(f"{host or 'localhost'}:{port or 5432}" for host, port in zip(hosts, ports, strict=False))


def shown(database: str | None) -> str:
    """A database's name, unless it looks like a connection string: that may have a password in it."""
    return "…" if database and re.search("[@=]|://", database) else database or ""


def refuse_wrong_options(asked: Mapping[str, Any]) -> None:
    """Raise InvalidConfig if libpq would contact no server whatsoever, naming the first option that is to blame.

    Not to be called while the driver's error is handled, which quotes the value: ours would carry it.
    Which values are right depends on libpq's version, and what it says about them on the language: so it is asked.
    """
    probe = dict(_NOWHERE)
    options = {name: value for name, value in asked.items() if name not in (*_NOWHERE, "password")}
    if not _is_refused({**options, **probe}):
        return
    if _is_refused(probe):
        raise InvalidConfig(
            "A variable of libpq's in the environment, such as $PGSSLMODE, has a wrong value."
        )
    for name, value in options.items():
        probe[name] = value
        if _is_refused(probe):
            raise _wrong(name)


def _is_refused(settings: Mapping[str, Any]) -> bool:
    return pq.PGconn.ping(make_conninfo(**settings).encode()) == pq.Ping.NO_ATTEMPT


def _query(url: str) -> str:
    """Where options stand. Refuse a URL that libpq and its writer read differently.

    For libpq a password ends at the first @, and there is none behind a slash.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("postgresql", "postgres"):
        return ""
    before, at, behind = rest.partition("@")
    place, _, query = (behind if at and "/" not in before else rest).partition("?")
    if "@" in place:
        raise InvalidConfig(_ENCODE_AT)
    return query


def _unreadable(query: str) -> str:
    """What is wrong in a URL that libpq cannot parse, without secrets."""
    parts = [part.partition("=") for part in query.split("&") if part]
    names = [unquote(name) for name, _, _ in parts]
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} | {"ssl"}
    for name, (_, separator, value) in zip(names, parts, strict=True):
        if name in known and (not separator or "=" in value):
            return f"The option {name} in the PostgreSQL URL cannot be read: in its value write = as %3D and & as %26."
        # It may be a piece of a password, which has a & or a ? in it.
        secret = "@" in query or any("password" in one for one in names)
        if name not in known and not secret and re.fullmatch("[A-Za-z_]{1,40}", name):
            return f"The PostgreSQL URL has an option that libpq does not know: {name}."
    return _UNREADABLE


def _refuse_places(asked: Mapping[str, Any]) -> None:
    hosts, ports = _hosts(asked), _ports(asked)
    addresses = _list(asked, "hostaddr") or _list(os.environ, "PGHOSTADDR")
    # A socket without a file begins with one.
    if any(host.find("@") > 0 for host in (*hosts, *addresses)):
        raise InvalidConfig(_ENCODE_AT)
    if any(port and not (_INTEGER.fullmatch(port) and 0 < int(port) < 2**16) for port in ports):
        raise InvalidConfig(_PORT)
    if (hosts and addresses and len(hosts) != len(addresses)) or (
        1 < len(ports) != max(len(hosts), len(addresses), 1)
    ):
        raise InvalidConfig(_PAIRS)


def _hosts(asked: Mapping[str, Any]) -> list[str]:
    return _list(asked, "host") or ([] if asked.get("hostaddr") else _list(os.environ, "PGHOST"))


def _ports(asked: Mapping[str, Any]) -> list[str]:
    return _list(asked, "port") or _list(os.environ, "PGPORT")


def _list(asked: Mapping[str, Any], name: str) -> list[str]:
    return str(asked[name]).split(",") if asked.get(name) else []


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _wrong(option: str) -> InvalidConfig:
    return InvalidConfig(f"The option {option} in the PostgreSQL URL has a wrong value.")
