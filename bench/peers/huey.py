"""Huey on SQLite (WAL, every commit synced), one thread: four were slower. A job is gone once it is taken."""

from __future__ import annotations

from huey import SqliteHuey

from bench.peers.protocol import SUBJECT, TO, Peer, main, notes


class HueyPeer(Peer):
    packages = ("huey",)
    kinds = ("sync",)
    has_bulk = False
    has_async = False

    def __init__(self, url: str, *, kind: str = "", blocking: bool = False) -> None:
        super().__init__(url, kind=kind, blocking=blocking)
        # fsync=True says synchronous=FULL, which SQLite has anyway where its makers left it so.
        self._huey = SqliteHuey("mail", filename=url.removeprefix("sqlite:///"), fsync=True)

        @self._huey.task(name="send")
        def send(to: str, subject: str, number: int) -> None:
            notes.begin(number)

        self._send = send

    async def one(self, tag: int) -> None:
        self._send(TO, SUBJECT, tag)

    async def remaining(self) -> int:
        return int(self._huey.pending_count())

    def work(self, concurrency: int) -> None:
        self._huey.create_consumer(workers=concurrency, periodic=False).run()


if __name__ == "__main__":
    main(HueyPeer)
