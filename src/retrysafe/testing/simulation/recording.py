"""A simulation's history: what was asked of the store and answered, for `retrysafe.testing.linearizability`."""

from __future__ import annotations

from typing import Any, cast, get_args

from retrysafe.errors import StoreUnavailable
from retrysafe.testing.histories import History, Kind, Operation
from retrysafe.testing.simulation.acting import Actor
from retrysafe.testing.simulation.messages import Message
from retrysafe.testing.simulation.world import Time

_KINDS = frozenset(get_args(Kind))


class Recording:
    """Takes down what the network tells."""

    def __init__(self, time: Time) -> None:
        self._history = History(lambda: time.now * 1000)
        self._asked: dict[str, tuple[int, int]] = {}

    def operations(self) -> list[Operation]:
        """What was recorded."""
        return self._history.operations()

    def asked(self, actor: Actor, message: Message) -> None:
        """A request was sent, by one life of an actor."""
        if message.kind in _KINDS:
            self._asked[actor.name] = (actor.lives, self._begun(actor.name, message))

    def answered(self, actor: Actor, answer: Any) -> None:
        """The actor has heard something."""
        life, number = self._asked.pop(actor.name, (None, 0))
        if life != actor.lives:
            return
        if not isinstance(answer, Exception):
            self._history.end(number, answer)
        elif isinstance(answer, StoreUnavailable) and answer.unsent:
            self._history.unsent(number)

    def repeated(self, message: Message) -> None:
        """It may happen a second time, and nobody hears of it."""
        if message.kind in _KINDS:
            self._begun("", message)

    def swept(self, limit: int) -> None:
        """A sweep ran in between."""
        number = self._history.begin("", "sweep", b"", (limit,))
        self._history.end(number, 0)

    def _begun(self, who: str, message: Message) -> int:
        return self._history.begin(who, cast("Kind", message.kind), message.key, message.arguments)
