"""Ids increase within a process, whatever the clock does, and no two processes make the same."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from itertools import pairwise

import pytest

from perdure.request import ids
from perdure.request.ids import new_id, new_ids

MILLISECOND = 1_000_000


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def time_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock the test moves; the ids made so far are forgotten."""
    clock = Clock(1_755_000_000_000 * MILLISECOND)
    monkeypatch.setattr(ids, "time", clock)
    monkeypatch.setattr(ids, "_last", 0)
    return clock


def milliseconds(id: str) -> int:
    return uuid.UUID(id).int >> 80


def test_an_id_is_a_uuid_of_version_7_in_its_usual_spelling() -> None:
    for id in (new_id() for _ in range(1000)):
        parsed = uuid.UUID(id)
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert str(parsed) == id


def test_an_id_tells_when_it_was_made() -> None:
    before = time.time_ns() // MILLISECOND
    assert before <= milliseconds(new_id()) <= time.time_ns() // MILLISECOND + 1


def test_ids_made_in_one_millisecond_grow(clock: Clock) -> None:
    made = [new_id() for _ in range(5000)]
    assert made == sorted(set(made))
    assert {milliseconds(id) for id in made} == {clock.now // MILLISECOND}


def test_a_later_millisecond_is_told(clock: Clock) -> None:
    first = new_id()
    clock.now += MILLISECOND
    assert milliseconds(new_id()) == milliseconds(first) + 1


@pytest.mark.parametrize("step", [1, 1000, 86_400_000])
def test_ids_grow_while_the_clock_goes_back(clock: Clock, step: int) -> None:
    made = [new_id()]
    for _ in range(100):
        clock.now -= step * MILLISECOND
        made.append(new_id())
    assert made == sorted(set(made))


def test_ids_follow_the_clock_again_once_it_has_caught_up(clock: Clock) -> None:
    first = new_id()
    clock.now -= 50 * MILLISECOND
    new_id()
    clock.now += 60 * MILLISECOND
    assert milliseconds(new_id()) == milliseconds(first) + 10


def test_two_processes_that_start_in_the_same_millisecond_differ(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_id()
    monkeypatch.setattr(ids, "_last", 0)
    assert new_id() != first


def test_ids_are_one_growing_line_across_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        """Where a thread is most likely to be interrupted, it is."""

        def time_ns(self) -> int:
            now = time.time_ns()
            time.sleep(0)
            return now

    monkeypatch.setattr(ids, "time", Clock())
    made: list[list[str]] = [[] for _ in range(4)]
    begin = threading.Barrier(len(made))

    def make(mine: list[str]) -> None:
        begin.wait()
        mine.extend(new_id() for _ in range(2000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in made)
    assert len({id for mine in made for id in mine}) == sum(map(len, made))
    assert new_id() > max(mine[-1] for mine in made)


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_many_ids_at_once_are_one_growing_line_with_the_others(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(ids, "getrandbits", lambda bits: 0)
    before, many, after = new_id(), new_ids(n), new_id()
    assert len(many) == n
    line = [before, *many, after]
    assert line == sorted(set(line))
    assert {uuid.UUID(id).version for id in line} == {7}


@pytest.mark.parametrize("left", [0, 1, 2, 5, 6])
def test_many_ids_carry_over_into_the_digits_before(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """``left``: how far the first is from the end of the last twelve digits."""
    start = (clock.now // MILLISECOND << 74 | 1 << 60) - 1 - left
    monkeypatch.setattr(ids, "_last", start + (1 << 48) - 1)
    monkeypatch.setattr(ids, "getrandbits", lambda bits: 0)
    made = [uuid.UUID(id) for id in new_ids(5)]
    assert all(later.int - sooner.int == 1 for sooner, later in pairwise(made))
    assert {(id.version, id.variant) for id in made} == {(7, uuid.RFC_4122)}


FORK = """
import os, threading
from perdure.request import ids

# One millisecond, and no luck: only what a child does after a fork can make its ids others than its parent's.
class Clock:
    time_ns = staticmethod(lambda: 1_755_000_000_000_000_000)
ids.time, ids.getrandbits = Clock, lambda bits: 0
ids.new_id()

# Another thread is about to make an id; in the child it does not exist, and would never give the lock back.
held, forked = threading.Event(), threading.Event()
def hold():
    with ids._lock:
        held.set()
        forked.wait()
threading.Thread(target=hold).start()
held.wait()

reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, ids.new_id().encode())
    os._exit(0)
forked.set()
os.waitpid(child, 0)
print(os.read(reader, 36).decode(), ids.new_id())
"""


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    forked = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60, check=True
    )
    childs, parents = forked.stdout.split()
    assert childs != parents
    assert uuid.UUID(childs).version == uuid.UUID(parents).version == 7
