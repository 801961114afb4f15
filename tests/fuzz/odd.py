"""What users pass: the right thing, the right thing at its limit, and anything at all."""

from __future__ import annotations

import sys
from collections import OrderedDict, UserDict, UserList, UserString
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

Values = st.SearchStrategy[Any]

SECRET = "hunter2"
"""What no error may show."""


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Rank(IntEnum):
    LOW = 1
    HIGH = 2


class Name(StrEnum):
    ANN = "ann"


class Point(NamedTuple):
    x: int
    y: int


class Fancy(str):
    """Such as a template engine's safe text."""


class Count(int): ...


class Loud(str):
    """Its methods return wrong values."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError(SECRET)

    def strip(self, *_: Any) -> str:
        raise RuntimeError(SECRET)


class Sealed(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return {"x": 1}[key]

    def __iter__(self) -> Any:
        return iter(("x",))

    def __len__(self) -> int:
        return 1


class Broken(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(SECRET)

    def __iter__(self) -> Any:
        raise RuntimeError(SECRET)

    def __len__(self) -> int:
        raise RuntimeError(SECRET)


class Row(Sequence[Any]):
    def __getitem__(self, index: Any) -> Any:
        return ("a", "b")[index]

    def __len__(self) -> int:
        return 2


class Torn(Sequence[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError(SECRET)

    def __len__(self) -> int:
        raise RuntimeError(SECRET)


class Hostile:
    """Raises, whatever is called."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError(SECRET)

    def __hash__(self) -> int:
        raise RuntimeError(SECRET)

    def __repr__(self) -> str:
        raise RuntimeError(SECRET)

    def __bool__(self) -> bool:
        raise RuntimeError(SECRET)


def nested(depth: int, *, by: str = "list") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if by == "list" else {"x": value}
    return value


def circle(by: str = "list") -> Any:
    if by == "list":
        values: list[Any] = [1]
        values.append(values)
        return values
    names: dict[str, Any] = {}
    names["self"] = names
    return names


def among(values: Sequence[Any]) -> Values:
    """One of these, by its number: some of them can be neither hashed nor shown."""
    return st.sampled_from(range(len(values))).map(values.__getitem__)


_LETTERS = st.characters(exclude_categories=())
SPELLINGS = (
    "", " ", "\t\n", "a", "ann@example.com", "'; DROP TABLE perdure.job; --", '"', "'", "\\", "%s", "%(id)s",
    ":now", "$1", "{}", "{0}", "nul\0", "half \ud800", "\udcff", "é", "e\u0301", "\u202e", "\ufeff",
    "\U0001d54a", "🎉", "\x1b[31m", "null", "true", "NaN", "0", "-1", "1e309", "..", "../../etc/passwd", "-",
    "--", "--help", "=", "a,b", "a=b", "*", SECRET, f"{SECRET}\0", "x" * 63, "x" * 64, "x" * 65, "é" * 32,
    "é" * 33, "x" * 255, "x" * 256, "x" * 512, "x" * 513, "x" * 2000, "x" * 2001,
    "00000000-0000-0000-0000-000000000000", "0" * 32, "{" * 3000,
)  # fmt: skip

texts: Values = st.sampled_from(SPELLINGS) | st.text(_LETTERS, max_size=20)
"""Every character, and some invalid ones."""

_NUMBERS = (
    0, 1, -1, 2, 100, 1000, 1001, 32_767, 32_768, -32_768, -32_769, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1,
    2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 2**80, 10**400, 10**5000, -(10**5000),
)  # fmt: skip
parameters: Values = st.sampled_from(("n", "note")) | texts.filter(lambda name: SECRET not in name)
"""The name of an argument may be shown, and is."""

integers: Values = among(_NUMBERS) | st.integers()

floats: Values = (
    st.sampled_from((0.0, -0.0, 0.5, 1e-9, 5e-324, sys.float_info.max, 1e16, 1e300)) | st.floats()
)

_ZONES = (
    UTC,
    timezone(timedelta(hours=23, minutes=59)),
    timezone(-timedelta(hours=12)),
    ZoneInfo("Europe/Berlin"),
)
datetimes: Values = st.sampled_from(
    [
        *(datetime(year, 1, 1, tzinfo=zone) for year in (1, 1970, 2030, 2199, 2200, 9999) for zone in _ZONES),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, tzinfo=_ZONES[2]),
        datetime(2026, 10, 25, 2, 30, tzinfo=_ZONES[3], fold=1),
        datetime(2030, 1, 1),
        datetime.min,
        datetime.max,
    ]
)

timedeltas: Values = st.sampled_from(
    [
        *(timedelta(0), timedelta(microseconds=1), timedelta(seconds=-1), timedelta(hours=1)),
        *(timedelta(days=36_525), timedelta(days=36_526), timedelta.min, timedelta.max),
    ]
)

spans: Values = floats | integers | timedeltas


def _generator() -> Any:
    yield "a"


_STRANGE: tuple[Any, ...] = (
    None, True, False, NotImplemented, ..., object(), object, str, len, _generator, lambda: 1,
    Fancy("fancy"), Count(3), UserString("u"), Rank.LOW, Name.ANN, Colour.RED,
    Point(1, 2), b"", b"\0\xff", bytearray(b"x"), memoryview(b"x"), 1j, Decimal("1.10"), Decimal("NaN"),
    Decimal("Infinity"), Decimal("1e400"), Fraction(1, 3), UUID(int=0), UUID(int=2**128 - 1), date.min,
    date.max, time(1), time(1, tzinfo=UTC), time(1, tzinfo=_ZONES[3]), PurePosixPath("x"), Sealed(),
    MappingProxyType({"x": 1}), UserDict(x=1), UserList("ab"), Row(), OrderedDict(x=1), range(3),
    frozenset("a"), {1, "a"}, (), [], {}, [[]], {1: 2}, {None: 1}, {"": 1}, {"\0": 1}, {"\ud800": 1},
    {"x": "\0"}, {(1, 2): 3}, {b"x": 1}, nested(150), nested(250), nested(5000), nested(5000, by="dict"),
    nested(100_000), circle(), circle("dict"), [float("nan")], {"x": float("inf")}, [2**80], [10**5000],
    ["x" * (1 << 20)], "x" * ((1 << 20) + 1), {f"k{n}": n for n in range(2000)}, Exception(SECRET), ValueError,
    Ellipsis, {"$perdure": 1}, {"$ref": "a"},
)  # fmt: skip
strange: Values = among(_STRANGE)
hostile: Values = among((Hostile(), Broken(), Torn(), Loud("loud")))
"""Only as arguments and results: the error of an object that cannot be asked anything is the caller's own."""

scalars: Values = st.one_of(st.none(), st.booleans(), integers, floats, texts)
plain: Values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
"""What JSON has, or almost."""

anything: Values = st.one_of(texts, spans, datetimes, strange, plain)


def mostly(*right: Any) -> Values:
    """One of these, three times of four: otherwise anything. A strategy stands for its values."""
    good = st.one_of(*(one if isinstance(one, st.SearchStrategy) else st.just(one) for one in right))
    return st.one_of(good, good, good, anything)


def some(**options: Values) -> Values:
    """Some of these options."""
    return st.fixed_dictionaries({}, optional=options)
