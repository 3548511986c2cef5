"""The history of a schedule: what each actor asked of the store, and what it heard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, get_args

from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.records import Micros
from tests.laboratory.histories import History, Kind, Operation
from tests.laboratory.simulation.acting import Actor
from tests.laboratory.simulation.messages import Message


class Recording:
    """Takes down messages to the store as steps of a history, on the simulated time."""

    def __init__(self, clock: Callable[[], Micros]) -> None:
        self._history = History(lambda: clock() * 1000)
        self._asked: dict[str, tuple[int, int]] = {}

    def sent(self, actor: Actor, message: Message) -> None:
        """An actor asks."""
        if _is_step(message):
            self._asked[actor.name] = (actor.lives, self._begin(actor.name, message))

    def doubled(self, message: Message) -> None:
        """The network will deliver a request once more, or has; nobody hears the answer."""
        if _is_step(message):
            self._begin("", message)

    def heard(self, actor: Actor, answer: Any) -> None:
        """An actor goes on, with an answer if it had asked."""
        life, number = self._asked.pop(actor.name, (0, 0))
        if life != actor.lives:
            return
        if not isinstance(answer, Exception):
            self._history.end(number, answer)
        elif isinstance(answer, StoreUnavailable) and answer.unsent:
            self._history.unsent(number)

    def swept(self, message: Message) -> None:
        """Forgotten records may have been removed, just now."""
        number = self._history.begin("", "sweep", b"", ())
        self._history.end(number, message.kind)

    def operations(self) -> list[Operation]:
        """Return the recorded operations."""
        return self._history.operations()

    def _begin(self, who: str, message: Message) -> int:
        return self._history.begin(who, cast(Kind, message.kind), message.key, message.arguments)


def _is_step(message: Message) -> bool:
    return message.kind in get_args(Kind) and message.kind != "sweep"
