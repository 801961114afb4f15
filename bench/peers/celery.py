"""Celery on Redis, one job at a time in its own process: on two cores neither threads nor prefork were quicker.

Kind "late" acknowledges after the run, as a user who wants to lose nothing would set it.
"""

from __future__ import annotations

import redis
from celery import Celery

from bench.peers.protocol import SUBJECT, TO, Peer, main, notes


class CeleryPeer(Peer):
    packages = ("celery", "redis")
    kinds = ("sync", "late")
    has_bulk = False
    has_async = False

    def __init__(self, url: str, *, kind: str = "", blocking: bool = False) -> None:
        super().__init__(url, kind=kind, blocking=blocking)
        app = Celery("bench", broker=url)
        app.conf.update(
            task_ignore_result=True,
            task_acks_late=self.kind == "late",
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )

        @app.task(name="send")
        def send(to: str, subject: str, number: int) -> None:
            notes.begin(number)

        self._app, self._send = app, send

    async def connect(self) -> None:
        self._redis = redis.Redis.from_url(self.url)

    async def one(self, tag: int) -> None:
        self._send.delay(TO, SUBJECT, tag)

    async def remaining(self) -> int:
        return int(self._redis.llen("celery")) + int(self._redis.hlen("unacked"))

    def work(self, concurrency: int) -> None:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
        self._app.worker_main(["--quiet", "worker", "--pool=solo", *quiet])


if __name__ == "__main__":
    main(CeleryPeer)
