"""The messages between a worker and its children: msgpack in frames. Each frame begins with its length."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from select import select
from threading import Lock
from time import monotonic
from typing import Generic, TypeAlias, TypeVar, get_args

import msgspec

from perdure import errors
from perdure.errors import InternalError, PerdureError
from perdure.model.codec import storable_text
from perdure.model.job import Claimed
from perdure.model.lifecycle import LONG, SHORT, TRACE, Failed, Outcome, Report, Succeeded, stripped
from perdure.ops.results import ParentResult

T = TypeVar("T")


class Load(msgspec.Struct, frozen=True, tag=True):
    """How a new process loads the app: where the app is, which modules and tasks it must have, and which database."""

    target: str
    """``module:name``, where the name may have dots."""
    modules: Sequence[str] = ()
    """Modules whose import registers tasks."""
    tasks: Sequence[str] = ()
    path: Sequence[str] = ()
    """The ``sys.path`` of the worker."""
    url: str | None = None
    """The URL of the database, if it differs from the URL that the module gives the app."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """Run this job. Messages about the job carry the same number."""

    number: int
    job: Claimed
    worker: str
    deadline: float | None
    parents: Sequence[ParentResult] | None = None
    """The parents of the job, if it is a step."""
    config: str | None = None


class Fault(msgspec.Struct, frozen=True):
    """An error that is sent to the other side."""

    name: str
    code: str
    message: str
    costs_attempt: bool = True

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        if isinstance(error, PerdureError):
            return cls(type(error).__name__, error.code, str(error), error.costs_attempt)
        return cls(InternalError.__name__, InternalError.code, f"{type(error).__name__} in the worker.")

    def error(self) -> PerdureError:
        """The error of the other side, as an error of the same class."""
        kind = getattr(errors, self.name, InternalError)
        # Do not call the constructor: some classes take other arguments than a message.
        error: PerdureError = kind.__new__(kind, self.message)
        error.code, error.costs_attempt = self.code, self.costs_attempt
        return error


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to a request of the child."""

    request: int
    cancel_requested: bool
    fault: Fault | None = None


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Stop the handler. The child then sends SIGTERM to its process group. Before this message, it ignores SIGTERM."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The child has loaded the app, with all its tasks."""


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    """The app cannot be loaded."""

    reason: str


class Reported(msgspec.Struct, frozen=True, tag=True):
    number: int
    report: Report


class Logged(msgspec.Struct, frozen=True, tag=True):
    number: int
    level: str
    message: str


class Save(msgspec.Struct, frozen=True, tag=True):
    """Save a checkpoint. The worker answers once the checkpoint is durable."""

    number: int
    request: int
    checkpoint: str


class Committing(msgspec.Struct, frozen=True, tag=True):
    """The handler has written its success in its own transaction and is about to commit it."""

    number: int
    request: int
    success: Succeeded


class RolledBack(msgspec.Struct, frozen=True, tag=True):
    """The transaction of an announced success (``Committing``) was rolled back."""

    number: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """How the handler ended. ``how``: the name of the outcome's class; None if the handler was stopped."""

    number: int
    how: str | None
    outcome: msgspec.Raw
    resident: int
    """Bytes of memory that the child holds."""

    @classmethod
    def of(cls, number: int, outcome: Outcome | None, *, resident: int) -> Ended:
        if outcome is None:
            return cls(number, None, msgspec.Raw(b"\xc0"), resident)
        try:
            encoded = msgspec.msgpack.encode(outcome := _shortened(outcome))
        except Exception:
            encoded = msgspec.msgpack.encode(outcome := _bare(outcome))
        return cls(number, type(outcome).__name__, msgspec.Raw(encoded), resident)

    def decoded(self) -> Outcome | None:
        return None if self.how is None else msgspec.msgpack.decode(self.outcome, type=_OUTCOMES[self.how])


FromWorker: TypeAlias = Load | Run | Answer | Stop
FromChild: TypeAlias = Loaded | LoadFailed | Reported | Logged | Save | Committing | RolledBack | Ended

_OUTCOMES: dict[str, type[Outcome]] = {kind.__name__: kind for kind in get_args(Outcome)}


def _shortened(outcome: Outcome) -> Outcome:
    """Cut the texts of a failure. A handler may raise an error with a gigabyte of text, or with an invalid text."""
    if not isinstance(outcome, Failed):
        return outcome
    return msgspec.structs.replace(
        outcome,
        code=None if outcome.code is None else storable_text(outcome.code, SHORT),
        message=storable_text(outcome.message, LONG),
        trace=None if outcome.trace is None else storable_text(outcome.trace, TRACE),
    )


def _bare(outcome: Outcome) -> Outcome:
    if isinstance(outcome, Failed):
        return Failed(outcome.lease, outcome.kind, message="Its message cannot be encoded.")
    if hasattr(outcome, "reason"):
        return msgspec.structs.replace(stripped(outcome), reason="Its reason cannot be encoded.")
    return stripped(outcome)


FRAME = 1024 * 1024
"""The most bytes of a frame. A message may have many frames, because a handler may enqueue any number of jobs."""
MORE = 1 << 31
"""A bit that is set in the length of each frame except the last frame of a message."""

_LENGTH = struct.Struct("!I")
_encoder = msgspec.msgpack.Encoder()


def packed(message: FromWorker | FromChild) -> bytes | bytearray:
    body = _encoder.encode(message)
    if len(body) <= FRAME:
        return _LENGTH.pack(len(body)) + body
    frames, view = bytearray(), memoryview(body)
    for start in range(0, len(body), FRAME):
        part = view[start : start + FRAME]
        frames += _LENGTH.pack(len(part) | (MORE if start + FRAME < len(body) else 0))
        frames += part
    return frames


_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)


class Stream(Generic[T]):
    """Splits the bytes that arrive into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder
        self._arrived = bytearray()
        self._begun = bytearray()
        """The first frames of a message whose last frame has not arrived."""

    @property
    def is_within_message(self) -> bool:
        return bool(self._arrived or self._begun)

    def feed(self, data: bytes) -> Iterator[T]:
        self._arrived += data
        while len(self._arrived) >= _LENGTH.size:
            length: int = _LENGTH.unpack_from(self._arrived)[0]
            end = _LENGTH.size + (length & ~MORE)
            if end > _LENGTH.size + FRAME:
                # A handler has written other bytes into the socket.
                raise msgspec.DecodeError("This is no message.")
            if len(self._arrived) < end:
                return
            self._begun += self._arrived[_LENGTH.size : end]
            del self._arrived[:end]
            if not length & MORE:
                body, self._begun = self._begun, bytearray()
                yield self._decoder.decode(body)


CHUNK = 256 * 1024

REST_WITHIN = 0.5
"""Seconds to wait for the rest of a message that has begun to arrive."""


class Channel:
    """The worker's end of the socket, in its event loop. It buffers messages that the child has not read yet."""

    def __init__(self, sock: socket.socket, on_message: Callable[[FromChild], None]) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._stream = Stream(_from_child)
        self._unsent = bytearray()
        self._loop.add_reader(sock, self._read)

    def send(self, message: FromWorker) -> bool:
        """Send a message. Return whether the child's end is still open."""
        if self._socket.fileno() < 0:
            return False
        self._unsent += packed(message)
        return self._write()

    def drain(self) -> None:
        """Handle all messages that have arrived. The child has died and sends no more."""
        while self._read():
            pass

    def read_rest(self) -> list[FromChild]:
        """All messages that have arrived and were not handled. Called from any thread, once the loop is given up."""
        messages: list[FromChild] = []
        until = monotonic() + REST_WITHIN
        with suppress(OSError, msgspec.MsgspecError):
            while True:
                # A long message does not fit into the socket's buffer, so its sender waits until we read.
                wait = max(0.0, until - monotonic()) if self._stream.is_within_message else 0.0
                if not select([self._socket], [], [], wait)[0] or not (data := self._socket.recv(CHUNK)):
                    return messages
                messages += self._stream.feed(data)
        return messages

    def _read(self) -> bool:
        """Read one chunk, and handle its messages. Return whether bytes had arrived.

        One call does not read all chunks, because the loop must serve other channels as well.
        """
        if self._socket.fileno() < 0:
            return False
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._socket)
            return False
        try:
            for message in self._stream.feed(data):
                self._on_message(message)
        except msgspec.MsgspecError:
            # A handler has written other bytes into the socket. Once the socket is closed, the child ends at once.
            self.close()
        return True

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _write(self) -> bool:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._loop.remove_writer(self._socket)
            return False
        del self._unsent[:sent]
        if self._unsent:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)
        return True


class ChildChannel:
    """The child's end of the socket, which blocks. Any thread may send. One thread reads."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._lock = Lock()

    def send(self, message: FromChild) -> None:
        data = packed(message)
        with self._lock:
            self._socket.sendall(data)

    def messages(self) -> Iterator[FromWorker]:
        """All messages until the worker closes its end or dies."""
        stream = Stream(_from_worker)
        while data := self._received():
            yield from stream.feed(data)

    def _received(self) -> bytes:
        try:
            return self._socket.recv(CHUNK)
        except OSError:
            return b""
