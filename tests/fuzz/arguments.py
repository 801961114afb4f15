"""Arguments arrive as they were sent, also in type, or the enqueue is refused with the argument's path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
from hypothesis import strategies as st

from perdure.errors import BadArguments, PayloadTooLarge
from tests.fuzz.alike import alike
from tests.fuzz.explore import Subject
from tests.fuzz.ground import Ground
from tests.fuzz.odd import (
    Colour,
    Name,
    Point,
    Rank,
    Values,
    anything,
    datetimes,
    floats,
    hostile,
    integers,
    parameters,
    plain,
    texts,
    timedeltas,
)


@dataclass
class Address:
    street: str
    number: int = 0
    tags: list[Any] = field(default_factory=list)


class Card(msgspec.Struct):
    name: str
    until: date | None = None


class Guest(pydantic.BaseModel):
    name: str
    age: int | None = None


class Size(TypedDict, total=False):
    width: int
    height: float


decimals: Values = st.sampled_from(("1.10", "0", "-0", "1E+400", "NaN", "Infinity", "0E-20", "9" * 50)).map(
    Decimal
)

ANNOTATIONS: dict[str, tuple[Any, Values]] = {
    "Any": (Any, anything | plain),
    "str": (str, texts),
    "int": (int, integers),
    "float": (float, floats | integers),
    "bool": (bool, st.booleans()),
    "bytes": (bytes, st.binary(max_size=5)),
    "datetime": (datetime, datetimes),
    "date": (date, st.dates()),
    "time": (time, st.times()),
    "timedelta": (timedelta, timedeltas | st.timedeltas()),
    "UUID": (UUID, st.uuids()),
    "Decimal": (Decimal, decimals),
    "enum": (Colour, st.sampled_from(Colour)),
    "enum of numbers": (Rank, st.sampled_from(Rank)),
    "enum of texts": (Name, st.sampled_from(Name)),
    "literal": (Literal["a", 1], st.sampled_from(("a", 1))),
    "optional": (int | None, st.none() | integers),
    "union": (int | str | list[int], integers | texts | st.lists(integers, max_size=2)),
    "list": (list[float], st.lists(floats, max_size=3)),
    "dict": (dict[str, int], st.dictionaries(texts, integers, max_size=3)),
    "dict by number": (dict[int, str], st.dictionaries(integers, texts, max_size=3)),
    "dict by date": (dict[date, Any], st.dictionaries(st.dates(), plain, max_size=2)),
    "tuple": (tuple[int, str], st.tuples(integers, texts)),
    "tuples": (tuple[datetime, ...], st.lists(datetimes, max_size=2).map(tuple)),
    "named tuple": (Point, st.builds(Point, integers, integers)),
    "set": (set[int], st.sets(integers, max_size=3)),
    "frozenset": (frozenset[str], st.frozensets(texts, max_size=3)),
    "dataclass": (Address, st.builds(Address, texts, integers, st.lists(plain, max_size=2))),
    "struct": (Card, st.builds(Card, texts, st.none() | st.dates())),
    "model": (Guest, st.builds(lambda name: Guest(name=name), st.text(max_size=5))),
    "typed dict": (Size, st.fixed_dictionaries({}, optional={"width": integers, "height": floats})),
    "constrained": (Annotated[int, msgspec.Meta(ge=0, le=9)], integers),
    "nested": (
        dict[str, list[tuple[UUID, Decimal]]],
        st.dictionaries(texts, st.lists(st.tuples(st.uuids(), decimals))),
    ),
}


def _typed(annotation: str) -> Callable[[Ground, Any], None]:
    kind, _ = ANNOTATIONS[annotation]

    def check(ground: Ground, example: tuple[str, Any]) -> None:
        how, value = example
        name = f"takes {annotation}"
        if (task := ground.app.tasks.get(name)) is None:
            task = ground.app.task(name=name)(_taking(kind))
            ground.app.save_tasks()
        answer = ground.ask(lambda: _enqueue(ground, task, how, value))
        if isinstance(answer, Exception):
            assert isinstance(answer, BadArguments | PayloadTooLarge)
            assert isinstance(answer, PayloadTooLarge) or answer.path.startswith("$.value")
            return
        row = answer.refresh().row
        assert alike(value, task.arguments.decode(row.payload)["value"])

    return check


def _taking(kind: Any) -> Callable[..., None]:
    def take(value: Any) -> None: ...

    take.__annotations__ = {"value": kind}
    return take


def _enqueue(ground: Ground, task: Any, how: str, value: Any) -> Any:
    match how:
        case "position":
            return task.enqueue(value)
        case "keyword":
            return task.enqueue(value=value)
        case "waiting":
            return ground.loop.run_until_complete(task.aenqueue(value))
        case "by name":
            return ground.app.enqueue(task.name, {"value": value})
        case "many":
            return ground.app.enqueue_many([task.job(value), task.job(value=value)])[1]
    return task.using(unique_key="u", tenant=how).enqueue(value)


WAYS = st.sampled_from(("position", "keyword", "waiting", "by name", "many"))

SUBJECTS: dict[str, Subject] = {
    f"arguments: {name}": Subject(
        st.tuples(WAYS, values | values | values | anything | hostile), _typed(name), 100
    )
    for name, (_, values) in ANNOTATIONS.items()
}


def _elsewhere(ground: Ground, arguments: Any) -> None:
    """Only values that JSON represents exactly: the signature is not known here."""
    answer = ground.ask(lambda: ground.app.enqueue("elsewhere", arguments))
    if not isinstance(answer, Exception):
        payload = msgspec.json.decode(answer.refresh().row.payload)
        assert alike(dict(arguments or {}), payload)


SUBJECTS["arguments by name"] = Subject(
    st.none() | st.dictionaries(parameters, plain | anything | hostile, max_size=3) | anything,
    _elsewhere,
    400,
)
