"""The weak registry of live objects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from perdure.internal.instances import WeakRegistry


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
    registry: WeakRegistry[Somebody] = WeakRegistry()
    one, other = Somebody(), Somebody()
    registry.add(one)
    registry.add(other)
    registry.add(one)
    assert set(registry.now()) == {one, other}
    del one
    assert registry.now() == [other]
    registry.forget()
    assert registry.now() == []


@pytest.mark.usefixtures("hasty")
def test_others_come_and_go_meanwhile() -> None:
    registry: WeakRegistry[Somebody] = WeakRegistry()
    lasting = {Somebody() for _ in range(100)}
    for one in lasting:
        registry.add(one)
    enough = Event()

    def come_and_go() -> None:
        while not enough.is_set():
            registry.add(Somebody())

    threads = [Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2_000):
            assert lasting <= set(registry.now())
    finally:
        enough.set()
        for thread in threads:
            thread.join()
