"""A task is its function: a plain call calls it, with a context of its own and without a database."""

from __future__ import annotations

import functools
import inspect
from datetime import timedelta
from typing import Any

import pytest

from perdure import CONTEXT, App, Backoff, Context
from perdure.client.task import AsyncTask, SyncTask
from perdure.errors import BadArguments, InvalidOption, InvalidTask
from perdure.request.context import current_context

app = App("postgresql://nobody@nowhere.invalid/nothing")
"""No database: whatever reaches for one fails."""


@app.task
async def send(to: str, subject: str, *, ctx: Context = CONTEXT) -> tuple[str, str, Context]:
    """Send a mail."""
    return to, subject, ctx


@app.task(queue="math")
def add(a: int, b: int = 1, ctx: Context = CONTEXT) -> tuple[int, Context]:
    return a + b, ctx


@app.task
def total(*parts: int, ctx: Context = CONTEXT) -> tuple[int, Context]:
    return sum(parts), ctx


@app.task
def fail(message: str) -> None:
    raise LookupError(message)


class TestAPlainCall:
    async def test_of_an_async_task_awaits_the_function_itself(self) -> None:
        to, subject, ctx = await send("ann@example.com", subject="hi")
        assert (to, subject) == ("ann@example.com", "hi")
        assert type(ctx) is Context

    def test_of_a_sync_task_returns_what_the_function_returns(self) -> None:
        assert add(2)[0] == 3
        assert add(2, b=5)[0] == 7
        assert total(1, 2, 3)[0] == 6

    def test_has_a_context_outside_any_job(self) -> None:
        ctx = add(1)[1]
        assert (ctx.job_id, ctx.run, ctx.attempt, ctx.tenant, ctx.worker, ctx.checkpoint) == (
            None,
            1,
            1,
            None,
            None,
            None,
        )
        assert ctx.cancel_requested is False

    def test_has_a_context_of_its_own(self) -> None:
        first, second = add(1)[1], total(1)[1]
        first.cancel_requested = True
        assert not second.cancel_requested
        assert not CONTEXT.cancel_requested

    def test_may_say_what_it_likes_to_its_context(self) -> None:
        ctx = add(1)[1]
        ctx.progress(1, 2, "half")
        ctx.stage("second half")
        ctx.log("done", level="debug")

    async def test_may_save_what_it_could_save_in_a_job(self) -> None:
        ctx = add(1)[1]
        ctx.save({"page": 1})
        await ctx.asave(None)
        assert ctx.checkpoint is None
        for value in ({1, 2}, object()):
            with pytest.raises(BadArguments, match=r"^\$\.checkpoint"):
                ctx.save(value)
            with pytest.raises(BadArguments, match=r"^\$\.checkpoint"):
                await ctx.asave(value)

    async def test_may_succeed_in_a_transaction_of_its_own(self) -> None:
        ctx = add(1)[1]
        ctx.succeed(1, conn=object())
        await ctx.asucceed(1, conn=object())

    async def test_refuses_what_would_be_missed_and_says_what_to_do(self) -> None:
        ctx = add(1)[1]
        with pytest.raises(InvalidOption, match=r"enqueue the task, in a test inside app\.testing\(\)\.$"):
            ctx.enqueue(add.job(1))
        with pytest.raises(InvalidOption, match=r"app\.testing\(\)\.$"):
            await ctx.aenqueue(add.job(1))
        with pytest.raises(InvalidOption, match=r"app\.testing\(\)\.$"):
            ctx.transaction()

    def test_takes_a_context_by_name(self) -> None:
        mine = Context(tenant="acme")
        assert add(2, ctx=mine)[1] is mine
        assert total(2, 3, ctx=mine)[1] is mine

    def test_takes_a_context_by_position_where_the_function_does(self) -> None:
        mine = Context(tenant="acme")
        assert add(2, 5, mine) == (7, mine)

    def test_inside_a_job_sees_the_context_of_that_job(self) -> None:
        around = Context(job_id="0198a1b2-0000-7000-8000-000000000000", attempt=3)
        token = current_context.set(around)
        try:
            assert Context.current() is around
            assert add(1)[1] is around
        finally:
            current_context.reset(token)

    def test_raises_what_the_function_raises(self) -> None:
        with pytest.raises(LookupError, match="no such customer"):
            fail("no such customer")

    def test_with_wrong_arguments_fails_as_python_does(self) -> None:
        call: Any = add
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
            call()
        with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
            call(1, c=3)


class TestATask:
    def test_looks_like_its_function(self) -> None:
        assert (send.__name__, send.__doc__, send.__module__) == ("send", "Send a mail.", __name__)
        assert list(inspect.signature(send).parameters) == ["to", "subject", "ctx"]
        assert inspect.iscoroutinefunction(send.function)

    def test_is_of_the_colour_of_its_function(self) -> None:
        assert type(send) is AsyncTask
        assert type(add) is SyncTask

    def test_is_named_after_its_module_and_function(self) -> None:
        assert (send.name, send.definition.queue) == (f"{__name__}.send", "default")
        assert (add.name, add.definition.queue) == (f"{__name__}.add", "math")
        assert repr(add) == f"<Task {__name__}.add>"

    def test_has_the_documented_defaults(self) -> None:
        task = App().task(name="plain")(lambda: None).definition
        assert (task.queue, task.priority, task.max_attempts, task.max_crashes) == ("default", 0, 8, 3)
        assert task.timeout == 900_000_000
        assert task.backoff == '{"base":5.0,"cap":900.0,"codes":{}}'

    def test_takes_its_options_as_given(self) -> None:
        declare = App().task(
            name="busy", queue="q", priority=-5, max_attempts=1, timeout=None, backoff=2000, max_crashes=None
        )
        task = declare(lambda: None).definition
        assert (task.name, task.queue, task.priority, task.max_attempts) == ("busy", "q", -5, 1)
        assert (task.timeout, task.max_crashes) == (None, None)
        assert task.backoff == '{"base":2000,"cap":2000,"codes":{}}'

    def test_answers_to_its_aliases(self) -> None:
        app = App()
        task = app.task(name="new", aliases=["old", "older"])(lambda: None)
        assert app.tasks == {"new": task, "old": task, "older": task}

    def test_keeps_its_own_attributes_whatever_its_function_carries(self) -> None:
        def work() -> None: ...

        work.name = work.queue = "other"  # type: ignore[attr-defined]
        assert App().task(name="work")(work).name == "work"


class TestATaskIsRefused:
    def test_when_its_name_is_taken(self) -> None:
        app = App()
        app.task(name="work", aliases=["old"])(lambda: None)
        for name, aliases in (("work", []), ("old", []), ("new", ["work"])):
            with pytest.raises(InvalidTask, match=r"^There is already a task named (work|old)") as refusal:
                app.task(name=name, aliases=aliases)(lambda: None)
            assert refusal.value.code == "task.duplicate"
        assert list(app.tasks) == ["work", "old"]

    def test_in_the_main_module_without_a_name(self) -> None:
        def work() -> None: ...

        work.__module__ = "__main__"
        with pytest.raises(InvalidTask, match="needs a name"):
            App().task(work)
        assert App().task(name="work")(work).name == "work"

    def test_when_its_function_has_no_name_and_it_has_none(self) -> None:
        with pytest.raises(InvalidTask, match="needs a name"):
            App().task(functools.partial(fail, "x"))
        assert App().task(name="fail")(functools.partial(fail, "x")).name == "fail"

    @pytest.mark.parametrize(
        ("option", "wrong"),
        [
            ("name", ""),
            ("name", "x" * 256),
            ("aliases", [""]),
            ("aliases", "old"),
            ("queue", ""),
            ("queue", None),
            ("priority", 32_768),
            ("priority", None),
            ("max_attempts", 0),
            ("max_attempts", None),
            ("timeout", 0),
            ("timeout", "30"),
            ("backoff", -1),
            ("backoff", "5"),
            ("backoff", None),
            ("backoff", timedelta(seconds=5)),
            ("backoff", {"base": 5}),
            ("max_crashes", 0),
        ],
    )
    def test_with_an_option_that_makes_no_sense(self, option: str, wrong: Any) -> None:
        app = App()
        with pytest.raises(InvalidOption):
            app.task(**{"name": "work", option: wrong})(lambda: None)
        assert app.tasks == {}

    def test_with_an_option_that_does_not_exist(self) -> None:
        declare: Any = App().task
        with pytest.raises(InvalidTask, match="retries"):
            declare(name="work", retries=3)(lambda: None)

    def test_when_a_policy_is_no_policy(self) -> None:
        with pytest.raises(InvalidOption, match=r"^Back-off base must "):
            App().task(backoff=Backoff(base=-1))
