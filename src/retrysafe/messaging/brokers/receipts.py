"""The received and unsettled messages of a queue, and the time for which others certainly get none. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Receipts:
    """The handles of messages of one queue. Instants are seconds of any one clock.

    A message is invisible to others for the lease, from the instant at which it was asked for, or kept for longer.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._since: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[str]:
        return iter(self._since)

    def add(self, handle: str, asked: float) -> None:
        """A message has come, for which the service was asked then."""
        self._since[handle] = asked

    def settle(self, handle: str) -> None:
        self._since.pop(handle, None)

    def due(self, now: float) -> list[str]:
        """Those which the service is to be told to keep from others; not those which others may have."""
        third = self._lease / 3
        return [handle for handle, since in self._since.items() if since + third <= now < since + self._lease]

    def keep(self, handles: Iterable[str], asked: float) -> None:
        """The service keeps them, as it was asked then."""
        self._since.update((handle, asked) for handle in handles if handle in self._since)

    def have_lapsed(self, now: float) -> bool:
        """Tell whether another consumer may have one of them: what follows it must not be handed out before it."""
        return any(now >= since + self._lease for since in self._since.values())

    def clear(self) -> list[str]:
        handles = list(self._since)
        self._since.clear()
        return handles
