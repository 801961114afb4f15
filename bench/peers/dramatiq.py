"""Dramatiq on Redis, 32 threads."""

from __future__ import annotations

import threading

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.protocol import SUBJECT, TO, Peer, main, notes


class Dramatiq(Peer):
    packages = ("dramatiq", "redis")
    kinds = ("sync",)
    has_bulk = False
    has_async = False

    def __init__(self, url: str, *, kind: str = "", blocking: bool = False) -> None:
        super().__init__(url, kind=kind, blocking=blocking)
        self._broker = RedisBroker(url=url)
        dramatiq.set_broker(self._broker)

        @dramatiq.actor(actor_name="send")
        def send(to: str, subject: str, number: int) -> None:
            notes.begin(number)

        self._send = send

    async def one(self, tag: int) -> None:
        self._send.send(TO, SUBJECT, tag)

    async def remaining(self) -> int:
        # A message stays here until it is acknowledged, after the run.
        return int(self._broker.client.hlen("dramatiq:default.msgs"))

    def work(self, concurrency: int) -> None:
        dramatiq.Worker(self._broker, worker_threads=concurrency).start()
        threading.Event().wait()


if __name__ == "__main__":
    main(Dramatiq)
