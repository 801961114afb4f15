"""Texts and results of handlers are made storable, and never block the outcome."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.codec import MAX_PAYLOAD, ResultCodec, storable_text

PLAIN = ResultCodec()


@dataclass
class Report:
    name: str
    at: dt.datetime | None = None


class Summary(TypedDict):
    total: float


class Model(pydantic.BaseModel):
    id: int
    score: float = 0.0


class Loud(pydantic.BaseModel):
    @pydantic.model_serializer
    def dump(self) -> dict[str, int]:
        raise RuntimeError


class Text(str):
    def __str__(self) -> str:
        return "another"


class Ratio(float):
    pass


class Counted:
    """As numpy's integers are."""

    def __index__(self) -> int:
        return 7


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def cycle() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


class TestEncoding:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, "null"),
            ({"a": [1, 1.5, True, "x"]}, '{"a":[1,1.5,true,"x"]}'),
            ("a\0b", r'"a\u0000b"'),
            (math.nan, "null"),
            ({"a": [math.inf, -math.inf]}, '{"a":[null,null]}'),
            (2**80, str(2**80)),
            ((1, {2}), "[1,[2]]"),
            ({1: "a"}, '{"1":"a"}'),
            (dt.datetime(2026, 1, 1), '"2026-01-01T00:00:00"'),
            (Report("a"), '{"name":"a","at":null}'),
            (Model(id=1, score=math.nan), '{"id":1,"score":null}'),
            (Text("a"), '"a"'),
            (Ratio(1.5), "1.5"),
            ([Counted()], "[7]"),
            (msgspec.Raw(b'{"a":1}'), '{"a":1}'),
        ],
    )
    def test_it_becomes_json(self, value, text):
        assert PLAIN.encode(value) == (text, None)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("a\ud800b", '"a\ufffdb"'),
            (["\udfff", {"\ud800": {"k": "\ud800\0"}}], '["\ufffd",{"\ufffd":{"k":"\ufffd\\u0000"}}]'),
            (Report("\ud800"), '{"name":"\ufffd","at":null}'),
            ({1: Text("\ud800"), 2: math.nan, 3: {b"a"}}, '{"1":"\ufffd","2":null,"3":["YQ=="]}'),
        ],
    )
    def test_half_pairs_are_replaced(self, value, text):
        assert PLAIN.encode(value) == (text, None)

    @pytest.mark.parametrize(
        "value",
        [
            (n for n in [1]),
            object(),
            print,
            sys.stdout,
            {None: 1},
            {(1, 2): 3},
            cycle(),
            nested(100_000),
            Loud(),
            msgspec.Raw(b"not json"),
            {"a": msgspec.Raw(b'"\xff"')},
            msgspec.UNSET,
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_has_no_json_is_dropped(self, value):
        assert PLAIN.encode(value) == (None, "result.unencodable")

    def test_what_is_too_large_is_dropped(self):
        room = MAX_PAYLOAD - 2
        assert PLAIN.encode("a" * room) == (f'"{"a" * room}"', None)
        for value in ("a" * (room + 1), "é" * (room // 2 + 1), [0] * MAX_PAYLOAD, "\ud800" * MAX_PAYLOAD):
            assert PLAIN.encode(value) == (None, "result.too_large")


class TestDecoding:
    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (Report, Report("a", dt.datetime(2026, 1, 1, tzinfo=dt.UTC))),
            (list[Report] | None, [Report("a")]),
            (tuple[int, str], (1, "a")),
            (Model, Model(id=1)),
            (float, 3),
            (Summary, {"total": 1.5}),
            (set[bytes], {b"a"}),
        ],
    )
    def test_the_annotation_gives_the_type(self, annotation, value):
        codec = ResultCodec(annotation)
        text, _ = codec.encode(value)
        assert text is not None
        arrived = codec.decode(text)
        assert arrived == value
        assert type(arrived) is type(value)

    @pytest.mark.parametrize(
        "annotation",
        [None, Any, Report, Model, int, str | bytes, Iterator[int], "unresolved", complex, object()],
    )
    def test_what_does_not_fit_is_plain_json(self, annotation):
        assert ResultCodec(annotation).decode('{"other":[1,null]}') == {"other": [1, None]}

    def test_bytes_will_do(self):
        assert PLAIN.decode(b"[1]") == [1]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.text(st.characters(categories=["Cs"]))
    | st.binary()
    | st.datetimes()
    | st.builds(object)
    | st.builds(msgspec.Raw, st.binary()),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.dictionaries(
            st.text(st.characters(categories=["Cs", "L"])) | st.integers() | st.none() | st.floats(), inner
        )
    ),
    max_leaves=8,
)


@given(ANYTHING)
def test_a_result_never_raises_and_is_always_readable(value):
    text, reason = PLAIN.encode(value)
    if text is None:
        assert reason == "result.unencodable"
    else:
        assert reason is None
        text.encode()
        json.loads(text)
        PLAIN.decode(text)


class TestStorableText:
    def test_ordinary_text_stays(self):
        assert storable_text("héllo\n\t\N{PILE OF POO}", 100) == "héllo\n\t\N{PILE OF POO}"

    def test_nul_and_half_pairs_are_replaced(self):
        assert storable_text("a\0b\ud800c\udfff", 100) == "a\ufffdb\ufffdc\ufffd"

    def test_head_and_tail_of_a_long_text_stay(self):
        cut = storable_text("Traceback" + "x" * 10_000 + "ValueError", 200)
        assert len(cut) == 200
        assert cut.startswith("Traceback")
        assert cut.endswith("ValueError")
        assert "10019 characters" in cut

    @given(st.text(st.characters(categories=["Cs", "Cc", "L", "So"])), st.integers(0, 150))
    def test_it_is_short_and_storable(self, text, limit):
        cut = storable_text(text * 9, limit)
        assert len(cut) <= limit
        assert "\0" not in cut
        cut.encode()

    def test_of_fifty_megabytes_only_what_stays_is_looked_at(self):
        text = "\0" * 50_000_000
        tracemalloc.start()
        try:
            storable_text(text, 16_000)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1_000_000
