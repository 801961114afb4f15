"""A claim that tries the front whenever it can."""

from __future__ import annotations

from perdure.ops.claim import Appetite, Claims
from perdure.worker.front import Front


class Eager(Front):
    def __init__(self, *, worth: bool) -> None:
        super().__init__(worth=worth)
        self.likely = worth

    def learn(self, appetite: Appetite, claims: Claims) -> None:
        self.likely = self._worth and not (appetite.front and claims.more)
