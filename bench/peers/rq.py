"""RQ on Redis, SimpleWorker: one job at a time without a fork for each, which is four times slower."""

from __future__ import annotations

from collections.abc import Sequence

from redis import Redis
from rq import Queue, SimpleWorker
from rq.registry import StartedJobRegistry

from bench.peers.protocol import SUBJECT, TO, Peer, main, notes

FUNCTION = f"{__package__}.rq.send"


def send(to: str, subject: str, number: int) -> None:
    notes.begin(number)


class Rq(Peer):
    packages = ("rq", "redis")
    kinds = ("sync",)
    has_async = False

    def __init__(self, url: str, *, kind: str = "", blocking: bool = False) -> None:
        super().__init__(url, kind=kind, blocking=blocking)
        self._redis = Redis.from_url(url)
        self._queue = Queue("mail", connection=self._redis)

    async def one(self, tag: int) -> None:
        self._queue.enqueue(FUNCTION, TO, SUBJECT, tag)

    async def many(self, tags: Sequence[int]) -> None:
        self._queue.enqueue_many([Queue.prepare_data(FUNCTION, (TO, SUBJECT, tag)) for tag in tags])

    async def remaining(self) -> int:
        return int(self._queue.count) + int(StartedJobRegistry(queue=self._queue).get_job_count())

    def work(self, concurrency: int) -> None:
        worker = SimpleWorker([self._queue], connection=self._redis, log_job_description=False)
        worker.work(logging_level="ERROR")


if __name__ == "__main__":
    main(Rq)
