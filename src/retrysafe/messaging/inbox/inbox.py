"""The inbox: handles messages that arrive at least once, with one effect for each message and consumer.

How a message is handled
------------------------
A consumer's handler is a claim on the message: its key is the message's source and id, its operation the name of the
consumer, its fingerprint a digest of type, key and payload. The boundary decides how the handler's writes and the
record of the message are kept together, as it does for any claim. `Handler` does this for each delivery:

    identify   the key and the fingerprint (`attempts.identify`). A message without an id cannot be recognised; the
               boundary's ``on_missing`` refuses it or lets it pass unguarded.
    begin      in the dead-letter store: read the counts of attempts at this message, and note that one begins.
               `InboxAttempt.decide_to_try` may decide here that the message is not tried: it is dead already, another
               consumer began it a moment ago, or it has to be tried alone because an earlier attempt died.
    claim      a message that was handled before ends here, as a duplicate. One that another consumer is handling is
               BUSY, and comes again.
    work       the handler runs once inside the claim. Its error rolls its transaction back, where it has one.
    judge      `InboxAttempt.after` and `InboxAttempt.outcome_of` turn the end of the claim into a `MessageOutcome`.
    conclude   in the dead-letter store: the attempt's note is cleared, counted as finished, or withdrawn; a message
               whose attempts are spent is moved to the dead letters. The `HandleResult` says whether to acknowledge the
               message, or after how many seconds it has to be delivered again.

Only after that is the message acknowledged at the broker. A crash before the acknowledgement means another delivery,
which finds the record and is a duplicate; a crash before the commit means another attempt.

Attempts are noted outside of the handler's transaction, because a note inside it would be rolled back with it. So two
numbers are known for each message: attempts that were begun, and attempts that ended. The difference counts crashes,
for which ``max_crashes`` is the limit; errors that ended an attempt have ``max_attempts``.

Batches (`batches`, `batch_plan`) handle many messages in one transaction, and split it after a failure until the
message at fault is alone. Sequences (`apply_if_newer`) keep the last applied number of an entity in the handler's own
transaction. `redrive` handles dead letters again. The procedures on the dead-letter store are in `procedures`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack
from weakref import WeakSet

from retrysafe.backends import registry
from retrysafe.backends.driver import arun, run
from retrysafe.backends.joining import join
from retrysafe.backends.sql.store import keeps_messages
from retrysafe.boundary import Boundary, exception_types, require_boundary
from retrysafe.entrypoint import CODEC, function_of
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.errors import SequenceGap
from retrysafe.messaging.inbox import procedures
from retrysafe.messaging.inbox.attempts import HandlerSettings, running_consumer
from retrysafe.messaging.inbox.batches import BatchHandler
from retrysafe.messaging.inbox.dead_letters import Letters
from retrysafe.messaging.inbox.handler import Handler
from retrysafe.messaging.inbox.stalls import Stalls
from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.keys import LONGEST, check_name, key_of
from retrysafe.protocol.messages import legible
from retrysafe.protocol.options import refuse_unknown
from retrysafe.protocol.ordering import LARGEST_SEQUENCE
from retrysafe.protocol.records import Duration
from retrysafe.protocol.redelivery_policy import RetryLimits
from retrysafe.protocol.requests import Program

P = ParamSpec("P")
R = TypeVar("R")
MOST = 1000
"""The limit of ``max_batch``: one statement names each message of a transaction."""
BATCH_BYTES = 4 << 20
"""The bytes of payloads and headers with which a batch ends, as a relay's does."""


class Inbox:
    """Handles each message once for each consumer, and says when it may be acknowledged.

    Arguments:
        boundary: where messages are handled once. With ``effects="transactional"`` the handler's writes commit with the
            record of the message. With "keyed" a message whose consumer died may be handled twice, under the same
            derived keys; with "external" it waits for a person. The window must be as long as the broker may deliver a
            message again.
        dead_letter_store: the database for attempts and dead letters; by default the boundary's store.

    Raises `ConfigurationError` for a boundary whose store cannot keep them, without ``dead_letter_store``.
    """

    def __init__(self, boundary: Boundary, *, dead_letter_store: Any = None) -> None:
        self.boundary = boundary
        self._entry = require_boundary(boundary).entrypoint
        backend = self._entry.backend if dead_letter_store is None else registry.connect(dead_letter_store)
        if backend is not self._entry.backend:
            backend.users += 1  # an operator that closes its connections leaves ours open
        self._letters = Letters(backend)
        self._consumers: set[str] = set()
        _living.add(self)

    # ------------------------------------------------------------ handlers

    def handler(self, consumer: str, **options: Unpack[Options]) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Decorate the function, sync or async, that handles this consumer's messages.

        It takes one `InboxMessage`. Its return value is not used; an exception rolls its transaction back, and
        the message comes again. ``consumer`` is its name: with a message's source and id it is the key, so that two
        consumers each handle every message. See `Options` for the others.

        Raises `ConfigurationError` for a second handler of the name, in any inbox of the process with keys of the same
        boundary, and for generator functions.
        """
        return self._decorator(consumer, options, lambda setting: Handler(setting, self._letters))

    def batch_handler(
        self, consumer: str, *, max_batch: int = 100, batch_bytes: int = BATCH_BYTES, **options: Unpack[Options]
    ) -> Callable[[Callable[P, R]], BatchHandler[P, R]]:
        """`handler` for messages that are handled one after the other in one transaction, up to ``max_batch`` of them.

        A `Subscription` ends a batch with the message that makes it ``batch_bytes`` or more, counted in payloads and
        headers.

        It needs ``effects="transactional"``: a transaction that fails is rolled back and handled again without the
        message at fault, so everything else that a handler does may be done again. On MySQL and MariaDB, and with a
        quota or encrypted results, each message has a transaction of its own.
        """
        return self._batch_handler(consumer, max_batch, batch_bytes, options, together=False)

    def set_handler(
        self, consumer: str, *, max_batch: int = 500, batch_bytes: int = BATCH_BYTES, **options: Unpack[Options]
    ) -> Callable[[Callable[P, R]], BatchHandler[P, R]]:
        """`batch_handler` for a function that takes the list of all fresh messages of a transaction.

        One that fails is split in halves, until the message at fault is alone.
        """
        return self._batch_handler(consumer, max_batch, batch_bytes, options, together=True)

    def _batch_handler(
        self, consumer: str, most: int, most_bytes: int, options: Options, *, together: bool
    ) -> Callable[[Callable[P, R]], BatchHandler[P, R]]:
        if self.boundary.effects != "transactional":
            raise ConfigurationError(
                f"A batch that fails is handled again, and boundary {self.boundary.name!r} has "
                f'effects="{self.boundary.effects}": what was done could not be undone. It needs "transactional".'
            )
        if not keeps_messages(self._entry.backend.store):
            raise ConfigurationError(
                f"A batch is claimed in one statement, which a {self._entry.backend.kind} store does not have. Handle "
                "messages one by one, or keep the boundary in SQLite, PostgreSQL, MySQL or MariaDB."
            )
        if not 1 <= most <= MOST:
            raise ConfigurationError(f"max_batch= is a number from 1 to {MOST}.")
        if most_bytes < 1:
            raise ConfigurationError("batch_bytes= is a number of bytes, at least 1.")

        def make(setting: HandlerSettings) -> BatchHandler[P, R]:
            return BatchHandler(setting._replace(together=together), self._letters, most, most_bytes)

        return self._decorator(consumer, options, make)

    def _decorator(
        self, consumer: str, options: Options, make: Callable[[HandlerSettings], Any]
    ) -> Callable[[Callable[..., Any]], Any]:
        refuse_unknown(options, HANDLER_OPTIONS)
        name = self._register(consumer)

        def decorate(function: Callable[..., Any]) -> Any:
            self._entry.take_operation(name, function, key="source and id of the message", codec=CODEC)
            made = make(self._settings(name, function, options))
            return functools.update_wrapper(made, function)

        return decorate

    def _settings(self, consumer: str, function: Callable[..., Any], options: Options) -> HandlerSettings:
        max_attempts, max_crashes, max_gaps = (
            options.get("max_attempts", 5),
            options.get("max_crashes", 3),
            options.get("max_gaps", 10),
        )
        counts: tuple[object, ...] = (max_attempts, max_crashes, max_gaps)
        if not all(isinstance(one, int) and one >= 1 for one in counts):
            raise ConfigurationError("max_attempts=, max_crashes= and max_gaps= are numbers from 1.")
        shortest = seconds_of(options.get("backoff_base", "500ms"), "backoff_base")
        backoff = Backoff(shortest, seconds_of(options.get("backoff_max", "60s"), "backoff_max"))
        wanted = function_of(function, options.get("parse"))
        limits = RetryLimits(max_attempts, max_crashes, max_gaps, backoff, RetryLimits().grace + self._entry.patience)
        stalls = Stalls(seconds_of(options.get("max_stall", "1d"), "max_stall"), time.monotonic)
        unavailable = exception_types(options.get("unavailable", ()), "unavailable")
        return HandlerSettings(self._entry, consumer, wanted, limits, options.get("digest", True), unavailable, stalls)

    # ------------------------------------------------------------ sequences

    def apply_if_newer(
        self, tx: Any, entity: str, sequence: int, *, strict: bool = False, first: int = 1, consumer: str | None = None
    ) -> bool:
        """Note in ``tx`` that this sequence of an entity is applied; False when it, or a newer one, was applied before.

        The latest wins: the handler skips an older one. With ``strict``, sequences are applied one after the other,
        beginning with ``first``; raises `SequenceGap` when one before it has not been: let that leave the handler.
        ``consumer`` is by default the one whose handler runs: each one keeps sequences of its own.
        """
        steps = self._advancing(entity, sequence, strict, first, consumer)
        joining = join(self._entry.backend, tx)
        if joining.execute is None:
            raise ConfigurationError("tx= belongs to async code: await aapply_if_newer().")
        self._entry.backend.check(joining.execute, joining.place)
        return _check_gap(entity, sequence, run(steps, joining.execute), first if strict else None)

    async def aapply_if_newer(
        self, tx: Any, entity: str, sequence: int, *, strict: bool = False, first: int = 1, consumer: str | None = None
    ) -> bool:
        """`apply_if_newer` in a transaction of async code."""
        steps = self._advancing(entity, sequence, strict, first, consumer)
        joining = join(self._entry.backend, tx)
        if joining.aexecute is None:
            raise ConfigurationError("tx= belongs to sync code: use apply_if_newer().")
        await self._entry.backend.acheck(joining.aexecute, joining.place)
        return _check_gap(entity, sequence, await arun(steps, joining.aexecute), first if strict else None)

    def skip(self, consumer: str, entity: str, sequence: int, *, actor: str = "", reason: str = "") -> bool:
        """Go on after this sequence of an entity, although it was not applied; False when it, or a newer one, was.

        For a consumer with strict sequences that cannot apply a message. The messages behind it, which wait in the dead
        letters, are handled when they are redriven. Emits ``sequence_skipped``.
        """
        steps = self._advancing(entity, sequence, strict=False, first=1, consumer=consumer)
        moved, _ = Letters(self._entry.backend).run(steps)
        return moved and self._report_skip(consumer, entity, sequence, actor, reason)

    async def askip(self, consumer: str, entity: str, sequence: int, *, actor: str = "", reason: str = "") -> bool:
        """`skip` on an event loop."""
        steps = self._advancing(entity, sequence, strict=False, first=1, consumer=consumer)
        moved, _ = await Letters(self._entry.backend).arun(steps)
        return moved and self._report_skip(consumer, entity, sequence, actor, reason)

    def _report_skip(self, consumer: str, entity: str, sequence: int, actor: str, reason: str) -> bool:
        fields = {"entity": legible(entity), "sequence": sequence, "actor": actor, "reason": reason}
        self._entry.emit("sequence_skipped", consumer, **fields)
        return True

    def _advancing(
        self, entity: str, sequence: int, strict: bool, first: int, consumer: str | None
    ) -> Program[tuple[bool, int | None]]:
        name = consumer or running_consumer()
        if name is None:
            raise ConfigurationError(
                "apply_if_newer() outside a handler needs consumer=: each keeps its own sequences."
            )
        given: Any = sequence
        if isinstance(given, bool) or not isinstance(given, int) or abs(given) > LARGEST_SEQUENCE:
            raise ConfigurationError(
                f"sequence= is {given!r}, and must be a whole number of at most 63 bits: a message without a sequence "
                "cannot be ordered."
            )
        inbox = Letters(self._entry.backend).inbox
        key = self._entry.lookup(key_of(entity), operation=f"{name} sequence")
        names = (self.boundary.name, name, legible(entity[:LONGEST]))
        return procedures.advance(inbox, key, names, sequence, first=first if strict else None)

    # ------------------------------------------------------------ names

    def _register(self, consumer: str) -> str:
        if callable(consumer):
            raise ConfigurationError('A handler needs the name of its consumer: @inbox.handler("inventory").')
        if not check_name(consumer, "consumer"):
            raise ConfigurationError("consumer= is empty: name the consumer of the messages.")
        if consumer in self._consumers:
            raise ConfigurationError(
                f"There is a handler {consumer!r} already: only one of them would handle a message."
            )
        self._consumers.add(consumer)
        return consumer


class Options(TypedDict, total=False):
    """The bounds of a handler's attempts, and the form of its messages.

    max_attempts: how many attempts may end by an error before the message is moved to the dead letters; by default 5.
    max_crashes: how many may end with their process; by default 3.
    max_gaps: how many may meet a `SequenceGap`; by default 10.
    backoff_base, backoff_max: bounds of the wait before a message is tried again: of the first one, doubled with each,
        and of the last; by default "500ms" and "60s". The wait is a random time between half of them and all.
    unavailable: exception types that say that something the handler needs cannot be reached, beside those that always
        do: `StoreUnavailable`, `BrokerUnavailable`, `ConnectionError`, and what drivers of PostgreSQL and MySQL raise
        for a lost connection. They spend no attempt: the message, and its lane, wait up to 30 seconds each time.
    max_stall: for how long in a row a message may meet such errors before they spend attempts too; by default "1d".
    parse: makes of the payload what the handler finds as ``message.data``, such as a model's ``model_validate``.
    digest: whether another payload, type or key under a used id is refused (it goes to the dead letters), as is the
        default; without, it is taken for a duplicate.
    """

    max_attempts: int
    max_crashes: int
    max_gaps: int
    backoff_base: Duration
    backoff_max: Duration
    unavailable: type[Exception] | Iterable[type[Exception]]
    max_stall: Duration
    parse: Callable[[Any], Any] | None
    digest: bool


HANDLER_OPTIONS = tuple(Options.__annotations__)


def _check_gap(entity: str, sequence: int, found: tuple[bool, int | None], first: int | None) -> bool:
    moved, last = found
    if first is not None and not moved and (last is None or sequence > last):
        missing = first if last is None else last + 1
        raise SequenceGap(f"{missing} of {entity!r} has not been applied.", last=last, entity=entity, missing=missing)
    return moved


def living() -> list[Inbox]:
    """The inboxes of this process."""
    return list(_living)


_living: WeakSet[Inbox] = WeakSet()
