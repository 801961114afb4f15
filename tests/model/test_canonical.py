"""The canonical request: its format, which must not change by accident, and what counts as the same."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InternalError
from perdure.model.canonical import Request, canonical, canonical_replay, difference
from perdure.model.codec import ArgumentCodec, encode_plain
from perdure.model.job import Options
from perdure.model.signature import Signature

SECRET = "hunter2-s3cr3t"


def request(arguments: str = "{}", *, expires: int | None = None, tags: Any = None, **asked: Any) -> Request:
    """Some fields by their names in the text, and tags as a list."""
    listed = None if tags is None else msgspec.json.encode(tags).decode()
    return Request(arguments, Options(expires_in=expires, tags=listed, **asked))


# These texts are in databases. A failure here says that the format changed: give it a new version, and
# keep reading this one.
GOLDEN = [
    (request(arguments="{}"), '{"v":1,"arguments":{}}'),
    (
        request(arguments='{"to":"a@b.c","subject":"hi"}'),
        '{"v":1,"arguments":{"to":"a@b.c","subject":"hi"}}',
    ),
    (
        request(arguments='{"n":1e16}', queue="mail", priority=0),
        '{"v":1,"arguments":{"n":1e16},"queue":"mail","priority":0}',
    ),
    (
        request(arguments="{}", timeout=30_000_000, delay=0, max_attempts=8),
        '{"v":1,"arguments":{},"max_attempts":8,"timeout":30000000,"delay":0}',
    ),
    (
        request(arguments="{}", run_at=1_767_225_600_000_000, tags=("b", "a")),
        '{"v":1,"arguments":{},"run_at":"2026-01-01T00:00:00.000000Z","tags":["b","a"]}',
    ),
    (
        request(
            arguments='{"x":[null,"\\u0000"]}',
            queue="é",
            priority=-5,
            max_attempts=1,
            timeout=1,
            run_at=-1,
            expires=3_600_000_000,
            tags=[],
            unique_key="",
        ),
        '{"v":1,"arguments":{"x":[null,"\\u0000"]},"queue":"é","priority":-5,"max_attempts":1,"timeout":1,'
        '"run_at":"1969-12-31T23:59:59.999999Z","expires":3600000000,"tags":[],"unique_key":""}',
    ),
]

ASKED: dict[str, Any] = {
    "queue": "mail",
    "priority": 0,
    "max_attempts": 8,
    "timeout": 1,
    "delay": 1,
    "run_at": 1,
    "expires": 1,
    "tags": ["a"],
    "unique_key": "k",
    "concurrency_key": "k",
}


def snapshot(arguments: str = "{}", **asked: Any) -> str:
    return canonical(request(arguments=arguments, **asked))


@pytest.mark.parametrize(("request_", "text"), GOLDEN, ids=[str(n) for n in range(len(GOLDEN))])
def test_golden(request_, text):
    assert canonical(request_) == text
    assert difference(text, text) is None


def test_a_typed_request_is_golden_too():
    def task(ids: set[int], price: float = 1.0): ...

    codec = ArgumentCodec(Signature.of(task, object()))
    asked = request(arguments=codec.encode_canonical({"price": 2, "ids": {9, 10}}))
    assert canonical(asked) == '{"v":1,"arguments":{"price":2,"ids":[10,9]}}'


class TestTheSame:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ('{"a":1,"b":2}', '{"b":2,"a":1}'),
            ('{"a":{"b":1,"c":2}}', '{"a":{"c":2,"b":1}}'),
            ('{"a":1}', '{"a":1.0}'),
            ('{"a":1.0}', '{"a":1.00}'),
            ('{"a":1e2}', '{"a":100}'),
            ('{"a":-0.0}', '{"a":0}'),
            ('{"a":10000000000000000000000}', '{"a":1e22}'),
            ('{"a":0.1}', '{"a":1e-1}'),
            ('{"a":"\\u0041"}', '{"a":"A"}'),
            ('{"a": [1, 2]}', '{"a":[1,2]}'),
        ],
    )
    def test_in_another_spelling(self, one, other):
        assert difference(snapshot(one), snapshot(other)) is None

    def test_an_older_snapshot_knows_fewer_fields(self):
        assert difference('{"v":1,"arguments":{}}', snapshot()) is None
        assert difference('{"arguments":{},"queue":null,"v":1}', snapshot()) is None


class TestDifferent:
    @pytest.mark.parametrize(
        ("one", "other", "field"),
        [
            ('{"a":1}', '{"a":2}', "arguments.a"),
            ('{"a":1}', '{"a":true}', "arguments.a"),
            ('{"a":0}', '{"a":false}', "arguments.a"),
            ('{"a":1}', '{"a":"1"}', "arguments.a"),
            ('{"a":null}', "{}", "arguments.a"),
            ('{"a":null}', '{"a":false}', "arguments.a"),
            ('{"a":{"b":null}}', '{"a":{}}', "arguments.a"),
            ('{"a":[1,2]}', '{"a":[2,1]}', "arguments.a"),
            ('{"a":[1]}', '{"a":[1,1]}', "arguments.a"),
            ('{"a":[]}', '{"a":{}}', "arguments.a"),
            ('{"a":[[true]]}', '{"a":[[1]]}', "arguments.a"),
            ('{"a":10000000000000000000000}', '{"a":10000000000000000000001}', "arguments.a"),
            ('{"a":9007199254740993}', '{"a":9007199254740992.0}', "arguments.a"),
            ('{"a":0.1}', '{"a":0.1000000000000000055511151231257827}', "arguments.a"),
            ('{"a":1,"b":2}', '{"b":3,"a":1}', "arguments.b"),
            ('{"a":1}', '{"b":1}', "arguments.b"),
            ('{"not a name":1}', "{}", "arguments[...]"),
        ],
    )
    def test_arguments(self, one, other, field):
        assert difference(snapshot(one), snapshot(other)) == field
        assert difference(snapshot(other), snapshot(one)) is not None

    @pytest.mark.parametrize("name", ASKED)
    def test_each_option_is_compared_and_asking_differs_from_not_asking(self, name):
        asked = snapshot(**{name: ASKED[name]})
        assert difference(snapshot(), asked) == name
        assert difference(asked, snapshot()) == name
        other: Any = "z" if isinstance(ASKED[name], str) else ["z"] if name == "tags" else 99
        assert difference(asked, snapshot(**{name: other})) == name

    def test_every_field_is_tried_above(self):
        # expires_in and expires_at are both spelled "expires". What a key belongs to, and meta, are not compared.
        spelled = {name: "expires" for name in ("expires_in", "expires_at")}
        known = {spelled.get(name, name) for name in Options.__struct_fields__}
        assert known == {"tenant", "idempotency_key", "meta", *ASKED}
        assert difference(snapshot(), snapshot(expires_at=1)) == "expires"
        for name in ("tenant", "idempotency_key", "meta"):
            assert difference(snapshot(), snapshot(**{name: "{}"})) is None

    def test_tags_are_in_order(self):
        assert difference(snapshot(tags=["a", "b"]), snapshot(tags=["b", "a"])) == "tags"

    def test_the_first_field_is_named(self):
        one = request(arguments='{"to":1}', queue="a", priority=1)
        other = request(arguments='{"to":2}', queue="b", priority=2)
        assert difference(canonical(one), canonical(other)) == "arguments.to"
        assert difference(canonical(one), canonical(other._replace(arguments='{"to":1}'))) == "queue"

    def test_a_field_of_later_code_counts(self):
        assert difference('{"v":1,"arguments":{},"budget":"x"}', snapshot()) == "budget"


class TestDamaged:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "nonsense",
            "[]",
            "null",
            "{}",
            '{"arguments":{}}',
            '{"v":2,"arguments":{}}',
            '{"v":0,"arguments":{}}',
            '{"v":true,"arguments":{}}',
            '{"v":"1","arguments":{}}',
            '{"v":1}',
            '{"v":1,"arguments":[]}',
            '{"v":1,"arguments":{"a":1e99999999999999999999}}',
            '{"v":1,"arguments":{"a":"\\ud800"}}',
            '{"v":1,"arguments":{"a":' + "[" * 100_000,
            '{"v":1,"arguments":{"a":"' + SECRET,
        ],
        ids=lambda text: text[:40],
    )
    def test_it_is_an_internal_error(self, text):
        with pytest.raises(InternalError) as caught:
            difference(text, snapshot())
        assert caught.value.code == "job.bad_snapshot"
        assert SECRET not in str(caught.value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b"]), JSON).map(encode_plain)
REQUESTS = st.builds(
    request,
    arguments=ARGUMENTS,
    queue=st.none() | st.sampled_from(["x", "y"]),
    priority=st.none() | st.integers(0, 1),
    run_at=st.none() | st.integers(0, 2**40),
    tags=st.none() | st.lists(st.sampled_from("ab")),
)


def shuffled(value: Any) -> Any:
    """The same JSON with keys in another order and integers spelled another way."""
    match value:
        case dict():
            return {key: shuffled(part) for key, part in reversed(value.items())}
        case list():
            return [shuffled(part) for part in value]
        case bool():
            return value
        case int():
            return msgspec.Raw(f"{value}.000".encode())
    return value


class TestAlways:
    @given(REQUESTS)
    def test_a_request_is_the_same_as_itself(self, request):
        text = canonical(request)
        assert difference(text, text) is None

    @given(ARGUMENTS)
    def test_a_request_is_the_same_in_another_spelling(self, arguments):
        other = msgspec.json.encode(shuffled(msgspec.json.decode(arguments))).decode()
        assert difference(snapshot(arguments), snapshot(other)) is None

    @given(REQUESTS, REQUESTS)
    def test_sameness_has_no_direction(self, one, other):
        there, back = (
            difference(canonical(one), canonical(other)),
            difference(canonical(other), canonical(one)),
        )
        assert (there is None) == (back is None)

    @given(REQUESTS, REQUESTS)
    def test_different_requests_differ(self, one, other):
        same = difference(canonical(one), canonical(other)) is None
        assert same == (exact(canonical(one)) == exact(canonical(other)))

    @given(JSON, st.sampled_from(["arguments", "queue", "unique_key", "tags"]))
    def test_no_value_is_named(self, value, name):
        hidden = encode_plain({"a": SECRET, "b": [SECRET, value], SECRET: 1})
        changed: dict[str, Any] = {"arguments": hidden} if name == "arguments" else {name: [SECRET]}
        text = snapshot(**changed)
        for answer in (difference(snapshot(), text), difference(text, snapshot())):
            assert answer is not None
            assert SECRET not in answer


def exact(text: str) -> object:
    """A text as something that == compares as the rule says: the test's own words for it."""

    def tagged(value: Any) -> Any:
        match value:
            case bool():
                return ("bool", value)
            case int() | Decimal():
                return ("number", Decimal(value))
            case list():
                return [tagged(part) for part in value]
            case dict():
                return {key: tagged(part) for key, part in value.items()}
        return value

    return tagged(msgspec.json.Decoder(float_hook=Decimal).decode(text))


def test_an_expiry_at_a_time_is_rendered_as_that_time() -> None:
    asked = canonical(request(arguments="{}", expires_at=1_794_776_096_000_001))
    assert asked == '{"v":1,"arguments":{},"expires":"2026-11-15T20:54:56.000001Z"}'
    assert difference(asked, canonical(request(arguments="{}", expires=1_794_776_096_000_001))) == "expires"


def test_a_replay_is_known_by_the_job_that_it_repeats() -> None:
    stored = canonical_replay("0198a1b2-0000-7000-8000-000000000000")
    assert stored == '{"v":1,"arguments":{},"replay_of":"0198a1b2-0000-7000-8000-000000000000"}'
    assert difference(stored, stored) is None
    assert difference(stored, canonical_replay("another")) == "replay_of"
    assert difference(canonical(request(arguments="{}")), stored) == "replay_of"
