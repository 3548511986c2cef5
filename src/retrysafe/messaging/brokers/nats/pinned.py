"""One partition of a topic: its durable consumer, which one client of all that ask is pinned to, and what that holds.

The server hands a partition to the client that it has pinned, and to another one when that one falls silent. It does
not wait for what the former has not settled, and would hand out later messages before it. So a new owner holds back
what it gets until everything that is unsettled is its own: settled by the former owner, if that is alive and says so,
or handed out again after the lease. It can only count what is unsettled. So a former owner must never settle what may
have been handed out again: after a lease without a word to the server, and after its connection, it gives all up.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg

from retrysafe.messaging.brokers.nats.messages import envelope_from
from retrysafe.protocol.messages import Delivery

_SURE = 0.8
"""The part of a lease for which a message is certainly ours; the rest is for what is under way to the server."""
GROUP = "retrysafe"
"""The priority group: all clients of a durable consumer are in it."""
_PIN = "Nats-Pin-Id"
_WRONG_PIN, _CONFLICT, _NOBODY = "423", "409", "503"
_TOO_LARGE, _DELETED = "Message Size Exceeds MaxBytes", "Deleted"


_turns = itertools.count(1)
"""Numbers for the turns of all consumers: one that was closed has begun anew, and knows nothing of before."""


@dataclass
class _PinnedMessage:
    """A message that is not settled: where its answer goes, its size, and when the server last heard of it."""

    turn: int
    reply: str
    size: int
    touched: float


@dataclass(frozen=True)
class ReplyTag:
    """A message of a partition by its place in the stream, in one of the turns in which the partition was ours."""

    place: str
    turn: int
    sequence: int


class PinnedPartition:
    """A consumer's state of one partition. Instants are seconds of one clock."""

    def __init__(self, place: str, durable: str, lease: float) -> None:
        self.place, self.durable = place, durable
        self.inbox = self.address = ""
        self.held: dict[int, _PinnedMessage] = {}
        self.turn = next(_turns)
        """Another one after each time that the partition was won or lost."""
        self.is_gone = False
        """The stream or the durable consumer is gone, or has no leader."""
        self._lease = lease
        self.pin = ""
        """The server's name for us, if it has pinned us."""
        self._requests, self._outstanding, self._request_ends = 0, 0, 0.0
        """The number of requests so far; the messages that the latest waits for, and the time at which it ends."""
        self.rests_until = 0.0
        """Nothing is asked for until then, so that another consumer is pinned."""
        self._owned = False
        """All that is unsettled is ours; until then `_newcomers` are held back."""
        self._newcomers: dict[int, Delivery] = {}
        self._unsettled_of_others = 0
        self._next_is_too_large = self._last_was_redelivered = False
        self._bytes = 0
        self._counted: tuple[int, int] | None = None

    # ------------------------------------------------------------ asking

    def request(self, now: float, prefetch: int, most: int, spared: int = 0) -> tuple[str, bytes] | None:
        """Return the next request and the subject of its answers, lest more is held than so many messages and bytes.

        ``spared``: those of the held that do not count. None: nothing now, though a pin ends when nothing is asked for
        during a lease.
        """
        every = self._lease / 3
        if now < self.rests_until or (self._outstanding and now < self._request_ends + every):
            return None
        batch = self._count_wanted(now, prefetch, most, spared)
        if batch < 1:
            return None
        asked: dict[str, Any] = {"batch": batch, "expires": int(every * 1e9), "group": GROUP}
        if self._owned and not (self._next_is_too_large and not self.held):
            asked["max_bytes"] = most - self._bytes
        if self.pin:
            asked["id"] = self.pin
        self._requests += 1
        self._outstanding, self._request_ends = batch, now + every
        return f"{self.inbox}.{self._requests}", json.dumps(asked).encode()

    def _count_wanted(self, now: float, prefetch: int, most: int, spared: int) -> int:
        """The number of messages to ask for; few until all that is unsettled is ours: what others left, or one."""
        if not self._owned:
            held_back = self._newcomers and now < self._request_ends and not self._last_was_redelivered
            return 0 if held_back else max(1, self._unsettled_of_others)
        if self._next_is_too_large and not self.held:
            return 1
        room = prefetch + spared - len(self.held)
        return 0 if self._bytes >= most or (room < prefetch // 4 and now < self._request_ends) else room

    def reconnect(self, inbox: str) -> None:
        """Ask anew: answers to what was asked before are lost."""
        self.inbox, self._outstanding, self.is_gone = inbox, 0, False

    # ------------------------------------------------------------ answers

    def arrive(self, message: Msg, now: float) -> tuple[Delivery | None, list[str]]:
        """A delivery to be handed out, and the replies of messages that are given up because the partition was lost."""
        headers = message.headers or {}
        if not message.reply:  # a message of the stream has where to settle it, and headers of its publisher
            return None, self._end_request(message.subject, headers.get("Status", ""), headers.get("Description", ""))
        given_up = self._record_pin(headers.get(_PIN, ""))
        self._outstanding = max(0, self._outstanding - 1)
        told = message.metadata
        sequence = told.sequence.stream
        if sequence in self.held:  # the server has not heard of it in time
            self.held[sequence].reply, self.held[sequence].touched = message.reply, now
            return None, given_up
        envelope = envelope_from(headers, message.data, self.place)
        self.held[sequence] = _PinnedMessage(self.turn, message.reply, envelope.size, now)
        self._bytes += envelope.size
        self._next_is_too_large = False
        redelivered = (told.num_delivered or 1) > 1
        self._last_was_redelivered = redelivered  # those come first: there may be more of them
        delivery = Delivery(envelope, ReplyTag(self.place, self.turn, sequence), self.place, redelivered)
        if self._owned:
            return delivery, given_up
        self._newcomers[sequence] = delivery
        return None, given_up

    def _end_request(self, subject: str, status: str, description: str) -> list[str]:
        """A request has ended before all was handed out that was asked for.

        Two that wait for each other's messages would wait for ever: who is not pinned any more gives up what it holds
        back.
        """
        if subject != f"{self.inbox}.{self._requests}":
            return []
        self._outstanding = 0
        if status == _WRONG_PIN:
            self.pin, self._request_ends = "", 0.0
            return [] if self._owned else self._drop_held()
        if status == _NOBODY:
            self.is_gone = True
        elif status == _CONFLICT:
            self._next_is_too_large = _TOO_LARGE in description
            self.is_gone = _DELETED in description
        return []

    def _record_pin(self, pin: str) -> list[str]:
        """Record the pin. A new pin means that another client may have held the partition meanwhile."""
        if pin == self.pin and pin:
            return []
        self.pin, self._owned, self._unsettled_of_others = pin, False, 0
        return self._drop_held()

    # ------------------------------------------------------------ taking over

    @property
    def is_idle(self) -> bool:
        """True if nothing more comes until it is asked for."""
        return not self._outstanding

    @property
    def is_taking_over(self) -> bool:
        """True if something is held back until it is known who holds what came before."""
        return bool(self._newcomers)

    def own(self, unsettled: int, held: int, turn: int) -> list[Delivery]:
        """Return the messages that can be handed out now, in stream order, given the number of unsettled ones.

        ``held`` and ``turn``: how many were held, and in which turn, when that was asked; later ones are not counted.
        """
        if turn != self.turn:
            return []
        self._unsettled_of_others = unsettled - held
        if self._unsettled_of_others > 0:
            return []
        self._owned = True
        found = [self._newcomers[sequence] for sequence in sorted(self._newcomers)]
        self._newcomers.clear()
        return found

    def count_removed(self, delivered: int, pending: int) -> int:
        """Return how many messages, at least, the stream has lost since the last count, unseen.

        So many deliveries were made, and so many messages have not been handed out yet.
        """
        before, self._counted = self._counted or (delivered, pending), (delivered, pending)
        return max(0, before[1] - pending - (delivered - before[0]))

    # ------------------------------------------------------------ holding

    def settle(self, tag: ReplyTag, now: float) -> str | None:
        """Return the subject on which to report a settled message; None: it is not ours any more."""
        held = self.held.get(tag.sequence)
        if held is None or held.turn != tag.turn or self._is_over(held, now):
            return None
        del self.held[tag.sequence]
        self._bytes -= held.size
        return held.reply

    def give_up_lapsed(self, now: float) -> bool:
        """Give up all that is held if the server may have handed some of it out again; tell whether it was so."""
        if not any(self._is_over(held, now) for held in self.held.values()):
            return False
        self.give_up()
        return True

    def give_up(self) -> list[str]:
        """It is not ours any more, or may not be; the replies of what was not settled."""
        return self._record_pin("")

    def _is_over(self, held: _PinnedMessage, now: float) -> bool:
        return now > held.touched + self._lease * _SURE

    def in_progress(self, now: float) -> Iterator[str]:
        """Yield the subjects on which to report messages in progress, before their lease ends."""
        for held in self.held.values():
            if now >= held.touched + self._lease / 3:
                held.touched = now
                yield held.reply

    def _drop_held(self) -> list[str]:
        """Give everything up; the replies of what is not settled."""
        given_up = [held.reply for held in self.held.values()]
        self.turn = next(_turns)
        self.held.clear()
        self._newcomers.clear()
        self._bytes = 0
        return given_up
