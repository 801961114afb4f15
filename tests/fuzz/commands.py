"""The command line and its environment: any input gets an answer, or a line on stderr and a known exit code."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from perdure.model.visible_state import VISIBLE_STATES
from tests.fuzz.explore import Subject
from tests.fuzz.ground import Ground
from tests.fuzz.looks import run
from tests.fuzz.odd import Values, texts

# No argument and no variable of a process has a NUL in it; and bytes that are no UTF-8 have a test of their own.
words: Values = texts.map(lambda word: word.encode(errors="replace").decode().replace("\0", "?"))
numbers: Values = st.integers().map(str) | st.sampled_from(("1", "50", "1001", "-1", "1e3", "9" * 5000))
spans: Values = words | st.sampled_from(
    ("5", "5m", "2h", "1d", "-1", "9" * 400 + "d", "1.5h", "0.0000001", "inf", "nan")
)
moments: Values = words | st.sampled_from(
    (
        "2030-01-01T00:00:00Z",
        "2030-01-01",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
        "2030-01-01T25:00Z",
    )
)
_DOCUMENTS = (
    "{}", '{"n": 1}', "[]", "1", '{"n": NaN}', '{"n": 1e999}', '{"n": ' + "9" * 5000 + "}", "[" * 100_000,
    '{"a":' * 9999, '{"n": "\\u0000"}', '{"n": "\\ud800"}', '{"n": 1, "n": 2}', "\ufeff{}",
)  # fmt: skip
documents: Values = words | st.sampled_from(_DOCUMENTS)
ids: Values = words | st.sampled_from(("00000000-0000-0000-0000-000000000005", "JOB", "FLOW"))


def option(name: str, values: Values) -> Values:
    return values.map(lambda value: [name, value])


def flags(*names: str) -> Values:
    return st.sampled_from(names).map(lambda name: [name])


def verb(*first: Values, rest: tuple[Values, ...] = ()) -> Values:
    """Its arguments, and then some of its options."""
    options = st.lists(st.one_of(*rest, flags("--json"), words.map(lambda word: [word])), max_size=3)
    return st.builds(
        lambda one, more: [*one, *(word for each in more for word in each)], st.tuples(*first), options
    )


conditions: tuple[Values, ...] = (
    option("--queue", words),
    option("--task", words),
    option("--tenant", words),
    option("--state", st.sampled_from(VISIBLE_STATES) | words),
    option("--tag", words),
    option("--key", words),
    option("--unique-key", words),
    option("--error-code", words),
    option("--text", words),
    option("--created-after", moments | spans),
    option("--created-before", moments | spans),
    option("--finished-after", moments | spans),
    option("--finished-before", moments | spans),
)
acting: tuple[Values, ...] = (option("--actor", words), option("--reason", words))
pausing: tuple[Values, ...] = (*acting, option("--for", spans), option("--resume-at", moments))
many: Values = verb(
    rest=(
        *conditions,
        *acting,
        ids.map(lambda id: [id]),
        flags("--all", "--dry-run", "--yes", "--keep-checkpoint"),
    )
)

COMMANDS: dict[str, Values] = {
    "enqueue": verb(
        st.sampled_from(("work", "elsewhere", "work")) | words,
        documents,
        rest=(
            option("--queue", words),
            option("--priority", numbers),
            option("--delay", spans),
            option("--run-at", moments),
            option("--expires", spans),
            option("--max-attempts", numbers),
            option("--timeout", spans),
            option("--tenant", words),
            option("--key", words),
            option("--unique-key", words),
            option("--tag", words),
            option("--meta", documents),
        ),
    ),
    "jobs": verb(
        rest=(
            *conditions,
            option("--limit", numbers),
            option("--before", ids),
            option("--count-by", words | st.sampled_from(("state", "tenant", "error-code"))),
        )
    ),
    "job": verb(ids),
    "explain": verb(ids),
    "workflows": verb(rest=(option("--status", words), option("--name", words), option("--before", ids))),
    "workflow": verb(
        ids,
        rest=(
            words.map(lambda key: ["gate", key]),
            flags("--approve", "--reject", "cancel", "requeue"),
            option("--output", documents),
            option("--steps", words | st.sampled_from(("failed", "all"))),
            *acting,
        ),
    ),
    "cancel": many,
    "requeue": many,
    "run-now": many,
    "delete": many,
    "pause": verb(words, rest=pausing),
    "resume": verb(words, rest=acting),
    "acts": verb(
        rest=(option("--action", words), option("--subject", words), option("--before", numbers), *acting)
    ),
    "replay": verb(ids, rest=(option("--request-key", words), *acting)),
    "tasks": verb(),
    "queues": verb(),
    "queue": verb(
        words | st.sampled_from(("default", "work")),
        st.sampled_from(("set", "pause", "resume", "warm", "reset")) | words,
        rest=(
            *pausing,
            st.sampled_from(
                (
                    "concurrency=5",
                    "concurrency=0",
                    "timeout=90s",
                    "timeout=none",
                    "backoff=1",
                    "backoff={}",
                    'backoff={"base": -1}',
                    "backoff=" + "[" * 9999,
                    "concurrency=" + "9" * 5000,
                    "timeout=",
                    "=",
                )
            ).map(lambda setting: [setting]),
        ),
    ),
    "limits": verb(),
    "limit": verb(
        words | st.sampled_from(("printer",)),
        st.sampled_from(("set", "reset")) | words,
        rest=(numbers.map(lambda n: [n]), flags("none"), *acting),
    ),
    "workers": verb(),
    "stats": verb(rest=(option("--since", spans),)),
    "migrate": verb(rest=(option("--to", numbers), flags("--sql", "--help"))),
    "check": verb(rest=(flags("--limits"),)),
    "sql": verb(rest=(option("--to", numbers), option("--dialect", words))),
    "grants": verb(
        rest=(
            option("--producer", words),
            option("--worker", words),
            option("--reader", words),
            option("--operator", words),
        )
    ),
    "worker": verb(
        words,
        rest=(
            option(
                "--queues", words | st.sampled_from(("a=1,b", "a=0", "a=" + "9" * 5000, "a=1,a=2", ",", "=1"))
            ),
            option("--concurrency", numbers),
            option("--processes", numbers),
            option("--drain", numbers | st.sampled_from(("nan", "inf", "1e309"))),
            option("--log-level", words),
        ),
    ),
}

NOT_HERE = {
    "demo": "it runs for seconds, and takes two numbers",
    "bench": "it runs for minutes",
    "move": "its tests are in tests/moves",
}

environments: Values = st.fixed_dictionaries(
    {},
    optional={
        "PERDURE_QUEUES": words,
        "PERDURE_CONCURRENCY": numbers | words,
        "PERDURE_LOG_LEVEL": words,
        "PERDURE_APP": words
        | st.sampled_from(("json", "json:loads", "tests.fuzz.nothing:app", ":", "a b:c")),
    },
)


def _type(name: str) -> Any:
    def check(ground: Ground, example: tuple[list[str], dict[str, str]]) -> None:
        asked, env = example
        ground.tidy()
        if name in ("migrate", "worker", "sql"):
            asked = [word for word in asked if word != "--watch"]
        known = {"JOB": lambda: ground.job().id, "FLOW": ground.workflow}
        typed = [known[word]() if word in known else word for word in asked]
        before = ground.rows()
        answer = run(ground, name, *typed, env=env)
        assert answer.exit_code in (0, 1, 2, 3, 4)
        assert "Traceback" not in answer.output
        if answer.exit_code:
            assert answer.stderr.strip()
            assert ground.rows() == before

    return check


SUBJECTS: dict[str, Subject] = {
    f"perdure {name}": Subject(st.tuples(asked, environments), _type(name), 45)
    for name, asked in COMMANDS.items()
}
