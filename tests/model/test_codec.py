"""Arguments arrive as they were sent, also in type, or are refused with their path."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import math
import sys
import traceback
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BadArguments, InvalidTask, PayloadTooLarge
from perdure.model.codec import MAX_DEPTH, MAX_PAYLOAD, ArgumentCodec, encode_plain
from perdure.model.signature import Signature

BERLIN = ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
NAIVE = dt.datetime(2026, 5, 1, 12)
SECRET = "hunter2-s3cr3t"


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.StrEnum):
    FAST = "fast"


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclass
class Item:
    name: str
    price: float = 0.0
    when: dt.datetime | None = None
    tags: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int


@dataclass
class Special(Item):
    pass


class Circle(msgspec.Struct, tag=True, frozen=True):
    radius: int
    marks: frozenset[Color] = frozenset()


class Square(msgspec.Struct, tag=True):
    side: int
    note: str | msgspec.UnsetType = msgspec.UNSET


class Row(NamedTuple):
    id: int
    when: dt.datetime | None = None


class Order(TypedDict):
    id: int
    note: NotRequired[str]


class Model(pydantic.BaseModel):
    id: int
    when: dt.datetime | None = None
    price: decimal.Decimal = decimal.Decimal("1.10")
    tags: set[str] = set()
    inner: Model | None = None


class Aliased(pydantic.BaseModel):
    user_id: int = pydantic.Field(alias="userId")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, frozen=True)
    day: dt.date
    key: uuid.UUID


class Private(pydantic.BaseModel):
    id: int
    _note: str = pydantic.PrivateAttr(default="")


class Text(str):
    pass


class Number(int):
    pass


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    content: T


UserId = NewType("UserId", int)


def codec_for(annotation: Any) -> ArgumentCodec:
    def task(x): ...

    task.__annotations__ = {"x": annotation}
    return ArgumentCodec(Signature.of(task, object()))


def task(to: str, copies: int = 1, *, price: float = 0.5, urgent: bool | None = None): ...


def oddly_named(__x: int, type: str, π: int): ...


TASK = ArgumentCodec(Signature.of(task, object()))


def identical(one: Any, other: Any) -> bool:
    """The test's own definition of equality, independent of the codec's."""
    if type(one) is not type(other):
        return False
    match one:
        case dict():
            return list(map(repr, one)) == list(map(repr, other)) and all(
                identical(value, other[key]) for key, value in one.items()
            )
        case list() | tuple():
            return len(one) == len(other) and all(map(identical, one, other))
        case set() | frozenset():
            return sorted(map(repr, one)) == sorted(map(repr, other))
        case Item() | Model():
            return identical(vars(one), vars(other))
        case dt.time() | dt.datetime():
            return (
                one.replace(tzinfo=None) == other.replace(tzinfo=None)
                and one.utcoffset() == other.utcoffset()
            )
    return repr(one) == repr(other) and one == other


def arrives(annotation: Any, value: Any) -> bool:
    codec = codec_for(annotation)
    return identical(codec.decode(codec.encode({"x": value})), {"x": value})


def refusal(annotation: Any, value: Any) -> BadArguments:
    with pytest.raises(BadArguments) as caught:
        codec_for(annotation).encode({"x": value})
    assert str(caught.value).startswith(caught.value.path)
    return caught.value


FAITHFUL: list[tuple[Any, Any]] = [
    (str, "héllo \N{PILE OF POO}"),
    (str, "a\0b"),
    (str | None, None),
    (int, 0),
    (int, -(2**63)),
    (int, 2**63),
    (int, 2**64 - 1),
    (bool, True),
    (int | bool, True),
    (int | bool, 1),
    (float, 1.5),
    (float, 3),
    (float, -0.0),
    (float, 1e16),
    (float, 1e22),
    (float, 5e-324),
    (float, sys.float_info.max),
    (float | None, 2),
    (list[float], [1, 2.0, 3]),
    (dict[str, float], {"a": 1, "b": 1.0}),
    (dict[float, str], {1: "a", 2.0: "b"}),
    (tuple[float, ...], (1, 2.5)),
    (Annotated[float, msgspec.Meta(ge=0)], 3),
    (Sequence[float], [1, 1.5]),
    (Mapping[str, float], {"a": 1}),
    (Iterable[int], [1, 2]),
    (UserId, 7),
    (Any, {"a": [1, 1.0, None, True, "x", {"b": {}}]}),
    (object, [1e16]),
    (bytes, b"\x00\xff"),
    (bytearray, bytearray(b"ab")),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], ()),
    (list[tuple[int, int]], [(1, 2)]),
    (set[int], {3, 1, 2}),
    (set[float], {1, 2.5}),
    (frozenset[str], frozenset({"a", "b"})),
    (set[tuple[int, str]], {(1, "a"), (2, "b")}),
    (set[Color], {Color.RED, Color.BLUE}),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[uuid.UUID, int], {uuid.UUID(int=7): 1}),
    (dict[Mode, int], {Mode.FAST: 1}),
    (dict[dt.date, int], {dt.date(2026, 1, 1): 1}),
    (uuid.UUID, uuid.UUID(int=5)),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (decimal.Decimal, decimal.Decimal("1E+2")),
    (decimal.Decimal, decimal.Decimal("-0.00")),
    (float | decimal.Decimal, decimal.Decimal("2")),
    (Color, Color.RED),
    (Level, Level.HIGH),
    (Mode, Mode.FAST),
    (Access, Access.READ | Access.WRITE),
    (Color | None, None),
    (Literal["a", "b"], "a"),
    (Literal[1, None], 1),
    (dt.timedelta, dt.timedelta(microseconds=-1)),
    (dt.timedelta, dt.timedelta(days=400, microseconds=7)),
    (dt.timedelta, dt.timedelta.max),
    (dt.timedelta, dt.timedelta.min),
    (dt.date, dt.date(1, 1, 1)),
    (dt.time, dt.time(23, 59, 59, 999999)),
    (dt.time, dt.time(1, tzinfo=dt.UTC)),
    (dt.datetime, NOON),
    (dt.datetime, dt.datetime.max.replace(tzinfo=dt.UTC)),
    (list[dt.datetime], [NOON.replace(microsecond=1)]),
    (Item, Item("a", 1.5, NOON, {"x"})),
    (list[Item], [Item("a")]),
    (Point, Point(1, 2)),
    (Circle | Square, Circle(3, frozenset({Color.RED}))),
    (Circle | Square, Square(3)),
    (Row, Row(1, NOON)),
    (Order, {"id": 1}),
    (Order, {"id": 1, "note": "x"}),
    (Box[Point], Box(Point(1, 2))),
    (Model, Model(id=1, when=NOON, tags={"a", "b"}, inner=Model(id=2))),
    (list[Model] | None, [Model(id=1)]),
    (Aliased, Aliased(userId=3)),
    (Strict, Strict(day=dt.date(2026, 1, 1), key=uuid.UUID(int=1))),
]


class TestWhatArrives:
    @pytest.mark.parametrize(("annotation", "value"), FAITHFUL)
    def test_it_is_what_was_sent(self, annotation, value):
        assert arrives(annotation, value)

    def test_text_with_nul_is_an_escape(self):
        assert codec_for(str).encode({"x": "a\0b"}) == r'{"x":"a\u0000b"}'

    def test_the_order_is_kept(self):
        assert TASK.encode({"copies": 2, "to": "a"}) == '{"copies":2,"to":"a"}'

    @pytest.mark.parametrize("fold", [0, 1])
    def test_a_named_zone_arrives_as_its_offset(self, fold):
        # 02:30 happens twice on this day, where == between two time zones is always false.
        sent = dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold)
        arrived = codec_for(dt.datetime).decode(codec_for(dt.datetime).encode({"x": sent}))["x"]
        assert isinstance(arrived, dt.datetime)
        assert arrived.astimezone(dt.UTC) == sent.astimezone(dt.UTC)
        assert arrived.utcoffset() == sent.utcoffset() == dt.timedelta(hours=2 - fold)

    def test_names_that_msgspec_would_mangle(self):
        codec = ArgumentCodec(Signature.of(oddly_named, object()))
        values: dict[str, object] = {"__x": 1, "type": "a", "π": 2}
        assert codec.decode(codec.encode(values)) == values

    def test_rest_and_extra(self):
        def task(*rest: int, **extra: float): ...

        signature = Signature.of(task, object())
        codec = ArgumentCodec(signature)
        values = signature.bind((1, 2), {"a": 1, "b": 2.5})
        assert identical(codec.decode(codec.encode(values)), values)
        assert codec.decode("{}") == {}


UNFAITHFUL = [
    (float, math.nan, "$.x", "finite"),
    (float, math.inf, "$.x", "finite"),
    (float, float("1e400"), "$.x", "finite"),
    (float | None, -math.inf, "$.x", "finite"),
    (Any, [1, {"a": math.nan}], "$.x[1][...]", "finite"),
    (list[float], [0.0, math.nan], "$.x[1]", "finite"),
    (set[float], {math.nan}, "$.x[...]", "finite"),
    (Item, Item("a", math.nan), "$.x.price", "finite"),
    (decimal.Decimal, decimal.Decimal("NaN"), "$.x", "finite"),
    (decimal.Decimal, decimal.Decimal("sNaN"), "$.x", "finite"),
    (decimal.Decimal, decimal.Decimal("-Infinity"), "$.x", "finite"),
    (int, 2**80, "$.x", "64 bits"),
    (int, 2**64, "$.x", "64 bits"),
    (int, -(2**63) - 1, "$.x", "64 bits"),
    (Any, [2**80], "$.x[0]", "64 bits"),
    (str, "a\ud800", "$.x", "surrogate"),
    (dict[str, list[str]], {"k": ["ok", "\udfff"]}, "$.x[...][1]", "surrogate"),
    (dict[str, int], {"\ud800": 1}, "$.x[...]", "surrogate"),
    (Item, Item("\ud800"), "$.x.name", "surrogate"),
    (dt.datetime, NAIVE, "$.x", "time zone"),
    (Any, NAIVE, "$.x", "time zone"),
    (list[dt.datetime], [NOON, NAIVE], "$.x[1]", "time zone"),
    (dict[dt.datetime, int], {NAIVE: 1}, "$.x[...]", "time zone"),
    (list[Item], [Item("a"), Item("b", when=NAIVE)], "$.x[1].when", "time zone"),
    (Row, Row(1, NAIVE), "$.x.when", "time zone"),
    (Model, Model(id=1, when=NAIVE), "$.x.when", "time zone"),
    (dt.datetime, dt.datetime(1880, 1, 1, tzinfo=BERLIN), "$.x", "changed"),
    (dt.time, dt.time(1, tzinfo=BERLIN), "$.x", "changed"),
    (Any, NOON, "$.x", "`datetime` would arrive as `str`"),
    (Any, [NOON], "$.x[0]", "`datetime` would arrive as `str`"),
    (Any, {1: "a"}, "$.x[...]", "`int` would arrive as `str`"),
    (dict[int | str, str], {1: "a"}, "$.x[...]", "`int` would arrive as `str`"),
    (Any, {1: "a", "1": "b"}, "$.x", "changed"),
    (Any, (1, 2), "$.x", "`tuple` would arrive as `list`"),
    (Sequence[int], (1, 2), "$.x", "`tuple` would arrive as `list`"),
    (Any, {1}, "$.x", "`set` would arrive as `list`"),
    (Any, b"a", "$.x", "`bytes` would arrive as `str`"),
    (Any, uuid.UUID(int=1), "$.x", "`UUID` would arrive as `str`"),
    (Any, decimal.Decimal(1), "$.x", "`Decimal` would arrive as `str`"),
    (Any, dt.timedelta(1), "$.x", "`timedelta` would arrive as `str`"),
    (Any, Color.RED, "$.x", "`Color` would arrive as `str`"),
    (Any, Item("a"), "$.x", "`Item` would arrive as `dict`"),
    (Any, Model(id=1), "$.x", "`Model` would arrive as `dict`"),
    (int, Level.LOW, "$.x", "`Level` would arrive as `int`"),
    (str, Mode.FAST, "$.x", "`Mode` would arrive as `str`"),
    (int, True, "$.x", "expected `int`, got `bool`"),
    (float, False, "$.x", "expected `int | float`, got `bool`"),
    (bool, 1, "$.x", "expected `bool`, got `int`"),
    (list[int], [1, True], "$.x[1]", "expected `int`, got `bool`"),
    (str, Text("a"), "$.x", "`Text`"),
    (int, Number(1), "$.x", "`Number`"),
    (dict[str, int], {Text("a"): 1}, "$.x[...]", "`Text` would arrive as `str`"),
    (dict[str, int], collections.OrderedDict(a=1), "$.x", "`OrderedDict` would arrive as `dict`"),
    (str, 1, "$.x", "expected `str`, got `int`"),
    (int, NOON, "$.x", "expected `int`, got `datetime`"),
    (dt.date, NOON, "$.x", "RFC3339"),
    (Color, "green", "$.x", "does not fit"),
    (Literal["a"], "b", "$.x", "does not fit"),
    (Literal[1], True, "$.x", "got `bool`"),
    (Annotated[int, msgspec.Meta(ge=0)], -1, "$.x", "Expected `int` >= 0"),
    (Annotated[float, msgspec.Meta(ge=0)], -1, "$.x", ">= 0"),
    (Annotated[str, msgspec.Meta(max_length=1)], "ab", "$.x", "of length <= 1"),
    (tuple[int, str], (1,), "$.x", "of length 2"),
    (Item, Item("a", 1), "$.x.price", "`int` would arrive as `float`"),
    (Item, Special("a"), "$.x", "expected `Item`, got `Special`"),
    (Item, {"name": "a"}, "$.x", "expected `Item`, got `dict`"),
    (Order, {"id": 1, "other": 2}, "$.x", "changed"),
    (Order, {}, "$.x.id", "missing"),
    (Model, Private(id=1), "$.x", "expected `Model`, got `Private`"),
    (Any, (n for n in [1]), "$.x", "`generator`"),
    (Iterable[int], (n for n in [1]), "$.x", "`generator`"),
    (Any, [print], "$.x[0]", "`builtin_function_or_method`"),
    (Any, lambda: 1, "$.x", "`function`"),
    (Any, sys.stdout, "$.x", "cannot be stored"),
    (Any, object(), "$.x", "`object`"),
    (Any, {None: 1}, "$.x", "cannot be stored"),
    (Any, {(1, 2): 1}, "$.x", "cannot be stored"),
    (Any, msgspec.UNSET, "$.x", "cannot be stored"),
    (Any, msgspec.Raw(b"1"), "$.x", "`Raw` would arrive as `int`"),
    (complex, 1j, "$.x", "`complex`"),
    (complex, "1j", "$.x", "expected `complex`, got `str`"),
    (Iterable[int], "ab", "$.x", "expected `array`, got `str`"),
]


class TestWhatIsRefused:
    @pytest.mark.parametrize(("annotation", "value", "path", "why"), UNFAITHFUL)
    def test_it_is_named(self, annotation, value, path, why):
        error = refusal(annotation, value)
        assert error.path == path
        assert why in str(error)

    def test_private_state_of_a_model(self):
        model = Private(id=1)
        assert arrives(Private, model)
        model._note = "kept nowhere"
        assert refusal(Private, model).path == "$.x"

    def test_a_model_that_does_not_read_what_it_writes(self):
        class OneWay(pydantic.BaseModel):
            id: int = pydantic.Field(validation_alias="in", serialization_alias="out")

        assert refusal(OneWay, OneWay.model_validate({"in": 1})).path == "$.x"

    @pytest.mark.parametrize(("sent", "arriving"), [("1.10", "1.1"), ("-0.0", "0.0")])
    def test_equal_numbers_that_are_not_the_same(self, sent, arriving):
        @dataclass
        class Money:
            amount: decimal.Decimal
            rate: float = 0.0

            def __post_init__(self) -> None:
                self.amount, self.rate = decimal.Decimal(arriving), 0.0

        money = Money(decimal.Decimal())
        assert arrives(Money, money)
        money.amount = decimal.Decimal(sent)
        assert refusal(Money, money).path == "$.x.amount"
        money = Money(decimal.Decimal(), rate=0.0)
        money.rate = -0.0
        assert refusal(Money, money).path == "$.x.rate"

    def test_cycles(self):
        loop: list[Any] = []
        loop.append(loop)
        assert "nested too deeply" in str(refusal(Any, loop))
        ring: dict[str, Any] = {}
        ring["a"] = {"b": ring}
        assert refusal(Any, ring).path == "$.x"
        model = Model(id=1)
        model.inner = model
        assert refusal(Model, model).path == "$.x"
        model.inner = None
        assert refusal(list[Model], [model, Model.model_construct(id=1, inner=print)]).path == "$.x[1].inner"

    @pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 2_000, 100_000])
    def test_absurd_depth(self, depth):
        value: Any = []
        for _ in range(depth - 1):
            value = [value]
        error = refusal(Any, value)
        assert "nested too deeply" in str(error)
        assert error.path == "$.x"

    def test_the_deepest_that_is_taken(self):
        value: Any = []
        for _ in range(MAX_DEPTH - 1):
            value = [value]
        codec = codec_for(Any)
        assert codec.decode(codec.encode({"x": value})) == {"x": value}

    def test_too_little_stack_is_no_crash(self):
        def sink(depth: int) -> str:
            return sink(depth - 1) if depth else codec.encode({"x": deep})

        deep: Any = NOON
        for _ in range(100):
            deep = [deep]
        codec = codec_for(Any)
        limit = sys.getrecursionlimit()
        used = len(traceback.extract_stack())
        for spare in range(10, 300, 7):
            with pytest.raises((BadArguments, RecursionError)):
                sink(limit - used - spare)

    def test_the_largest_payload(self):
        codec = codec_for(str)
        room = MAX_PAYLOAD - len('{"x":""}')
        assert len(codec.encode({"x": "a" * room})) == MAX_PAYLOAD
        for value in ("a" * (room + 1), "é" * (room // 2 + 1)):
            with pytest.raises(PayloadTooLarge) as caught:
                codec.encode({"x": value})
            assert caught.value.code == "job.payload_too_large"
        with pytest.raises(PayloadTooLarge):
            encode_plain({"x": ["a" * room]})

    @pytest.mark.parametrize(
        ("values", "path"),
        [({}, "$.to"), ({"copies": 1}, "$.to"), ({"to": "a", "more": 1}, "$.more"), ({"to": 1}, "$.to")],
    )
    def test_arguments_that_were_not_bound(self, values, path):
        with pytest.raises(BadArguments) as caught:
            TASK.encode(values)
        assert caught.value.path == path

    @pytest.mark.parametrize("annotation", [str | bytes, Model | int, list[int] | set[int], enum.Enum])
    def test_annotations_json_cannot_tell_apart_are_refused_at_registration(self, annotation):
        with pytest.raises(InvalidTask, match="`x`"):
            codec_for(annotation)

    def test_float_beside_another_int_keeps_the_rule_of_msgspec(self):
        assert arrives(float | Level, Level.LOW)
        assert arrives(float | Level, 1.5)


class TestDecoding:
    def test_defaults_may_be_missing(self):
        assert TASK.decode('{"to":"a"}') == {"to": "a"}
        assert TASK.decode(b'{"urgent":null,"to":"a"}') == {"to": "a", "urgent": None}

    @pytest.mark.parametrize(
        ("text", "path"),
        [
            ('{"to":1}', "$.to"),
            ('{"to":"a","copies":"1"}', "$.copies"),
            ("{}", "$.to"),
            ('{"to":"a","gone":1}', "$.gone"),
            ('{"to":"a","what is this":1}', "$[...]"),
            ("[]", "$"),
            ("null", "$"),
            ("", "$"),
            ("{", "$"),
            ("\0", "$"),
            (b"\xff", "$"),
            (b'{"to":"\xff"}', "$"),
            ('{"to":"a","price":1e400}', "$.price"),
            ('{"to":' + "[" * 100_000, "$.to"),
        ],
    )
    def test_what_no_longer_fits_is_refused(self, text, path):
        with pytest.raises(BadArguments) as caught:
            TASK.decode(text)
        assert caught.value.path == path

    def test_depth_is_no_crash(self):
        with pytest.raises(BadArguments):
            codec_for(Any).decode('{"x":' + "[" * 100_000 + "]" * 100_000 + "}")

    def test_places_inside(self):
        with pytest.raises(BadArguments, match="RFC3339") as caught:
            codec_for(list[Item]).decode('{"x":[{"name":"a"},{"name":"b","when":"yesterday"}]}')
        assert caught.value.path == "$.x[1].when"

    def test_any_error_of_a_model_has_its_place(self):
        class Picky(pydantic.BaseModel):
            a: int

            @pydantic.field_validator("a")
            @classmethod
            def check(cls, value: int) -> int:
                raise KeyError(SECRET)

        with pytest.raises(BadArguments) as caught:
            codec_for(list[Picky]).decode('{"x":[{"a":1}]}')
        assert caught.value.path == "$.x[0]"
        assert SECRET not in "".join(traceback.format_exception(caught.value))

    def test_any_error_of_a_type_is_bad_arguments(self):
        @dataclass
        class Picky:
            a: int

            def __post_init__(self) -> None:
                raise KeyError(SECRET)

        with pytest.raises(BadArguments) as caught:
            codec_for(Picky).decode('{"x":{"a":1}}')
        assert SECRET not in "".join(traceback.format_exception(caught.value))


class TestWithoutTheCode:
    def test_json_arrives(self):
        values = {"a": 1, "b": [1.0, "x", None, True], "c": {"d": {}}}
        assert identical(msgspec.json.decode(encode_plain(values)), values)

    def test_any_mapping_will_do(self):
        assert encode_plain(collections.ChainMap({"a": 1})) == '{"a":1}'
        assert encode_plain({}) == "{}"

    @pytest.mark.parametrize(
        ("values", "path"),
        [
            ({"when": NOON}, "$.when"),
            ({"items": [1, (2,)]}, "$.items[1]"),
            ({"a": math.nan}, "$.a"),
            ({"a": 2**80}, "$.a"),
            ({"a": {1: 2}}, "$.a[...]"),
            ({"a": "\ud800"}, "$.a"),
            ({1: "a"}, "$"),
            ({None: "a"}, "$"),
            ({"\ud800": 1}, "$"),
            ({Text("a"): 1}, "$"),
        ],
    )
    def test_the_rest_is_refused(self, values, path):
        with pytest.raises(BadArguments) as caught:
            encode_plain(values)
        assert caught.value.path == path


class TestCanonicalText:
    @pytest.mark.parametrize(
        ("annotation", "value", "text"),
        [
            (set[str], {"b", "a", "c"}, '["a","b","c"]'),
            (set[int], {10, 9, 1}, '["1","10","9"]'.replace('"', "")),
            (set[Color], {Color.RED, Color.BLUE}, '["blue","red"]'),
            (set[int | None], {None, 1}, "[1,null]"),
            (set[frozenset[int]], {frozenset({3, 1}), frozenset({2})}, "[[1,3],[2]]"),
            (set[Point], {Point(2, 1), Point(1, 2)}, '[{"x":1,"y":2},{"x":2,"y":1}]'),
            (dict[int, set[str]], {2: {"b", "a"}, 1: set()}, '{"2":["a","b"],"1":[]}'),
            (tuple[set[str], int], ({"b", "a"}, 1), '[["a","b"],1]'),
            (
                Item,
                Item("n", 1.0, tags={"z", "y"}),
                '{"name":"n","price":1.0,"when":null,"tags":["y","z"]}',
            ),
            (
                Circle | Square,
                Circle(1, frozenset({Color.RED, Color.BLUE})),
                '{"type":"Circle","radius":1,"marks":["blue","red"]}',
            ),
            (
                Model,
                Model(id=1, inner=Model(id=2, tags={"b", "a", "c"})),
                '{"id":1,"when":null,"price":"1.10","tags":[],"inner":'
                '{"id":2,"when":null,"price":"1.10","tags":["a","b","c"],"inner":null}}',
            ),
            (float, 1, "1"),
            (Level, Level.HIGH, "2"),
        ],
    )
    def test_sets_are_in_order(self, annotation, value, text):
        codec = codec_for(annotation)
        codec.encode({"x": value})
        before = repr(value)
        assert codec.encode_canonical({"x": value}) == f'{{"x":{text}}}'
        assert repr(value) == before


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)

TYPED = st.sampled_from(
    [
        (float | str | bool | None, st.none() | st.booleans() | st.floats() | st.integers() | st.text()),
        (list[float], st.lists(st.floats() | st.integers())),
        (dict[int, str], st.dictionaries(st.integers(), st.text())),
        (set[str], st.sets(st.text())),
        (tuple[bytes, ...], st.lists(st.binary()).map(tuple)),
        (decimal.Decimal, st.decimals()),
        (dt.timedelta, st.timedeltas()),
        (dt.datetime, st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=False)),
        (dt.time, st.times(timezones=st.none() | st.just(dt.UTC) | st.timezones())),
        (dt.date, st.dates()),
        (uuid.UUID, st.uuids()),
        (Item, st.builds(Item, st.text(), st.floats(), st.none(), st.sets(st.text()))),
        (Circle | Square, st.builds(Circle, st.integers()) | st.builds(Square, st.integers())),
        (Row, st.builds(Row, st.integers())),
        (Model, st.builds(Model, id=st.integers(), tags=st.sets(st.text()))),
        (Any, st.floats() | st.integers() | st.tuples(st.integers()) | st.binary() | st.datetimes()),
    ]
)  # fmt: skip


class TestAlways:
    @given(st.dictionaries(st.text(), JSON))
    def test_json_arrives_as_sent(self, values):
        assert identical(msgspec.json.decode(encode_plain(values)), values)
        codec = codec_for(Any)
        assert identical(codec.decode(codec.encode({"x": values})), {"x": values})

    @given(st.data())
    def test_what_is_accepted_arrives_as_sent(self, data):
        annotation, strategy = data.draw(TYPED)
        value = data.draw(strategy)
        codec = codec_for(annotation)
        try:
            text = codec.encode({"x": value})
        except BadArguments:
            return
        arrived = codec.decode(text)["x"]
        assert identical(arrived, value)
        assert not isinstance(arrived, dt.datetime) or arrived.tzinfo

    @given(st.data())
    def test_equal_values_have_one_canonical_text(self, data):
        annotation, strategy = data.draw(TYPED.filter(lambda each: each[0] in (set[str], Item, Model)))
        value = data.draw(strategy)
        codec = codec_for(annotation)
        try:
            text = codec.encode({"x": value})
        except BadArguments:
            return
        assert codec.encode_canonical({"x": value}) == codec.encode_canonical(codec.decode(text))

    @given(
        st.data(),
        st.sampled_from([f"{SECRET} - at `$.x`", f"`{SECRET}`", SECRET, f"Expected `int`, got `{SECRET}"]),
    )
    def test_no_message_shows_a_value(self, data, secret):
        """Any value for any annotation, and any stored text for it."""
        bad = data.draw(
            st.sampled_from(
                [
                    secret,
                    [secret],
                    {secret: secret},
                    {secret: {1: secret}},
                    {secret: NAIVE},
                    {1: secret},
                    (secret,),
                    {secret},
                    secret + "\ud800",
                    {secret + "\ud800": 1},
                    Text(secret),
                    secret.encode(),
                    [math.nan, secret],
                    {"type": secret},
                    {"type": "Circle", "radius": secret},
                    {"id": secret, secret: 1},
                    Item(secret, 1),
                    Model.model_construct(id=secret),
                    {secret: object()},
                    object(),
                ]
            )
        )  # fmt: skip
        annotation = data.draw(TYPED)[0] | data.draw(st.just(None))
        annotation = data.draw(
            st.sampled_from([annotation, Color, Mode, Literal["a"], Strict, dict[int, int], Order])
        )
        codec = codec_for(annotation)
        refusals: list[BadArguments] = []
        for act in (
            lambda: codec.encode({"x": bad}),
            lambda: codec.encode({"x": bad, secret: bad}),
            lambda: codec.decode(msgspec.json.encode({"x": secret})),
            lambda: codec.decode(msgspec.json.encode({"x": {secret: secret}, secret: secret})),
            lambda: codec.decode(secret),
            lambda: encode_plain({"x": bad}),
            lambda: encode_plain({secret: bad}),
        ):
            try:
                act()
            except BadArguments as error:
                refusals.append(error)
        for refused in refusals:
            assert SECRET not in "".join(traceback.format_exception(refused)) + refused.path
            assert refused.__context__ is None
