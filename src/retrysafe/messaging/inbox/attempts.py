"""One attempt at one message: its claim, its handler's work, and the judgement of how it ended."""

from __future__ import annotations

import errno
import random
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

from retrysafe.backends.sql.drivers.base import is_unreachable, sqlstate
from retrysafe.claims.claim import Claim
from retrysafe.claims.decorator import refuse_unfinished
from retrysafe.claims.observers import logger
from retrysafe.entrypoint import CODEC, EntryPoint, Function
from retrysafe.errors import (
    ConfigurationError,
    InProgress,
    InvalidKey,
    KeyExpired,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    Postponed,
    QuotaExceeded,
    ResultUnreadable,
    RetrysafeError,
    RetryTransaction,
    StoredFailure,
    StoreUnavailable,
)
from retrysafe.messaging.errors import BrokerUnavailable, MessageDead, MessageUnreadable, SequenceGap
from retrysafe.messaging.inbox.message import InboxMessage, data_of
from retrysafe.messaging.inbox.procedures import HandlerOutcome
from retrysafe.messaging.inbox.stalls import Stalls
from retrysafe.protocol import keys
from retrysafe.protocol.exception_groups import every, leaves, unwrap
from retrysafe.protocol.fingerprint import UNCHECKED, Fingerprint, of_parts
from retrysafe.protocol.messages import Arrival, Envelope, distinct, legible, milliseconds_of
from retrysafe.protocol.redelivery_policy import (
    KILLS,
    SUSPECT,
    Counts,
    MessageOutcome,
    RetryLimits,
    crash_pause,
    is_suspect,
)

ALWAYS = (StoreUnavailable, BrokerUnavailable, ConnectionError)
"""A `TimeoutError` is not among them: work that takes too long may be the message's own."""
_NETWORK = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, socket.EAI_AGAIN}


def is_unavailable(error: BaseException, named: tuple[type[Exception], ...]) -> bool:
    """Tell whether an error is of the ``named`` types or one of those that always count; a group, if all in it do."""
    return all(
        isinstance(leaf, (*ALWAYS, *named))
        or (isinstance(leaf, OSError) and leaf.errno in _NETWORK)
        or is_unreachable(leaf)
        for leaf in leaves(error)
    )


_SHUT_DOWN = "57P"
"""The beginning of SQLSTATEs of a server that ends its connections, or of a person who does."""
HANDLED: dict[str, Any] = {"handled": True}
"""The stored result of a message that a handler has handled."""
SHORTEST_PAUSE = 0.1
_LONGEST_TRACE = 20_000
"""Characters of a traceback that are logged at most: a message of an error may be as long as what it is about."""


_consumer: ContextVar[str | None] = ContextVar("retrysafe_consumer", default=None)


def running_consumer() -> str | None:
    """The consumer whose handler runs in this task or thread; a claim inside it has an operation of its own."""
    return _consumer.get()


@contextmanager
def handler_of(consumer: str) -> Iterator[None]:
    """The handler of a consumer runs.

    ``sys.exit`` in a thread ends nothing but this message, which is tried again and given up as after any other error:
    its consumer would die of it, uncounted, each time it comes. In the main thread a signal may have ended the program.
    """
    before = _consumer.set(consumer)
    try:
        yield
    except SystemExit as error:
        if threading.current_thread() is threading.main_thread():
            raise
        raise RuntimeError(f"The handler has called sys.exit({error.code!r}).") from error
    finally:
        _consumer.reset(before)


_ENDED_WITHIN = (ConfigurationError, LeaseLost, StoreUnavailable)
"""Errors on leaving the claim when its handler has aborted or ended the transaction without an error of its own.

Or when the transaction was lost under it, such as by idle_in_transaction_session_timeout: work that outlasts the
server's patience would be run for ever. In an outage of the store the attempt cannot be noted, and is not counted. The
same holds when the handler meets the loss itself, although its error reads as an outage.
"""


class HandlerSettings(NamedTuple):
    """The settings that all messages of a handler share."""

    entry: EntryPoint
    consumer: str
    function: Function
    limits: RetryLimits
    digest: bool
    unavailable: tuple[type[Exception], ...]
    """Errors of the function, beside those that always count, when it cannot reach something that it needs."""
    stalls: Stalls
    together: bool = False
    """True if the function takes a list of messages."""


class Identity(NamedTuple):
    """The identity of a message: the key of its claim, None for one without an id, and its fingerprint."""

    key: str | None
    fingerprint: Fingerprint | bytes


def identify(setting: HandlerSettings, envelope: Envelope) -> Identity:
    """The identity of a message: its source and id, and a digest of what must not differ under them."""
    key = key_of(envelope.source, envelope.id) if envelope.id else None
    return Identity(key, _digest(envelope) if setting.digest else UNCHECKED)


def _digest(envelope: Envelope) -> Fingerprint:
    key = b"" if envelope.key is None else b"=" + envelope.key.encode()
    return of_parts({"type": envelope.type.encode(), "key": key, "payload": envelope.payload})


def key_of(source: str, message_id: str) -> str:
    """The idempotency key of a message; sources and ids of two messages never run together."""
    return keys.key_of(f"{len(source)}:{source}{message_id}")


def arrival_of(setting: HandlerSettings, envelope: Envelope, identity: Identity) -> Arrival:
    """The message as the inbox knows it; one without an id by its content."""
    key = identity.key or keys.hash_of(b"\0".join((envelope.topic.encode(), envelope.payload)))
    record_key = setting.entry.lookup(key, operation=setting.consumer)
    return Arrival(record_key, record_key, setting.entry.name, setting.consumer, envelope)


class InboxAttempt:
    """One delivery of one message. ``alone``: whether nothing else is handled meanwhile, as far as its owner minds."""

    def __init__(
        self,
        setting: HandlerSettings,
        envelope: Envelope,
        *,
        late: bool = False,
        alone: bool = True,
        identity: Identity | None = None,
    ) -> None:
        envelope = _legible(envelope)
        self.identity = identify(setting, envelope) if identity is None else identity
        self.arrival = arrival_of(setting, envelope, self.identity)
        self.raised: BaseException | None = None
        """The error that the handler raised, to tell it from errors of the claim."""
        self.failure: BaseException | None = None
        """The permanent failure that the handler declared."""
        self.ran = False
        """True if the handler has run to its end."""
        self.lost = False
        """True if the handler has raised, and its transaction's connection was gone."""
        self.counted = False
        """True if it is noted that the attempt begins."""
        self.late = late or is_late(envelope, setting.entry.window)
        self._setting = setting
        self._envelope = envelope
        self._alone = alone
        self._doomed = False

    # ------------------------------------------------------------ the claim and the work

    def claim(self) -> Claim:
        """The claim of the message; raises `InvalidKey` for one without an id, unless its boundary lets such pass."""
        key, print_ = self.identity
        return self._setting.entry.open(key, operation=self._setting.consumer, fingerprint=print_, codec=CODEC)

    def work(self, claim: Claim) -> None:
        if self._gives_up(claim):
            return
        if self._setting.function.is_async:
            claim.not_executed()
            raise ConfigurationError(f"The handler {self._setting.consumer!r} is a coroutine function: use ahandle().")
        try:
            with handler_of(self._setting.consumer):
                answer = refuse_unfinished(claim, self._setting.function.call(self._message_for(claim)))
            self.ran = True
        except BaseException as error:
            self.raised, self.lost = error, is_lost(claim.tx, error)
            raise
        finally:
            self.failure = claim._signals.failure
        claim.result = self.result_of(answer)

    async def awork(self, claim: Claim) -> None:
        """`work` for a coroutine function."""
        if self._gives_up(claim):
            return
        try:
            with handler_of(self._setting.consumer):
                answer = await self._setting.function.acall(self._message_for(claim))
                refuse_unfinished(claim, answer)
            self.ran = True
        except BaseException as error:
            self.raised, self.lost = error, is_lost(claim.tx, error)
            raise
        finally:
            self.failure = claim._signals.failure
        claim.result = self.result_of(answer)

    def result_of(self, answer: Any) -> Any:
        """The result that is stored of what the handler has returned, which of a message is not used."""
        return HANDLED

    def _gives_up(self, claim: Claim) -> bool:
        """Give up a message that has crashed too many consumers; inside its claim, when no other consumer has it."""
        if self._doomed:
            failure = MessageDead(KILLS)
            self.failure = failure
            claim._fail_keeping_steps(failure)
        return self._doomed

    def _message_for(self, claim: Claim) -> Any:
        """The message as its handler takes it, which has not run if that fails."""
        try:
            received = self.message_for(claim.tx, claim)
        except BaseException:
            claim.not_executed()
            raise
        return [received] if self._setting.together else received

    def message_for(self, tx: Any, claim: Claim | None = None) -> InboxMessage[Any]:
        """The message for its handler; raises `MessageUnreadable`, and what ``parse=`` raises."""
        return InboxMessage(self._envelope, data_of(self._envelope, self._setting.function.parse), tx, claim, self.late)

    # ------------------------------------------------------------ how it is judged

    def decide_to_try(self, counts: Counts) -> HandlerOutcome | None:
        """The outcome of a message that is not tried; None: it is tried, or given up, in its claim."""
        if counts.dead:
            return HandlerOutcome(MessageOutcome.DEAD, "It is in the dead letters.", before=True)
        wait = crash_pause(counts, self._setting.limits)
        if wait:
            return HandlerOutcome(MessageOutcome.BUSY, "Others have begun it.", again=pause(wait))
        if wait is None and is_suspect(counts) and not self._alone:
            return HandlerOutcome(MessageOutcome.SUSPECT, SUSPECT, again=0.0)
        self._doomed, self.counted = wait is not None, wait is None
        return None

    def after(self, claim: Claim) -> HandlerOutcome:
        """The outcome after the claim was left without an error."""
        if claim.replayed:
            return HandlerOutcome(MessageOutcome.DUPLICATE)
        if self.failure is not None:
            return HandlerOutcome(MessageOutcome.DEAD, KILLS if self._doomed else error_text(self.failure))
        return HandlerOutcome(MessageOutcome.HANDLED if self.identity.key else MessageOutcome.PASSED)

    def outcome_of(self, error: Exception | Postponed) -> HandlerOutcome:
        """The outcome after an error; raises the error again if the message did not cause it."""
        if isinstance(error, Postponed):
            return HandlerOutcome(MessageOutcome.BUSY, error.detail, again=pause(error.retry_after))
        if error is not self.raised and not (isinstance(error, RetryTransaction) and self.raised is not None):
            return self._outcome_of_claim(error)
        text = error_text(error)
        gap = leaves(error)[0]
        if isinstance(gap, SequenceGap) and every(error, SequenceGap):
            return HandlerOutcome(MessageOutcome.GAP, text, gap=self._place(gap.entity, gap.missing))
        if self.failure is not None or self._is_permanent(error):
            return HandlerOutcome(MessageOutcome.DEAD, text)
        if not self.lost and is_unavailable(error, self._setting.unavailable):
            rest = self._setting.stalls.pause(self.arrival.identity, random.random())
            if rest is not None:
                return HandlerOutcome(MessageOutcome.STALLED, text, again=rest)
        return HandlerOutcome(MessageOutcome.FAILED, text)

    def _outcome_of_claim(self, error: Exception) -> HandlerOutcome:
        if isinstance(error, InProgress | QuotaExceeded):
            return HandlerOutcome(MessageOutcome.BUSY, again=pause(error.retry_after))
        if self.ran and self._setting.entry.effects == "transactional" and isinstance(error, _ENDED_WITHIN):
            return HandlerOutcome(MessageOutcome.FAILED, error_text(error))
        if isinstance(error, LeaseLost):
            return HandlerOutcome(MessageOutcome.BUSY, error.detail, again=pause(1.0))
        if isinstance(error, KeyReused):
            self._set_apart()
            return HandlerOutcome(MessageOutcome.DEAD, error_text(error))
        if isinstance(error, StoredFailure) or (isinstance(error, ResultUnreadable) and error.failed):
            return HandlerOutcome(MessageOutcome.DEAD, error_text(error), before=True)
        if isinstance(error, ResultUnreadable):
            return HandlerOutcome(MessageOutcome.DUPLICATE)  # there is an answer, so its work has ended
        if isinstance(error, OutcomeUnknown | KeyExpired | InvalidKey):
            return HandlerOutcome(MessageOutcome.DEAD, error_text(error))
        if isinstance(error, RetrysafeError) and not isinstance(error, RetryTransaction):
            raise error
        return HandlerOutcome(MessageOutcome.FAILED, error_text(error))

    def _is_permanent(self, error: Exception) -> bool:
        permanent = self._setting.entry.is_permanent
        return permanent(error) or all(isinstance(leaf, MessageUnreadable) or permanent(leaf) for leaf in leaves(error))

    def _set_apart(self) -> None:
        """A second payload under a used id is a dead letter of its own; the first one keeps its own."""
        payload = self.identity.fingerprint
        other = keys.hash_of(self.arrival.record_key + (payload if isinstance(payload, bytes) else payload.plain))
        apart = self._setting.entry.lookup(other, operation=self._setting.consumer)
        self.arrival = self.arrival._replace(identity=apart)

    def settle(self, error: str) -> Callable[[Claim], None]:
        """The work that settles the key of a message that was given up."""

        def fail(claim: Claim) -> None:
            claim._fail_keeping_steps(MessageDead(error))

        return fail

    @property
    def place(self) -> bytes | None:
        """The identity of the message's place in the sequence of its key; None if it has none."""
        return self._place(self._envelope.key, self._envelope.sequence)

    def _place(self, entity: str | None, sequence: int | None) -> bytes | None:
        if entity is None or sequence is None:
            return None
        return self._setting.entry.lookup(key_of(entity, str(sequence)), operation=f"{self._setting.consumer} place")

    @property
    def has_record(self) -> bool:
        """True if the message is the one that its record is of."""
        return self.identity.key is not None and self.arrival.identity == self.arrival.record_key


def is_late(envelope: Envelope, window: float) -> bool:
    """Tell whether a message was written longer ago than so many seconds, as far as its id tells."""
    written = milliseconds_of(envelope.id)
    return written is not None and time.time() - written / 1000 > window


def is_lost(tx: Any, error: BaseException) -> bool:
    """Tell whether the connection of a transaction is gone, as its driver says it, and the server was not shut down."""
    if (sqlstate(error) or "").startswith(_SHUT_DOWN):
        return False
    if hasattr(tx, "closed_in_transaction"):  # the wrapper of Django
        if tx.closed_in_transaction:
            return True
        tx = tx.connection
    said = {name: getattr(tx, name, None) for name in ("closed", "is_closed", "invalidated", "open", "connected")}
    told = {name: value() if callable(value) else value for name, value in said.items()}
    return any(told[name] for name in ("closed", "is_closed", "invalidated")) or False in (
        told["open"],
        told["connected"],
    )


def pause(seconds: float) -> float:
    """Seconds, and up to a quarter more by chance, so that those who were told so do not come back together."""
    return max(SHORTEST_PAUSE, seconds) * (1 + random.random() / 4)


def error_text(error: BaseException) -> str:
    """An error in one line: its type, and its text if that can be read; of a group, those of its errors."""
    error = unwrap(error)
    if isinstance(error, BaseExceptionGroup):
        return f"{type(error).__name__}: {'; '.join(map(error_text, leaves(error)))}"
    text = "(its text could not be read)"
    with suppress(Exception):
        text = error.detail if isinstance(error, RetrysafeError) and error.detail else str(error)
    return legible(f"{type(error).__name__}: {text.partition(chr(10))[0]}")


def _legible(envelope: Envelope) -> Envelope:
    """The message with attributes that can be kept: one that cannot would never become a dead letter."""
    texts = ((name, text) for name, text in zip(envelope._fields, envelope, strict=True) if isinstance(text, str))
    changed: dict[str, Any] = {name: kept for name, text in texts if (kept := distinct(text)) != text}
    return envelope._replace(**changed) if changed else envelope


def log_traceback(attempt: InboxAttempt, error: Exception | Postponed, end: HandlerOutcome) -> HandlerOutcome:
    """The outcome; where the handler has raised, the log has the traceback, which no event and no dead letter has."""
    if error is attempt.raised and end.became in (MessageOutcome.FAILED, MessageOutcome.DEAD):
        logger().warning("The handler %r has raised.\n%s", attempt.arrival.consumer, _render_traceback(error))
    return end


def _render_traceback(error: BaseException) -> str:
    """The end of a traceback, without what a terminal would take for a command or no encoding has."""
    lines = "".join(traceback.format_exception(error))[-_LONGEST_TRACE:].split("\n")
    return "\n".join(line if line.isprintable() else line.encode("unicode_escape").decode() for line in lines)
