"""PostgreSQL URLs: parse them, show them without secrets, refuse options that can never work.

Errors show the name of an option, never its value, because a typing error in a URL easily turns a piece of the password
into a host, a port, a database or an option.
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
    "The PostgreSQL URL has one @ too many: in a user, a password or a name, "
    "write @ as %40, / as %2F and ? as %3F."
)
_PORT: Final = "The port in the PostgreSQL URL, or in $PGPORT, must be a number from 1 to 65535."
_PAIRS: Final = "The PostgreSQL URL must have the same number of each: host, hostaddr, port."

# libpq reads these options only while it connects, and reports a wrong value as if the server could not be reached.
_INTEGERS: Final = (
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)
_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]{1,9}\s*")

# With these options libpq contacts no server, because "x" is not an address.
_NOWHERE: Final[Mapping[str, str]] = {"host": "x", "hostaddr": "x", "port": "1"}


def parse_url(url: str) -> dict[str, Any]:
    """The options of a URL."""
    query = _query(url)
    if "\0" in url:
        raise InvalidConfig(_UNREADABLE)  # libpq would read only the part before the NUL
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
    """The options; None if libpq cannot read the URL.

    The caller raises our error. If it were raised here, its context would be libpq's error, which quotes the URL.
    """
    try:
        return conninfo_to_dict(url)
    except (psycopg.ProgrammingError, ValueError):
        return None


def servers(url: str) -> str:
    """Host and port of each server in a URL. Nothing else of a URL may be shown."""
    asked = parse_url(url)
    hosts = _hosts(asked) or _list(asked, "hostaddr") or ["localhost"]
    ports = _ports(asked) or ["5432"]
    if len(ports) < len(hosts):
        ports *= len(hosts)
    return ",".join(f"{host or 'localhost'}:{port or 5432}" for host, port in zip(hosts, ports, strict=False))


def shown(database: str | None) -> str:
    """A database's name, unless it looks like a connection string, which may contain a password."""
    return "…" if database and re.search("[@=]|://", database) else database or ""


def refuse_wrong_options(asked: Mapping[str, Any]) -> None:
    """Raise InvalidConfig if libpq would contact no server at all. The error names the first wrong option.

    Do not call this while handling the driver's error. That error would become the context of ours, and it quotes
    values. libpq itself tests the options, because valid values depend on its version. We cannot use libpq's messages,
    because they depend on the language.
    """
    probe = dict(_NOWHERE)
    options = {name: value for name, value in asked.items() if name not in (*_NOWHERE, "password")}
    if not _is_refused({**options, **probe}):
        return
    if _is_refused(probe):
        raise InvalidConfig("A libpq variable in the environment, such as $PGSSLMODE, has a wrong value.")
    for name, value in options.items():
        probe[name] = value
        if _is_refused(probe):
            raise _wrong(name)


def _is_refused(settings: Mapping[str, Any]) -> bool:
    return pq.PGconn.ping(make_conninfo(**settings).encode()) == pq.Ping.NO_ATTEMPT


def _query(url: str) -> str:
    """The query part of a URL. Refuse a URL that libpq would misread.

    libpq ends a password at the first @. If there is a slash before that @, libpq reads no password.
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
    """A message about a URL that libpq cannot parse, without secrets."""
    parts = [part.partition("=") for part in query.split("&") if part]
    names = [unquote(name) for name, _, _ in parts]
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} | {"ssl"}
    for name, (_, separator, value) in zip(names, parts, strict=True):
        if name in known and (not separator or "=" in value):
            return f"The option {name} in the PostgreSQL URL cannot be read: in its value, write = as %3D and & as %26."
        # An unknown name may be a piece of a password that contains & or ?.
        secret = "@" in query or any("password" in one for one in names)
        if name not in known and not secret and re.fullmatch("[A-Za-z_]{1,40}", name):
            return f"The PostgreSQL URL has an option that libpq does not know: {name}."
    return _UNREADABLE


def _refuse_places(asked: Mapping[str, Any]) -> None:
    hosts, ports = _hosts(asked), _ports(asked)
    addresses = _list(asked, "hostaddr") or _list(os.environ, "PGHOSTADDR")
    # An @ at the beginning is allowed, because the name of an abstract socket begins with it.
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
