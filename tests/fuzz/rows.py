"""Rows that another program wrote: each method, the command line and a worker can handle them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from perdure.worker.context import JobContext
from perdure.worker.outcome import raised, returned
from tests.fuzz.explore import Subject
from tests.fuzz.ground import Ground
from tests.fuzz.looks import PRINTS, look_at
from tests.fuzz.odd import Values, texts

TEXTS = (
    "task",
    "queue",
    "tenant",
    "held",
    "stage",
    "progress_message",
    "reason",
    "unique_key",
    "error_message",
)
JSONS = ("payload", "meta", "tags", "checkpoint", "result")
TIMES = ("run_at", "expires_at", "started_at", "cancel_requested_at", "scheduled_for", "created_at")

documents: Values = st.sampled_from(
    (
        *(
            "null",
            "{}",
            "[]",
            "1",
            '"x"',
            '{"n": 1}',
            '{"nobody": 1}',
            '{"n": {"perdure.result": "a"}}',
            "1e999",
        ),
        *(
            '{"n": 1, "n": 2}',
            '[{"n": 1}]',
            '{"\\u0000": "\\u0000"}',
            '"\\ud800"',
            '{"n": "\\udfff"}',
            "9" * 5000,
        ),
        *("[" * 300 + "]" * 300, "[" * 5000 + "]" * 5000, '{"n": ' + "9" * 400 + "}", " {} ", '{"n": -0.0}'),
    )
)
broken: Values = st.sampled_from(("", "{", "NaN", "{not json", "\ufeff{}", "'x'", '{"n": NaN}', "\x00"))
"""What only SQLite takes."""
instants: Values = st.sampled_from(
    (
        "-infinity",
        "infinity",
        "0001-01-01",
        "4713-01-01 BC",
        "9999-12-31 23:59:59.999999Z",
        "294276-12-31",
        "epoch",
    )
)
numbers: Values = st.sampled_from(
    (0, -1, 1, 2**63 - 1, -(2**63), 253_402_300_800_000_000, -62_135_596_800_000_001)
)
spans: Values = st.sampled_from((1, 10**15, 2**63 - 1))
smaller: Values = st.sampled_from((1, 2, 2**31 - 1))

changes: Values = st.dictionaries(
    st.sampled_from(
        (*TEXTS, *JSONS, *TIMES, "timeout", "max_attempts", "run", "attempt", "throttles", "progress")
    ),
    st.tuples(texts, documents | broken, instants, numbers, spans, smaller),
    min_size=1,
    max_size=3,
)


def _tamper(ground: Ground, example: tuple[str, dict[str, tuple[Any, ...]], tuple[str, ...]]) -> None:
    how, asked, printed = example
    ground.tidy()
    job = ground.work.using(queue="fuzz", max_attempts=1).enqueue(1)
    if how == "canceled":
        job.cancel()
    for column, values in asked.items():
        _write(ground, job.id, column, *values)
    look_at(ground, job.id, printed)
    ground.app.count_jobs()
    ground.app.oldest_ready()
    ground.app.stats()
    if how == "claimed":
        _work(ground)
        look_at(ground, job.id)
    if how == "acted":
        for verb in ("run_now", "cancel_job", "requeue_job", "delete_job"):
            getattr(ground.app, verb)(job.id)
    ground.sql("DELETE FROM perdure.job")


def _write(ground: Ground, id: str, column: str, *values: Any) -> None:
    """As far as the tables accept them."""
    said, document, instant, number, span, small = values
    postgres = ground.dialect == "postgres"
    if column in TEXTS:
        value, cast = said, "text"
    elif column in JSONS:
        value, cast = document, "json"
    elif column in TIMES:
        value, cast = (instant, "timestamptz") if postgres else (number, "integer")
    elif column == "progress":
        ground.sql(f"UPDATE perdure.job SET progress_done = 0, progress_total = {span} WHERE id = ?", id)
        return
    else:
        value, cast = (span, "bigint") if column == "timeout" else (small, "integer")
    if not postgres:
        cast = "integer" if cast == "integer" else "text"
        if column == "timeout":
            cast = "integer"
    try:
        ground.sql(f"UPDATE perdure.job SET {column} = CAST(? AS {cast}) WHERE id = ?", value, id)
    except (ground.driver_error, UnicodeEncodeError):
        return  # the database itself refuses it


def _work(ground: Ground) -> None:
    """What a worker does with it."""
    operations, handlers = ground.app.operations, ground.app.handlers()
    operations.expire()
    for job in operations.claim("fuzz", tasks=["work"], queues=None, n=10):
        handler = handlers[job.task]
        context = JobContext(job, handlers, worker="fuzz", operations=operations)
        try:
            outcome: Any = returned(handler, job.lease, handler.call(job.payload, context))
        except BaseException as error:
            outcome = raised(handler, job, error)
        assert operations.finish([outcome]).accepted == [job.lease]


HOW = ("ready", "canceled", "claimed", "acted")
SUBJECTS = {"rows": Subject(st.tuples(st.sampled_from(HOW), changes, st.sampled_from(PRINTS)), _tamper, 100)}
