"""The events of retrysafe: their stable names, how observers receive them, and an observer that logs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe import lazy
from retrysafe.claims.codec import AnswerCodec
from retrysafe.claims.repeats import Repeats
from retrysafe.protocol import keys
from retrysafe.protocol.events import Event, Observer, Watch
from retrysafe.protocol.records import ClaimRequest

if TYPE_CHECKING:
    import logging

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""The levels of `logging`, which is imported only when something is logged."""


class EventSpec(NamedTuple):
    """The definition of an event: its level in the log, its meaning, and its fields.

    ``alias`` is the name that the literature on idempotency keys uses for it.
    """

    level: int
    text: str
    fields: tuple[str, ...] = ()
    alias: str = ""


_RECEIVED, _PROCESSING, _RETURNED = "IdempotencyKeyReceived", "NewRequestProcessing", "CachedResponseReturned"
_CREATED, _RELAYED = "OutboxMessageCreated", "MessageRelayed"

EVENTS: dict[str, EventSpec] = {
    "received": EventSpec(
        DEBUG,
        "a guarded operation was asked for; of HTTP with the request's endpoint",
        ("effects", "store", "endpoint"),
        _RECEIVED,
    ),
    "passed": EventSpec(DEBUG, "there was no key, and the boundary lets such calls pass unguarded"),
    "store_request": EventSpec(
        DEBUG,
        "a request to the store ended: its step, its duration, and whether the store answered",
        ("step", "seconds", "answered"),
    ),
    "started": EventSpec(INFO, "the key was claimed and the work begins", ("token", "attempts"), _PROCESSING),
    "takeover": EventSpec(
        WARNING, "the key was claimed from an attempt whose lease had lapsed", ("token", "attempts"), _PROCESSING
    ),
    "reclaimed": EventSpec(
        INFO, "the key was used before; its window is over and it is new work", ("token", "attempts"), _PROCESSING
    ),
    "replayed": EventSpec(
        INFO,
        "the stored result was given instead of running again; of HTTP with its status, and the request's endpoint",
        ("status", "endpoint"),
        _RETURNED,
    ),
    "failure_replayed": EventSpec(
        INFO, "the stored failure was given instead of running again", ("error_type",), _RETURNED
    ),
    "conflict": EventSpec(INFO, "another attempt is running; the call was refused", ("retry_after",)),
    "waiting": EventSpec(DEBUG, "another attempt is running; the caller waits", ("pause",)),
    "frozen_snapshot": EventSpec(
        WARNING,
        "the isolation level hides the result from a waiting duplicate: run its transaction again",
        ("isolation",),
    ),
    "store_warning": EventSpec(
        WARNING,
        "the server's settings weaken a promise (once per process), or a commit was not replicated as they require",
        ("setting", "text"),
    ),
    "doctor_examined": EventSpec(
        DEBUG,
        "the doctor has examined the set-up: the findings of a severity that no waiver covers",
        ("severity", "findings", "checks"),
    ),
    "mismatch": EventSpec(WARNING, "the same key came with another payload and was refused", ("differing",)),
    "expired_refused": EventSpec(INFO, "the key's window is over and the boundary refuses its reuse"),
    "unreadable": EventSpec(
        ERROR,
        "the stored answer could not be decrypted or decoded; the call was refused, and nothing was run again",
        ("reason",),
    ),
    "quota_refused": EventSpec(
        INFO, "the scope has used up its quota of new keys; the call was refused", ("limit", "retry_after")
    ),
    "completed": EventSpec(INFO, "the work ended and its result is stored"),
    "result_withheld": EventSpec(ERROR, "the work ended, but its result could not be encoded"),
    "failed": EventSpec(INFO, "the work failed for good and the failure is stored", ("error_type",)),
    "released": EventSpec(INFO, "the work failed and the key is free for a retry", ("error_type",)),
    "rolled_back": EventSpec(INFO, "the work failed and its transaction was rolled back", ("error_type",)),
    "postponed": EventSpec(INFO, "the work waits for a time or a signal, and the key is free", ("retry_after",)),
    "step_done": EventSpec(DEBUG, "a step of the work was done, and its result is stored", ("step",)),
    "step_replayed": EventSpec(DEBUG, "a step that an earlier attempt has done was not done again", ("step",)),
    "step_in_doubt": EventSpec(
        ERROR, "it is not known whether a step, or its compensation, has happened", ("step", "reason")
    ),
    "step_undone": EventSpec(INFO, "the compensation of a step has ended", ("step",)),
    "unknown": EventSpec(WARNING, "the work ended in doubt and the key waits for a probe or a person", ("error_type",)),
    "unknown_refused": EventSpec(
        WARNING,
        "a call was refused, because the outcome of an earlier attempt is unknown; the reason names a step in doubt",
        ("reason",),
    ),
    "probed": EventSpec(INFO, "the probe answered", ("outcome",)),
    "resolved": EventSpec(
        WARNING,
        "a person settled an unknown outcome (all fields but the first: by an operator)",
        ("outcome", "reason", "actor", "before", "after"),
    ),
    "expired": EventSpec(
        WARNING,
        "an operator ended the window of a key: its next use runs again",
        ("forgotten", "reason", "actor", "before", "after"),
    ),
    "run_cancelled": EventSpec(
        WARNING,
        "an operator gave up work in steps: its next attempt undoes what was done",
        ("reason", "actor", "before", "after"),
    ),
    "step_resolved": EventSpec(
        WARNING,
        "an operator settled a step in doubt",
        ("step", "outcome", "reason", "actor", "before", "after"),
    ),
    "swept": EventSpec(
        INFO,
        "a sweeper removed records whose memory had ended, or kept messages, or gave records back their lost expiry",
        ("side", "removed", "archived", "repaired", "seconds"),
    ),
    "runs_stranded": EventSpec(
        WARNING,
        "a sweeper has found work in steps that would go on, and was not asked for again for an hour: the number of "
        "runs, up to 1,000; 0 once there are none any more",
        ("runs",),
    ),
    "sweep_failed": EventSpec(WARNING, "a sweeper was interrupted by an error; it tries again", ("error",)),
    "relay_seen": EventSpec(DEBUG, "a relay has written down that it is there: its database answers"),
    "consumer_seen": EventSpec(DEBUG, "a subscription runs, and its broker has answered"),
    "relay_failed": EventSpec(WARNING, "a relay was interrupted by an error; it tries again", ("error",)),
    "message_retry_scheduled": EventSpec(
        INFO,
        "a message was not settled and comes again: it failed, met a gap, or another consumer is handling it",
        ("topic", "became", "pause", "error"),
    ),
    "message_stalled": EventSpec(
        WARNING,
        "a service that a message's handler needs cannot be reached: the message spends no attempt, and comes again",
        ("topic", "pause", "error"),
    ),
    "batch_handled": EventSpec(
        DEBUG,
        "messages were handled in a batch: their number, and the number of those handled for the first time",
        ("messages", "handled"),
    ),
    "dead_letter_handled": EventSpec(
        INFO, "a dead letter was handled again, with this outcome", ("topic", "became", "error")
    ),
    "consumer_failed": EventSpec(
        WARNING, "a subscription could not ask its broker or its database; it tries again", ("error",)
    ),
    "queue_missing": EventSpec(
        ERROR,
        "the broker has no queue for a subscription: no message can arrive until it is declared; it looks again",
        ("error",),
    ),
    "consumer_lag": EventSpec(
        DEBUG,
        "how many messages of a queue, stream or partition the consumer's group has not settled, as the broker counts",
        ("partition", "messages"),
    ),
    "lag_uncounted": EventSpec(
        WARNING, "a broker or log did not say how far a consumer or relay is behind, which goes on", ("error",)
    ),
    "consumer_stalled": EventSpec(
        WARNING,
        "messages wait in a partition that a consumer has, and none arrived for a minute: it connects anew, and ends "
        "after several connections that did not help",
        ("partition", "messages", "reconnects"),
    ),
    "lane_failing": EventSpec(
        WARNING,
        "messages of one key became dead letters one after the other: each further one is tried once, until one is "
        "handled",
        ("topic", "error"),
    ),
    "consumer_full": EventSpec(
        ERROR,
        "no new message of a partition has begun for 10 s, because the messages that are tried again leave no room to "
        "receive one",
        ("partition", "messages"),
    ),
    "consumer_retries": EventSpec(
        DEBUG,
        "how many messages of a partition a consumer keeps in memory because they, or one before them with their key, "
        "are tried again",
        ("partition", "messages"),
    ),
    "retention_unknown": EventSpec(
        WARNING,
        "it is not known for how long the broker may deliver a message again: the window must be longer; say how long "
        "with redelivery_window= of the consumer, or --redelivery-window of `retrysafe inbox run`",
        ("window", "told_by"),
    ),
    "message_late": EventSpec(
        WARNING,
        "a message older than the window was handled: a record of an earlier handling would be gone",
        ("topic",),
    ),
    "sequence_skipped": EventSpec(
        WARNING,
        "an operator has let a consumer continue after a sequence that it did not apply",
        ("entity", "sequence", "actor", "reason"),
    ),
    "message_created": EventSpec(
        DEBUG,
        "a message was written into the outbox: it is published if its transaction commits",
        ("topic", "message_id", "event_type", "aggregate_id"),
        _CREATED,
    ),
    "relayed": EventSpec(
        DEBUG,
        "a relay has published messages: their number, and seconds since the oldest was written",
        ("messages", "lag", "seconds"),
    ),
    "message_relayed": EventSpec(
        DEBUG,
        "the broker has confirmed a message (acked, or as a duplicate), and the outbox has recorded it as published; "
        "once per message",
        ("topic", "message_id", "destination", "confirmation", "lag"),
        _RELAYED,
    ),
    "publish_delayed": EventSpec(
        INFO,
        "the broker refused a message; it is tried again, and its lane waits with it",
        ("topic", "attempts", "error"),
    ),
    "destination_stalled": EventSpec(
        ERROR,
        "a queue, stream or endpoint accepts no messages: they wait, spend no attempt, and one is sent as a probe",
        ("destination", "error", "pause"),
    ),
    "destination_recovered": EventSpec(INFO, "a queue, stream or endpoint accepts messages again", ("destination",)),
    "log_unavailable": EventSpec(
        WARNING, "a relay cannot read PostgreSQL's log: it asks the table, and tries again", ("slot", "error")
    ),
    "log_lag": EventSpec(
        DEBUG,
        "how many bytes of PostgreSQL's log the relay that reads it has not confirmed, and how many its slot keeps",
        ("slot", "behind", "kept"),
    ),
    "slot_created": EventSpec(
        WARNING,
        "a relay has made a replication slot that was missing or lost: what the log no longer has is in the table",
        ("slot", "reason"),
    ),
    "parked": EventSpec(
        ERROR, "a message was given up, and its lane waits for a person", ("topic", "attempts", "error")
    ),
    "dead_lettered": EventSpec(
        ERROR,
        "a relay or a consumer has given a message up: it is a dead letter of this side",
        ("side", "topic", "attempts", "error"),
    ),
    "backlog": EventSpec(
        DEBUG,
        "the state of an outbox: waiting messages, due messages, seconds since the oldest were written, relays",
        ("messages", "oldest", "due", "oldest_due", "dead", "relays"),
    ),
    "relay_lost": EventSpec(
        WARNING,
        "a relay has been silent for a minute without a regular end: it is dead, frozen or cut off",
        ("relay", "silent"),
    ),
    "backlog_uncounted": EventSpec(WARNING, "a relay could not count its outbox; it goes on publishing", ("error",)),
    "backlog_stalled": EventSpec(
        ERROR,
        "messages are due for too long: no relay publishes them, or not fast enough",
        ("due", "oldest_due", "relays", "topic", "error"),
    ),
    "relays_differ": EventSpec(
        ERROR,
        "another relay of this database publishes to another broker, and one of them takes all messages",
        ("relay", "publishes_to"),
    ),
    "cleanup_held": EventSpec(
        WARNING,
        "a transaction has been open for more than a minute: the database keeps what has left, and relays slow down",
        ("holder", "seconds"),
    ),
    "topic_paused": EventSpec(
        WARNING, "an operator has paused a topic: its messages are not published", ("topic", "actor")
    ),
    "topic_resumed": EventSpec(WARNING, "an operator has resumed a topic", ("topic", "actor")),
    "redriven": EventSpec(
        WARNING,
        "an operator has dead letters of the outbox published again, or of the inbox handled again",
        ("side", "messages", "actor", "reason"),
    ),
    "discarded": EventSpec(
        WARNING,
        "an operator has deleted dead letters of the outbox or of the inbox for good",
        ("side", "messages", "actor", "reason"),
    ),
    "messages_trimmed": EventSpec(
        ERROR,
        "a stream was trimmed of messages that a consumer had received and not settled: they are lost",
        ("stream", "group", "messages"),
    ),
    "restarted": EventSpec(INFO, "the database asked for the whole transaction to be run again", ("restarts",)),
    "renewal_failed": EventSpec(WARNING, "a lease could not be renewed in time; it is tried again", ("error",)),
    "lease_lost": EventSpec(ERROR, "this attempt holds its key no longer; nothing it writes will be stored"),
    "outside_commit": EventSpec(
        WARNING,
        "in a transactional request another session committed to the same database: not undone if the request fails",
        ("when",),
    ),
    "request_sent": EventSpec(DEBUG, "the HTTP client sends a request: the number of the attempt", ("number",)),
    "request_ended": EventSpec(
        DEBUG, "an attempt at a request has ended, with a status or an error", ("number", "outcome", "seconds")
    ),
    "request_retried": EventSpec(
        INFO, "the request is sent again after a pause, with the same key", ("number", "outcome", "pause")
    ),
    "request_hedged": EventSpec(INFO, "no answer has come in time: a copy of the request is sent", ("number",)),
    "request_given_up": EventSpec(
        WARNING,
        "the request is not sent again, although its failure may be temporary: the reason",
        ("number", "outcome", "limit"),
    ),
    "request_unsettled": EventSpec(
        ERROR, "the request has ended, but its journal could not record that: it may be resumed needlessly", ("error",)
    ),
    "upstream_failed": EventSpec(
        WARNING,
        "the service behind a gateway did not answer: the failure, and whether the request may have been carried out",
        ("error", "sent"),
    ),
    "delivery_refused": EventSpec(
        WARNING,
        "a webhook was refused: it could not be verified or read; no key was used",
        ("scheme", "refusal"),
    ),
    "unhandled": EventSpec(
        WARNING, "a webhook's event has no handler: it was acknowledged and kept", ("scheme", "event_type")
    ),
    "delivery_retried": EventSpec(
        DEBUG, "a webhook was not delivered, and is sent again", ("destination", "attempts", "status", "pause")
    ),
    "delivery_ended": EventSpec(
        INFO, "a webhook was sent for the last time", ("destination", "outcome", "attempts", "status")
    ),
    "settle_deferred": EventSpec(
        WARNING,
        "the work ended and the store did not store its outcome: storing is tried again until the lease ends",
        ("ending",),
    ),
    "result_not_stored": EventSpec(
        ERROR, "the work ended and its outcome could not be stored while the lease lasted: it lapses", ("ending",)
    ),
}
"""Every event by its name."""

NO_FIELDS: Mapping[str, Any] = {}


def logger() -> logging.Logger:
    """The logger "retrysafe". It has no handler: where logging is not set up, its warnings and errors go to stderr."""
    return lazy.logging.getLogger("retrysafe")


_REPEATED = frozenset(
    {
        "backlog_stalled",
        "backlog_uncounted",
        "consumer_failed",
        "destination_stalled",
        "lag_uncounted",
        "log_unavailable",
        "queue_missing",
        "relay_failed",
        "sweep_failed",
    }
)
"""Events of what is tried again until an outage ends: one line for each outage is enough."""


class LoggingObserver:
    """Logs every event to the logger "retrysafe", the key redacted to eight digits of its hash.

    Of what a loop meets again and again while a broker or a database is away, it logs the first time, and again after a
    minute without it: `consumer_failed`, `relay_failed`, `destination_stalled` and their like. Metrics count all.

    Each log record carries the event as ``record.retrysafe``, a dict; `retrysafe.observability.json_logs.JsonFormatter`
    writes it.
    """

    def __init__(self, log: logging.Logger | None = None) -> None:
        self._log = log or logger()
        self._repeats = Repeats()

    def is_enabled(self, name: str, /) -> bool:
        """Tell whether the log takes the level of events of this name."""
        return self._log.isEnabledFor(EVENTS[name].level)

    def takes_details(self) -> bool:
        """Tell whether the log takes any events that are no warnings."""
        return self._log.isEnabledFor(INFO)

    def __call__(self, event: Event, /) -> None:
        """Log it, if the log takes its level."""
        meaning = EVENTS[event.name]
        if self._log.isEnabledFor(meaning.level):
            name, boundary, operation, key, attempt, fields = event
            if name in _REPEATED:
                of = fields.get("destination", fields.get("topic", "")), fields.get("error", "")
                if not self._repeats.is_new((name, boundary, operation, *of)):
                    return
            known = {"boundary": boundary, "operation": operation, "key": key, "attempt": attempt}
            named = {field: value for field, value in known.items() if value or boundary} | dict(fields)
            self._log.log(
                meaning.level,
                "%s %s",
                name,
                " ".join(f"{field}={_show(value)}" for field, value in named.items()),
                extra={"retrysafe": {**event._asdict(), "alias": meaning.alias}},
            )


def _show(value: object) -> str:
    """A value in a line of log: quoted where it could be taken for another field, never a second line."""
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    if text.isprintable() and not any(mark in text for mark in ' "=\\'):
        return text
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    plain = "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)
    return f'"{plain}"'


class Observers:
    """The observers of a boundary, or of one attempt, called in order. An error of one is logged."""

    __slots__ = ("_details", "_each", "_watches", "_watching", "present")

    def __init__(self, observers: Iterable[Observer], watches: Iterable[Watch] = ()) -> None:
        self._watches = tuple(watches)
        self._set(observers)

    def _set(self, observers: Iterable[Observer]) -> None:
        self._each: tuple[tuple[Observer, Callable[[str], bool] | None], ...] = tuple(
            (observer, getattr(observer, "is_enabled", None)) for observer in observers
        )
        self._details = tuple(_takes_details_of(observer) for observer, _ in self._each)
        self.present = bool(self._each)
        """True if there is any."""
        self._watching = any(hasattr(observer, "watch") for observer, _ in self._each)

    def add(self, more: Iterable[Observer]) -> None:
        """Add observers, but for those whose class is there already; nothing may be observed yet."""
        present = [observer for observer, _ in self._each]
        kinds = {type(observer) for observer in present}
        self._set([*present, *(observer for observer in more if type(observer) not in kinds)])

    def is_enabled(self, name: str) -> bool:
        """Tell whether any observer has a use for events of this name."""
        for _, takes in self._each:
            try:
                if takes is None or takes(name):
                    return True
            except Exception:  # noqa: BLE001 - as below
                _log_failure(name)
        return False

    def emit(
        self, name: str, boundary: str, operation: str, key: bytes, attempt: str, fields: Mapping[str, Any]
    ) -> None:
        """Tell those that have a use for it; the event is made only for them."""
        event: Event | None = None
        for observer, takes in self._each:
            try:
                if takes is None or takes(name):
                    if event is None:
                        event = Event(name, boundary, operation, keys.redact(key), attempt, fields)
                    observer(event)
            except Exception:  # noqa: BLE001 - it is logged, and must not stop the work
                _log_failure(name)

    def begin(self, request: ClaimRequest, store: str, codec: object = None, annotation: Any = None) -> AttemptEvents:
        """Tell that an attempt begins, and return what tells the rest: a watch stands for the observer that gave it."""
        if not self._takes_details():
            return AttemptEvents(self, request, False)
        boundary, operation, key, attempt = request.boundary, request.operation, request.key, request.attempt
        fields = {"effects": request.effects, "store": store}
        if isinstance(codec, AnswerCodec):
            fields |= codec.arrived(annotation)
        told = self
        if self._watching:
            received = Event("received", boundary, operation, keys.redact(key), attempt, fields)
            watches: list[Watch] = []
            told = Observers([_watch(observer, received, watches) for observer, _ in self._each], watches)
        told.emit("received", boundary, operation, key, attempt, fields)
        return AttemptEvents(told, request, True)

    def _takes_details(self) -> bool:
        for takes in self._details:
            try:
                if takes():
                    return True
            except Exception:  # noqa: BLE001 - as above
                _log_failure("the beginning of an attempt")
        return False

    def close(self, error: BaseException | None) -> None:
        """The attempt is over, and left by ``error``."""
        for watch in self._watches:
            try:
                watch.close(error)
            except Exception:  # noqa: BLE001 - as above
                _log_failure("the end of an attempt")


class AttemptEvents:
    """Tells the observers what becomes of one attempt. It does not know the claim, whose parts keep it."""

    __slots__ = ("_observers", "_request", "detailed")

    def __init__(self, observers: Observers, request: ClaimRequest | None, detailed: bool) -> None:
        self._observers = observers
        self._request = request
        self.detailed = detailed
        """True if any observer takes more than warnings and errors; if not, none watches the attempt either."""

    def is_enabled(self, name: str) -> bool:
        """Tell whether any observer has a use for events of this name."""
        return self._observers.is_enabled(name)

    def emit(self, name: str, /, **fields: Any) -> None:
        """Tell them of an event."""
        request = self._request
        if request is not None and (self.detailed or EVENTS[name].level >= WARNING):
            self._observers.emit(name, request.boundary, request.operation, request.key, request.attempt, fields)

    def close(self, error: BaseException | None) -> None:
        """The attempt is over, and left by ``error``."""
        self._observers.close(error)


UNOBSERVED = AttemptEvents(Observers(()), None, False)
"""The events of attempts that have no observer, and of calls without a key."""


def _takes_details_of(observer: Observer) -> Callable[[], bool]:
    takes: Callable[[], bool] | None = None if hasattr(observer, "watch") else getattr(observer, "takes_details", None)
    return takes or (lambda: True)


def _log_failure(name: str) -> None:
    logger().exception("An observer failed on %r.", name)


def _watch(observer: Observer, received: Event, watches: list[Watch]) -> Observer:
    watch = getattr(observer, "watch", None)
    if watch is None:
        return observer
    try:
        made: Watch = watch(received)
    except Exception:  # noqa: BLE001 - as above
        _log_failure("the beginning of an attempt")
        return observer
    watches.append(made)
    return made
