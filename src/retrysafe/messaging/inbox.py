"""The inbox: messages that arrive at least once, applied once each by every consumer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from retrysafe import connect
from retrysafe.boundary import Boundary
from retrysafe.core.backoff import Backoff
from retrysafe.core.durations import seconds as seconds_of
from retrysafe.core.inboxing import Trials
from retrysafe.core.keys import check_name
from retrysafe.errors import ConfigurationError
from retrysafe.handling import function_of
from retrysafe.messaging.attempts import Settings
from retrysafe.messaging.handler import Handler
from retrysafe.messaging.letters import Letters
from retrysafe.types import Duration

P = ParamSpec("P")
R = TypeVar("R")


class Inbox:
    """Applies each message once: its id, its business write and its ack in the right order.

    Arguments:
        boundary: where messages are handled once. With ``effects="transactional"`` the handler's writes commit with the
            record of the message; with "keyed" and "external" they do not, and a message whose consumer died may be
            handled twice ("keyed": under the same derived keys), or waits for a person ("external"). Its window is at
            least as long as the broker may hand a message out again.
        letters: the database for attempts and dead letters; by default the boundary's store, which is one for that.

    Raises `ConfigurationError` for a boundary whose store cannot keep them, without ``letters``.
    """

    def __init__(self, boundary: Boundary, *, letters: Any = None) -> None:
        self.boundary = boundary
        self._letters = Letters(boundary.backend if letters is None else connect.connect(letters))
        self._consumers: set[str] = set()

    def handler(
        self,
        consumer: str,
        *,
        attempts: int = 5,
        crashes: int = 3,
        gaps: int = 10,
        pause: Duration = "500ms",
        longest_pause: Duration = "60s",
        parse: Callable[[Any], Any] | None = None,
        digest: bool = True,
    ) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Decorate the function, sync or async, that handles this consumer's messages.

        It takes one `Received` message. What it returns is not used; what it raises rolls its transaction back, and the
        message comes again.

        consumer: its name. With a message's source and id it is the key: two consumers each handle every message.
        attempts: how many attempts may end by an error before the message is moved to the dead letters.
        crashes: how many may end with their process.
        gaps: how many may meet a `SequenceGap`.
        pause, longest_pause: bounds of the wait before a message is tried again: of the first one, doubled with each,
            and of the last. The wait is a random time between half of them and all.
        parse: makes of the payload what the handler finds as ``message.data``, such as a model's ``model_validate``.
        digest: whether another payload, type or key under a used id is refused (it goes to the dead letters); without,
            it is taken for a duplicate.

        Raises `ConfigurationError` for a second handler of the name, and for generator functions.
        """
        if attempts < 1 or crashes < 1 or gaps < 1:
            raise ConfigurationError("attempts=, crashes= and gaps= are numbers from 1.")
        backoff = Backoff(seconds_of(pause, "pause"), seconds_of(longest_pause, "longest_pause"))
        trials = Trials(attempts, crashes, gaps, backoff)
        name = self._taken(consumer)

        def decorate(function: Callable[P, R]) -> Handler[P, R]:
            setting = Settings(self.boundary, name, function_of(function, parse), trials, digest)
            return functools.update_wrapper(Handler(setting, self._letters), function)

        return decorate

    def _taken(self, consumer: str) -> str:
        if not check_name(consumer, "consumer"):
            raise ConfigurationError("consumer= is empty: name who handles the messages.")
        if consumer in self._consumers:
            raise ConfigurationError(f"There is a handler {consumer!r} already: a message would be handled by one alone.")
        self._consumers.add(consumer)
        return consumer
