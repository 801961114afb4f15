"""Convert values: parameters to untyped text, and rows to integers, texts and other simple values.

The server infers each parameter's type from the statement alone. The same prepared statement therefore works whether a
parameter is NULL or not. A statement that lacks a cast fails at its first use, not only when a parameter is NULL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from psycopg import postgres
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.pq import Format
from psycopg.types.bool import BoolBinaryLoader
from psycopg.types.numeric import (
    Float8BinaryLoader,
    Int2BinaryLoader,
    Int4BinaryLoader,
    Int8BinaryLoader,
    NumericBinaryLoader,
    OidBinaryLoader,
)
from psycopg.types.string import TextBinaryLoader

from perdure.errors import Invalid
from perdure.model.time_text import FIRST, LAST
from perdure.ops.op import Param

_BAD_VALUE = "store.bad_value"
_PLACEHOLDER = re.compile(r"%%|%\((\w+)\)s")

# timestamptz counts from the year 2000. ±infinity, and years that a datetime cannot hold, become the first or last
# time that a datetime can hold. A row with such values, written by hand, must stay readable.
YEAR_2000 = 946_684_800_000_000
_read_int64 = Struct("!q").unpack


class Statement(NamedTuple):
    """A statement with the server's parameters: ``$1`` is the first parameter.

    ``name`` is a hash of the text, so that clients that share a backend through a pooler use the same name for it.
    """

    text: bytes
    name: bytes
    params: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Statement:
        """Convert a statement with psycopg's parameters, ``%(name)s``."""
        params: dict[str, int] = {}

        def number(found: re.Match[str]) -> str:
            name = found[1]
            return f"${params.setdefault(name, len(params) + 1)}" if name else "%"

        positional = _PLACEHOLDER.sub(number, text).encode()
        return cls(positional, b"perdure_" + sha256(positional).hexdigest()[:24].encode(), tuple(params))

    def bind(self, values: Mapping[str, Param]) -> list[bytes | None]:
        return [encode(values[name]) for name in self.params]


def encode(value: Param) -> bytes | None:
    """Encode a parameter as text that the server can read as any type."""
    if value is None:
        return None
    text = value if isinstance(value, str) else str(value)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise Invalid("A text contains a lone surrogate.", code=_BAD_VALUE) from None
    if b"\0" in encoded:
        # libpq would truncate the text at the NUL.
        raise Invalid("A text contains NUL, which PostgreSQL cannot store.", code=_BAD_VALUE)
    return encoded


def as_text(value: Param) -> str | None:
    """Like ``encode``, but return a str, for drivers that encode texts themselves."""
    encoded = encode(value)
    return None if encoded is None else encoded.decode()


class Untyped(Dumper):
    """A psycopg dumper that calls ``encode``, for callers' connections."""

    oid = 0

    def dump(self, obj: Param) -> bytes | None:
        return encode(obj)


class Microseconds(Loader):
    """Loads a timestamptz as microseconds since the epoch."""

    format = Format.BINARY

    def load(self, data: Buffer) -> int:
        (since_2000,) = _read_int64(data)
        instant: int = since_2000 + YEAR_2000
        return instant if FIRST <= instant <= LAST else (FIRST if instant < 0 else LAST)


class Uuid(Loader):
    """Loads a uuid as text."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        digits = bytes(data).hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


LOADERS: Mapping[str, type[Loader]] = {
    "bool": BoolBinaryLoader,
    "int2": Int2BinaryLoader,
    "int4": Int4BinaryLoader,
    "int8": Int8BinaryLoader,
    "oid": OidBinaryLoader,
    "float8": Float8BinaryLoader,
    "numeric": NumericBinaryLoader,
    "text": TextBinaryLoader,
    "varchar": TextBinaryLoader,
    "name": TextBinaryLoader,
    "json": TextBinaryLoader,
    "uuid": Uuid,
    "timestamptz": Microseconds,
}


def adapt(adapters: AdaptersMap, *, also: Iterable[type] = ()) -> AdaptersMap:
    """Register our conversions, whatever was registered before. ``also``: types to pass as untyped parameters."""
    for name, loader in LOADERS.items():
        adapters.register_loader(postgres.types[name].oid, loader)
    for cls in also:
        adapters.register_dumper(cls, Untyped)
    return adapters
