"""Coverage: which ready jobs no live worker would claim."""

from __future__ import annotations

import pytest

from perdure.model.coverage import Lack, Server, Unserved, lack, unserved


def server(tasks: str, queues: str | None = None) -> Server:
    return Server(frozenset(tasks.split()), None if queues is None else frozenset(queues.split()))


@pytest.mark.parametrize(
    ("servers", "missing"),
    [
        ([], "worker"),
        ([server("send")], None),
        ([server("send", "mail")], None),
        ([server("send", "slow")], "queue"),
        ([server("other", "mail")], "task"),
        ([server("other")], "task"),
        ([server("", "mail")], "task"),
        ([server("send", "slow"), server("other", "mail")], "both"),
        ([server("send", "slow"), server("other", "mail"), server("send")], None),
    ],
)
def test_a_job_needs_one_worker_for_its_queue_and_its_task(
    servers: list[Server], missing: Lack | None
) -> None:
    assert lack("mail", "send", servers) == missing


def test_what_is_served_is_not_named() -> None:
    ready = [("mail", "send", 3), ("mail", "other", 2), ("slow", "send", 1)]
    assert unserved(ready, [server("send", "mail")]) == [
        Unserved("mail", "other", 2, "task"),
        Unserved("slow", "send", 1, "queue"),
    ]
