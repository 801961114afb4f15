"""Texts and results of handlers are made storable, never block the outcome, and can be read by every method."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from perdure import Cancel, Fatal, Retry
from perdure.errors import PerdureError
from perdure.model.codec import MAX_PAYLOAD
from perdure.model.lifecycle import SHORT, TRACE
from perdure.worker.attempt import Attempt
from perdure.worker.context import JobContext
from perdure.worker.outcome import raised, returned
from tests.fuzz.explore import Subject
from tests.fuzz.ground import Ground, judge
from tests.fuzz.looks import look_at
from tests.fuzz.odd import Values, anything, hostile, mostly, strange, texts


class Evil(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Huge(Exception):
    def __str__(self) -> str:
        return "huge \0\ud800 " * 400_000


def _chained(depth: int) -> BaseException:
    error: BaseException = ValueError("first")
    for n in range(depth):
        after = KeyError(n)
        after.__context__ = error
        error = after
    return error


def _itself() -> BaseException:
    error = ValueError("mine")
    error.__cause__ = error
    return error


errors: Values = st.one_of(
    st.builds(ValueError, anything | hostile),
    st.builds(KeyError, texts, strange),
    st.builds(lambda said: Retry(said, code=said), anything | hostile),
    st.builds(lambda said: Fatal(said, code=said), texts),
    st.builds(Cancel, anything | hostile),
    st.builds(lambda said: ExceptionGroup(said, [ValueError(said), KeyError(said)]), texts),
    st.sampled_from((0, 5, 300)).map(_chained),
    st.builds(_itself),
    st.sampled_from(
        (Evil, Endless, Huge, RecursionError, MemoryError, SystemExit, GeneratorExit, StopIteration)
    ).map(lambda kind: kind("said")),
)
endings: Values = st.tuples(st.just("returns"), anything | hostile) | st.tuples(st.just("raises"), errors)
words: Values = st.lists(
    st.one_of(
        st.tuples(st.just("stage"), anything),
        st.tuples(st.just("log"), st.tuples(anything, mostly("info", texts))),
        st.tuples(st.just("progress"), st.tuples(anything, anything, anything)),
        st.tuples(st.just("save"), anything),
    ),
    max_size=3,
)


def _end(ground: Ground, example: tuple[list[tuple[str, Any]], tuple[str, Any]]) -> None:
    said, (how, what) = example
    ground.tidy()
    job = ground.work.using(max_attempts=1, queue="fuzz").enqueue(1)
    operations, handlers = ground.app.operations, ground.app.handlers()
    (claimed,) = operations.claim("fuzz", tasks=["work"], queues=["fuzz"], n=1)
    context = JobContext(claimed, handlers, worker="fuzz", operations=operations)
    for verb, words in said:
        _say(context, verb, words)
    handler = handlers["work"]
    outcome = returned(handler, claimed.lease, what) if how == "returns" else raised(handler, claimed, what)
    assert outcome is not None
    attempt = Attempt(claimed, handler, context, None, started=0.0)  # type: ignore[arg-type]
    attempt.outcome = outcome
    final = attempt.final_outcome()
    if (logs := context.take_logs()) is not None:
        operations.report([logs])
    assert operations.finish([final]).accepted == [claimed.lease]
    assert job.refresh().state in ("succeeded", "failed", "canceled")
    _measure(job)
    look_at(ground, job.id)


def _say(context: JobContext, verb: str, words: Any) -> None:
    """In a handler: what cannot be said is refused by an error, of ours or of what was to be said."""
    try:
        match verb:
            case "log":
                context.log(words[0], level=words[1])
            case "progress":
                context.progress(*words)
            case "save":
                context.save(words)
            case _:
                context.stage(words)
    except PerdureError as error:
        judge(error)


def _measure(job: Any) -> None:
    row = job.row
    assert len(row.result or "") <= MAX_PAYLOAD
    assert len(row.error_trace or "") <= TRACE
    assert len(row.error_code or "") <= SHORT
    if row.state == "succeeded" and row.result is None:
        assert row.reason in ("result.unencodable", "result.too_large")
    if row.result is not None:
        msgspec.json.decode(row.result)
        _ = job.result


SUBJECTS = {"endings": Subject(st.tuples(words, endings), _end, 250)}
