"""The unsettled deliveries of a channel, and the fewest frames that settle some of them. Pure."""

from __future__ import annotations

from collections.abc import Collection


class Outstanding:
    """Deliveries of one AMQP channel, which numbers them from 1."""

    def __init__(self) -> None:
        self._unsettled: set[int] = set()
        self._arrived = self._highest = 0

    def __len__(self) -> int:
        return len(self._unsettled)

    def arrive(self, number: int) -> None:
        self._unsettled.add(number)
        self._arrived += 1
        self._highest = max(self._highest, number)

    def settle(self, numbers: Collection[int]) -> tuple[int | None, list[int]]:
        """The number up to which one frame settles all, if any, and those that need a frame each.

        Nothing that is handled still, or on its way from the wire to us, may be settled along with others.
        """
        self._unsettled.difference_update(numbers)
        oldest = min(self._unsettled, default=self._highest + 1)
        if self._arrived != self._highest:
            return None, sorted(numbers)
        upto = max((number for number in numbers if number < oldest), default=None)
        return upto, sorted(number for number in numbers if number > oldest)
