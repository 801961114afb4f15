"""Those of a kind that live in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from perdure.store.living import Living


class Somebody:
    pass


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns a thousand times as often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.000_005)
    yield
    sys.setswitchinterval(interval)


def test_they_are_seen_while_they_live() -> None:
    living: Living[Somebody] = Living()
    one, other = Somebody(), Somebody()
    living.add(one)
    living.add(other)
    living.add(one)
    assert set(living.now()) == {one, other}
    del one
    assert living.now() == [other]
    living.forget()
    assert living.now() == []


@pytest.mark.usefixtures("hasty")
def test_others_come_and_go_meanwhile() -> None:
    living: Living[Somebody] = Living()
    lasting = {Somebody() for _ in range(100)}
    for one in lasting:
        living.add(one)
    enough = Event()

    def come_and_go() -> None:
        while not enough.is_set():
            living.add(Somebody())

    threads = [Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2_000):
            assert lasting <= set(living.now())
    finally:
        enough.set()
        for thread in threads:
            thread.join()
