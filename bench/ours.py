"""The work done by perdure, as a program and a worker would."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from bench.workload import QUEUE, RESULT, TASK, WORKER, Mail
from perdure import App
from perdure.model.job import SECOND
from perdure.model.lifecycle import Succeeded


class Ours:
    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.app.migrate()
        self.operations = self.app.operations
        self.operations.register(WORKER, name=WORKER, lease=3600 * SECOND)
        self._url = url
        self._outcomes: list[Succeeded] = []

        @self.app.task(name=TASK, queue=QUEUE)
        def send(to: str, subject: str, *, number: int) -> None: ...

        self._send = send

    def enqueue(self, mail: Mail) -> None:
        self._send.enqueue(mail.to, mail.subject, number=mail.number)

    enqueue_together = enqueue

    def enqueue_many(self, mails: Sequence[Mail]) -> None:
        self.app.enqueue_many([self._send.job(mail.to, mail.subject, number=mail.number) for mail in mails])

    def cycle(self, n: int) -> int:
        finished, jobs = self.operations.cycle(WORKER, self._outcomes, tasks=[TASK], n=n)
        assert not finished.refused
        self._outcomes = [Succeeded(job.lease, RESULT) for job in jobs]
        return len(jobs)

    def tidy(self) -> None:
        if self.app.store.dialect == "postgres":
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute("VACUUM (ANALYZE) perdure.job")

    def close(self) -> None:
        self.app.close()
