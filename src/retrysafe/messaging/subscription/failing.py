"""Keys of which one message after another fails: each further one is tried once, so that they end and others go on."""

from __future__ import annotations

from retrysafe.protocol.redelivery_policy import DONE, HandleResult, MessageOutcome

DEAD_IN_A_ROW = 2
"""Messages of a lane that became dead letters one after the other, by attempts that failed."""
_REMEMBERED = 10_000


class FailingLanes:
    """Counts the dead letters of each lane since the last handled message. Kept in memory."""

    def __init__(self) -> None:
        self._retried: set[int] = set()
        self._dead: dict[int, int] = {}

    def gives_up(self, lane: int, one: HandleResult) -> bool:
        """Tell whether a message that is to be tried again is given up, since those before it in its lane were."""
        failed = one.became is MessageOutcome.FAILED and one.again is not None
        return failed and self._dead.get(lane, 0) >= DEAD_IN_A_ROW

    def note(self, lane: int, one: HandleResult) -> bool:
        """Note what became of a message; whether the lane has just failed so often that the next ones are tried once.

        A message that is refused at its first attempt, such as for its payload, says nothing about its key.
        """
        if one.became in DONE:
            self._dead.pop(lane, None)
        elif one.became is MessageOutcome.FAILED:
            self._retried.add(lane)
            return False
        elif one.became is MessageOutcome.DEAD and lane in self._retried:
            if len(self._dead) >= _REMEMBERED:
                self._dead.clear()
            self._dead[lane] = self._dead.get(lane, 0) + 1
            self._retried.discard(lane)
            return self._dead[lane] == DEAD_IN_A_ROW
        self._retried.discard(lane)
        return False
