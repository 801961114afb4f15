"""Back-off: how long to wait before the next attempt."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from perdure.errors import InvalidOption
from perdure.model.job import SECOND, Span

MAX_DELAY: Span = 366 * 86_400 * SECOND
"""The longest delay: a year. A longer delay is a mistake, and a much longer delay would overflow."""


class Backoff(msgspec.Struct, frozen=True):
    """A back-off policy: ``min(base·2^(n-1), cap)`` seconds with full jitter before the n-th retry.

    A failure whose code is in ``codes`` waits exactly the seconds given there instead.
    """

    base: float = 5.0
    cap: float = 900.0
    codes: Mapping[str, float] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isinstance(self.codes, Mapping) and all(isinstance(code, str) for code in self.codes)):
            raise InvalidOption("Back-off codes must be a table of codes and seconds.")
        for name, seconds in (("base", self.base), ("cap", self.cap), *self.codes.items()):
            # Not math.isfinite(), which raises an error for an int that is too large for a float.
            if not (type(seconds) in (int, float) and 0 <= seconds <= MAX_DELAY // SECOND):
                raise InvalidOption(f"Back-off {name} must be a number of seconds from 0 to a year.")

    def delay(self, n: int, *, code: str | None = None, roll: float) -> Span:
        """The wait after the n-th failure. ``roll`` is a random number in [0, 1), for the jitter."""
        fixed = self.codes.get(code) if code is not None else None
        return _duration_us(fixed) if fixed is not None else int(self.ceiling(n) * roll)

    def ceiling(self, n: int) -> Span:
        """The longest wait after the n-th failure."""
        if self.base <= 0 or self.cap <= 0:
            return 0
        # Larger exponents than the one that reaches the cap are not used, because ldexp() would overflow. That exponent
        # is found by logarithms, because cap / base could overflow too.
        enough = max(math.ceil(math.log2(self.cap) - math.log2(self.base)), 0) + 1
        return _duration_us(min(math.ldexp(self.base, min(max(n, 1) - 1, enough)), self.cap))


DEFAULT_BACKOFF = Backoff()


def as_backoff(backoff: float | Backoff) -> Backoff:
    """Return the policy. A number becomes the ``base`` of a new policy, in seconds."""
    if isinstance(backoff, Backoff):
        return backoff
    policy = Backoff(base=backoff)
    return Backoff(base=policy.base, cap=max(policy.base, policy.cap))


_decode = msgspec.json.Decoder(Backoff).decode


def dump_backoff(backoff: Backoff) -> str:
    return msgspec.json.encode(backoff, order="deterministic").decode()


def load_backoff(text: str | None) -> Backoff:
    return DEFAULT_BACKOFF if text is None else _decode(text)


def _duration_us(seconds: float) -> Span:
    return round(seconds * SECOND)
