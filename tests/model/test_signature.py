"""Calls become values under parameter names, and calls again."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any, NewType, TypedDict, Unpack, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BadArguments, InvalidTask
from perdure.model.signature import Signature, path_of, plain_kinds, widened

if TYPE_CHECKING:

    class Context: ...

    class Missing: ...


CONTEXT: Any = object()
UserId = NewType("UserId", int)


class Options(TypedDict, total=False):
    retries: int


def read(function) -> Signature:
    return Signature.of(function, CONTEXT)


def send(to: str, subject: str = "hi", *, copies: int = 1, ctx: Context = CONTEXT) -> dict[str, str]:
    return {}


def everything(a, b=2, /, c=3, *rest: int, d, e=5, **extra: str):
    return a, b, c, rest, d, e, extra


def only_position(a=1, b=2, c=3, /):
    return a, b, c


def mixed(a, *, b=1, **extra):
    return a, b, extra


# Python 3.14 evaluates annotations when they are asked for: these name a class that comes later, and ones that only
# type checkers know.
LAZY = """
def send(to: str, sizes: list[Later], *, ctx: Context = CONTEXT) -> Missing: ...
def refused(first: int, second: Missing): ...
def also_refused(first: int, second: dict[str, Missing | None]): ...
class Later: ...
"""


class TestReading:
    def test_annotations_are_resolved_from_text(self):
        assert [(each.name, each.annotation) for each in read(send).parameters] == [
            ("to", str),
            ("subject", str),
            ("copies", int),
        ]

    def test_the_context_is_left_out_and_its_annotation_need_not_exist(self):
        assert read(send).context == "ctx"

    def test_a_parameter_named_or_annotated_like_the_context_is_an_ordinary_one(self):
        def task(ctx: str, other: int = 3): ...

        signature = read(task)
        assert signature.context is None
        assert [each.name for each in signature.parameters] == ["ctx", "other"]

    def test_what_is_not_annotated_is_any(self):
        assert read(everything).parameters[0].annotation is Any

    def test_rest_and_extra_are_annotated_as_they_are_stored(self):
        hints = {each.name: each.annotation for each in read(everything).parameters}
        assert hints["rest"] == list[int]
        assert hints["extra"] == dict[str, str]

    def test_unpacked_extra_is_its_typed_dict(self):
        def task(**options: Unpack[Options]): ...

        assert read(task).parameters[0].annotation is Options

    def test_an_annotation_that_cannot_be_resolved_is_refused_and_named(self):
        def task(first: int, second: Missing): ...

        with pytest.raises(InvalidTask, match=r"task.*`second`.*Missing"):
            read(task)

    def test_an_annotation_that_is_no_python_is_refused(self):
        def task(first): ...

        task.__annotations__ = {"first": "not python"}
        with pytest.raises(InvalidTask, match="first"):
            read(task)

    def test_a_function_without_a_readable_signature_is_refused(self):
        with pytest.raises(InvalidTask):
            read(type)

    @pytest.mark.parametrize("annotation", [None, "None", "Missing", inspect.Signature.empty])
    def test_no_usable_return_annotation_is_any(self, annotation):
        def task(): ...

        if annotation is not inspect.Signature.empty:
            task.__annotations__["return"] = annotation
        assert read(task).returns is Any

    def test_the_return_annotation_is_kept(self):
        assert read(send).returns == dict[str, str]

    def test_the_class_of_a_local_task_may_be_local_if_it_is_not_text(self):
        class Local: ...

        def task(x): ...

        task.__annotations__ = {"x": Local}
        assert read(task).parameters[0].annotation is Local

    @pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated with the function")
    def test_an_annotation_that_is_not_text_need_not_exist_either(self):
        scope = {"CONTEXT": CONTEXT}
        exec(compile(LAZY, "lazy.py", "exec", dont_inherit=True), scope)
        signature = read(scope["send"])
        to, sizes = (each.annotation for each in signature.parameters)
        assert (to, get_args(sizes)) == (str, (scope["Later"],))
        assert (signature.context, signature.returns) == ("ctx", Any)
        for name in ("refused", "also_refused"):
            with pytest.raises(InvalidTask, match=rf"{name}.*`second`.*Missing"):
                read(scope[name])

    def test_wrappers_partials_methods_and_callables_are_read_through(self):
        @functools.wraps(send)
        def wrapper(*args, **kwargs): ...

        class Sender:
            def method(self, to: str): ...

            def __call__(self, to: str): ...

        for function in (wrapper, functools.partial(send), Sender().method, Sender()):
            first = read(function).parameters[0]
            assert (first.name, first.annotation) == ("to", str)

    @pytest.mark.parametrize(
        "source",
        [
            "def task(ctx=CONTEXT, /): ...",
            "def task(ctx=CONTEXT, other=1): ...",
            "def task(ctx=CONTEXT, *rest): ...",
            "def task(*, ctx=CONTEXT, again=CONTEXT): ...",
        ],
    )
    def test_a_context_that_calls_could_hit_by_position_is_refused(self, source):
        scope = {"CONTEXT": CONTEXT}
        exec(source, scope)
        with pytest.raises(InvalidTask, match="`ctx`"):
            read(scope["task"])

    def test_the_last_parameter_may_be_the_context(self):
        def task(a, ctx=CONTEXT, *, b=1, **extra): ...

        signature = read(task)
        assert signature.context == "ctx"
        with pytest.raises(BadArguments, match="by position"):
            signature.bind((1, 2), {})


class TestBinding:
    def test_by_position_is_by_name(self):
        signature = read(send)
        values = {"to": "a", "subject": "b"}
        assert signature.bind(("a", "b"), {}) == values
        assert signature.bind(("a",), {"subject": "b"}) == values
        assert signature.bind((), {"subject": "b", "to": "a"}) == values

    def test_defaults_are_not_filled_in(self):
        assert read(send).bind(("a",), {}) == {"to": "a"}

    def test_rest_is_a_list_and_extra_an_object(self):
        assert read(everything).bind((1, 2, 3, 4, 5), {"d": 6, "x": "y"}) == {
            "a": 1, "b": 2, "c": 3, "rest": [4, 5], "d": 6, "extra": {"x": "y"},
        }  # fmt: skip

    def test_empty_rest_and_extra_are_not_stored(self):
        assert read(everything).bind((1,), {"d": 2}) == {"a": 1, "d": 2}

    def test_a_name_of_a_positional_only_parameter_may_be_extra(self):
        assert read(everything).bind((1,), {"d": 2, "a": "x"}) == {"a": 1, "d": 2, "extra": {"a": "x"}}

    def test_extra_may_contain_its_own_name(self):
        assert read(mixed).bind((1,), {"extra": 2}) == {"a": 1, "extra": {"extra": 2}}

    @pytest.mark.parametrize(
        ("function", "args", "kwargs", "path"),
        [
            (send, (), {}, "$.to"),
            (send, (), {"subject": "x"}, "$.to"),
            (send, ("a", "b", 3), {}, "$"),
            (send, ("a",), {"to": "b"}, "$.to"),
            (send, ("a",), {"too": "b"}, "$.too"),
            (send, ("a",), {"ctx": "b"}, "$.ctx"),
            (send, ("a",), {"no name": "b"}, "$[...]"),
            (everything, (1,), {}, "$.d"),
            (everything, (), {"a": 1, "d": 2}, "$.a"),
            (only_position, (), {"b": 1}, "$.b"),
        ],
    )
    def test_what_does_not_fit_is_refused_and_named(self, function, args, kwargs, path):
        with pytest.raises(BadArguments) as caught:
            read(function).bind(args, kwargs)
        assert caught.value.path == path
        assert path in str(caught.value)
        assert caught.value.code == "job.bad_arguments"

    def test_an_extra_argument_cannot_reach_the_context(self):
        def task(*, ctx=CONTEXT, **extra): ...

        with pytest.raises(BadArguments, match=r"\$\.ctx"):
            read(task).bind((), {"ctx": 1})

    @given(st.lists(st.integers(), max_size=6), st.dictionaries(st.sampled_from("abcdexyz"), st.integers()))
    def test_it_accepts_what_python_accepts(self, args, kwargs):
        functions: list[Any] = [everything, only_position, mixed]
        for function in functions:
            try:
                expected = function(*args, **kwargs)
            except TypeError:
                with pytest.raises(BadArguments):
                    read(function).bind(tuple(args), kwargs)
            else:
                signature = read(function)
                given_args, given_kwargs = signature.call_arguments(signature.bind(tuple(args), kwargs))
                assert function(*given_args, **given_kwargs) == expected

    @given(st.text(min_size=8))
    def test_no_value_is_in_a_message(self, secret):
        secret = f"<{secret}>"
        for args, kwargs in [((secret,) * 9, {}), ((secret,), {"to": secret}), ((), {secret: secret})]:
            with pytest.raises(BadArguments) as caught:
                read(send).bind(args, kwargs)
            assert secret not in str(caught.value) + caught.value.path


class TestCalling:
    def test_names_are_enough_where_they_can_be(self):
        values = {"to": "a"}
        args, kwargs = read(send).call_arguments(values)
        assert (args, kwargs) == ((), {"to": "a"})
        kwargs["ctx"] = 1
        assert values == {"to": "a"}

    def test_gaps_before_a_positional_value_take_the_default(self):
        assert read(only_position).call_arguments({"b": 7}) == ((1, 7), {})
        assert read(everything).call_arguments({"a": 1, "rest": [9], "d": 4}) == ((1, 2, 3, 9), {"d": 4})

    def test_extra_that_repeats_a_parameter_is_refused(self):
        def task(a, *, ctx=CONTEXT, **extra): ...

        for name in ("a", "ctx"):
            with pytest.raises(BadArguments) as caught:
                read(task).call_arguments({"a": 1, "extra": {name: 2}})
            assert caught.value.path == "$.extra"


class TestAnnotations:
    @pytest.mark.parametrize(
        ("annotation", "expected"),
        [
            (float, int | float),
            (float | None, int | float | None),
            (list[float], list[int | float]),
            (dict[str, tuple[float, ...]], dict[str, tuple[int | float, ...]]),
            (NewType("Price", float), int | float),
            (UserId, int),
            (tuple[()], tuple[()]),
            (list, list),
        ],
    )
    def test_float_takes_int(self, annotation, expected):
        assert widened(annotation) == expected

    def test_constraints_go_to_each_member(self):
        meta = msgspec.Meta(ge=0)
        assert widened(Annotated[float, meta]) == Annotated[int, meta] | Annotated[float, meta]

    @pytest.mark.parametrize(
        ("annotation", "expected"),
        [
            (str, {str}),
            (int | float | None, {int, float, type(None)}),
            (bool | list[int], set()),
            (Annotated[str, msgspec.Meta(max_length=3)], set()),
            (Any, {str, int, float, bool, type(None)}),
        ],
    )
    def test_plain_kinds_are_those_that_need_no_check(self, annotation, expected):
        assert plain_kinds(annotation) == expected

    @pytest.mark.parametrize(
        ("name", "path"),
        [("to", "$.to"), ("", "$[...]"), ("a b", "$[...]"), (3, "$[...]"), ("x" * 99, "$[...]")],
    )
    def test_only_plain_names_are_shown(self, name, path):
        assert path_of(name) == path
