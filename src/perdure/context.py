"""What a running job sees of itself."""

from __future__ import annotations

from contextvars import ContextVar


class Context:
    """Passed to a handler that has a parameter with the default ``CONTEXT``.

    A plain call of a task gets one of its own, outside any job: what it says goes nowhere.
    """

    __slots__ = ("attempt", "cancel_requested", "checkpoint", "job", "run", "tenant", "worker")

    def __init__(
        self,
        *,
        job: str | None = None,
        run: int = 1,
        attempt: int = 1,
        tenant: str | None = None,
        worker: str | None = None,
        checkpoint: object = None,
    ) -> None:
        self.job = job
        self.run = run
        self.attempt = attempt
        self.tenant = tenant
        self.worker = worker
        self.checkpoint = checkpoint
        self.cancel_requested = False

    @staticmethod
    def current() -> Context:
        """The context of the job that runs here; one of its own outside any."""
        return _current.get(None) or Context()

    def progress(self, done: int | None = None, total: int | None = None, message: str | None = None) -> None:
        """Say how far the job is."""

    def stage(self, name: str) -> None:
        """Say what the job is about to do."""

    def log(self, message: str, *, level: str = "info") -> None:
        """Leave a line with the job."""


_current: ContextVar[Context] = ContextVar("perdure_context")

CONTEXT = Context()
"""The default of a context parameter: it lets callers and type checkers leave it out."""
