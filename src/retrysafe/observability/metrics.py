"""The counts of events: stable names, units and meanings, for every exporter and every dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from retrysafe.protocol.events import Event

BEGINNINGS = ("started", "takeover", "reclaimed")
"""The key was won, and the work runs."""
ANSWERS = ("replayed", "failure_replayed")
"""The stored answer was given instead."""
REFUSALS = ("conflict", "unknown_refused", "expired_refused", "unreadable")
"""The caller of a key that was used before was turned away."""
DECISIONS = (*BEGINNINGS, *ANSWERS, *REFUSALS, "mismatch", "quota_refused", "passed")
"""The results of a call before anything runs; each call has one of them, or an error."""
ENDINGS = (
    "completed",
    "result_withheld",
    "failed",
    "released",
    "postponed",
    "rolled_back",
    "unknown",
    "settle_deferred",
)
"""The ends of an attempt that ran; one whose lease was lost may have none."""


class Counter(NamedTuple):
    """Counts events of some names.

    The attribute ``retrysafe.outcome`` is the event's name with ``outcome``, else what its ``field`` holds. Each
    counts for one, or for the number in its field ``amount``; with ``side``, only those whose field of that name is so.
    """

    name: str
    unit: str
    text: str
    events: tuple[str, ...]
    outcome: bool = False
    field: str = ""
    amount: str = ""
    side: str = ""

    def counts(self, event: Event) -> bool:
        return not self.side or event.fields.get("side", self.side) == self.side


class Gauge(NamedTuple):
    """The last value of an event's field; ``by``: for each value of that field of it, an attribute of its name."""

    name: str
    unit: str
    text: str
    event: str
    field: str
    by: str = ""


class Measure(NamedTuple):
    """Any other instrument: what it measures, and by which attributes beside boundary, operation and effects."""

    name: str
    unit: str
    text: str
    attributes: tuple[str, ...] = ()


CLAIMS, ATTEMPTS = "retrysafe.claims", "retrysafe.attempts"
COUNTERS = (
    Counter(
        CLAIMS,
        "{claim}",
        "Calls of guarded operations, by what each came to before anything ran; outcome=error: none of the others.",
        DECISIONS,
        outcome=True,
    ),
    Counter(
        ATTEMPTS,
        "{attempt}",
        "Attempts that ran, by how they ended.",
        (*ENDINGS, "lease_lost"),
        outcome=True,
    ),
    Counter(
        "retrysafe.duplicates_avoided",
        "{duplicate}",
        "Calls that would have run an operation again, and did not.",
        (*ANSWERS, *REFUSALS),
        outcome=True,
    ),
    Counter("retrysafe.replays", "{replay}", "Stored results and failures given instead of running again.", ANSWERS),
    Counter("retrysafe.conflicts", "{conflict}", "Calls told that another attempt is in progress.", ("conflict",)),
    Counter("retrysafe.mismatches", "{mismatch}", "Calls refused for another payload under a used key.", ("mismatch",)),
    Counter(
        "retrysafe.quota_refusals",
        "{call}",
        "Calls with a new key refused because their scope has used up its quota.",
        ("quota_refused",),
        field="limit",
    ),
    Counter(
        "retrysafe.unreadable", "{answer}", "Stored answers that could not be decrypted or decoded.", ("unreadable",)
    ),
    Counter("retrysafe.takeovers", "{takeover}", "Keys claimed from an attempt whose lease had lapsed.", ("takeover",)),
    Counter("retrysafe.waits", "{wait}", "Pauses of callers that wait for another attempt.", ("waiting",)),
    Counter("retrysafe.waited", "s", "Seconds of those pauses.", ("waiting",), amount="pause"),
    Counter("retrysafe.restarts", "{restart}", "Transactions that the database wanted again.", ("restarted",)),
    Counter("retrysafe.lease_lost", "{lease}", "Leases that ended before the work did.", ("lease_lost",)),
    Counter("retrysafe.renewals_failed", "{renewal}", "Renewals of a lease that failed.", ("renewal_failed",)),
    Counter("retrysafe.unknown", "{attempt}", "Attempts that ended in doubt.", ("unknown",)),
    Counter(
        "retrysafe.runs.operations",
        "{operation}",
        "What people did to work in steps.",
        ("run_cancelled", "step_resolved"),
        outcome=True,
    ),
    Counter(
        "retrysafe.steps",
        "{step}",
        "Steps of guarded work, by what became of them.",
        ("step_done", "step_replayed", "step_in_doubt", "step_undone"),
        outcome=True,
    ),
    Counter(
        "retrysafe.settles_deferred",
        "{attempt}",
        "Attempts whose end the store did not take at once: it is put again until the lease ends.",
        ("settle_deferred",),
    ),
    Counter(
        "retrysafe.results_not_stored",
        "{attempt}",
        "Attempts whose end the store did not take while the lease lasted.",
        ("result_not_stored",),
    ),
    Counter(
        "retrysafe.resolutions",
        "{key}",
        "Unknown outcomes settled by a probe or a person.",
        ("probed", "resolved"),
        field="outcome",
    ),
    Counter(
        "retrysafe.records.removed",
        "{record}",
        "Records removed by sweepers: with fewer than there are claims that ran, tables and inboxes grow.",
        ("swept",),
        amount="removed",
        side="records",
    ),
    Counter("retrysafe.expirations", "{key}", "Keys whose window a person ended.", ("expired",)),
    Counter(
        "retrysafe.warnings",
        "{warning}",
        "Settings of a server, isolation levels and commits outside a guarded request that weaken a promise.",
        ("store_warning", "frozen_snapshot", "outside_commit"),
        outcome=True,
    ),
    Counter(
        "retrysafe.client.attempts",
        "{attempt}",
        "Requests sent by the HTTP client, copies and retries included.",
        ("request_sent", "request_hedged"),
    ),
    Counter(
        "retrysafe.client.results",
        "{result}",
        "What attempts of the HTTP client came to, by status or error.",
        ("request_ended",),
        field="outcome",
    ),
    Counter(
        "retrysafe.client.retries",
        "{retry}",
        "Retries of the HTTP client, by the status or error before them.",
        ("request_retried",),
        field="outcome",
    ),
    Counter("retrysafe.client.hedges", "{copy}", "Copies sent because no answer had come.", ("request_hedged",)),
    Counter(
        "retrysafe.client.given_up",
        "{request}",
        "Requests not sent again, by what stood in the way.",
        ("request_given_up",),
        field="limit",
    ),
    Counter(
        "retrysafe.client.unsettled",
        "{request}",
        "Requests that ended without their journal noting it.",
        ("request_unsettled",),
    ),
    Counter(
        "retrysafe.webhooks.refused",
        "{delivery}",
        "Webhooks that were not taken, because they could not be verified or read.",
        ("delivery_refused",),
        field="refusal",
    ),
    Counter("retrysafe.webhooks.unhandled", "{event}", "Events of webhooks that had no handler.", ("unhandled",)),
    Counter(
        "retrysafe.webhooks.deliveries",
        "{delivery}",
        "Webhooks that were sent, by what became of them.",
        ("delivery_ended",),
        field="outcome",
    ),
    Counter("retrysafe.webhooks.retries", "{attempt}", "Webhooks that were sent again.", ("delivery_retried",)),
    Counter(
        "retrysafe.inbox.batched",
        "{message}",
        "Messages handled in batches, which are no claims of their own.",
        ("batch_handled",),
        amount="handled",
    ),
    Counter("retrysafe.inbox.dead", "{message}", "Messages that consumers gave up.", ("dead_lettered",), side="inbox"),
    Counter(
        "retrysafe.inbox.again",
        "{message}",
        "Messages that were not settled, by why they come again.",
        ("message_retry_scheduled",),
        field="became",
    ),
    Counter(
        "retrysafe.inbox.stalls",
        "{attempt}",
        "Attempts that ended because what the handler needs cannot be reached.",
        ("message_stalled",),
    ),
    Counter(
        "retrysafe.inbox.redriven",
        "{message}",
        "Dead letters handled again, by what became of them.",
        ("dead_letter_handled",),
        field="became",
    ),
    Counter(
        "retrysafe.inbox.failures",
        "{failure}",
        "Brokers or databases that failed.",
        ("consumer_failed", "queue_missing"),
    ),
    Counter("retrysafe.inbox.late", "{message}", "Messages handled after the window.", ("message_late",)),
    Counter("retrysafe.inbox.skipped", "{sequence}", "Sequences that a person has skipped.", ("sequence_skipped",)),
    Counter(
        "retrysafe.outbox.created",
        "{message}",
        "Messages written into an outbox, by topic; they leave if their transaction commits.",
        ("message_created",),
        field="topic",
    ),
    Counter("retrysafe.outbox.published", "{message}", "Messages that left.", ("relayed",), amount="messages"),
    Counter(
        "retrysafe.outbox.delays",
        "{attempt}",
        "Attempts to publish that the broker did not take, by topic.",
        ("publish_delayed",),
        field="topic",
    ),
    Counter(
        "retrysafe.outbox.given_up",
        "{message}",
        "Messages that were given up, by topic.",
        ("dead_lettered", "parked"),
        field="topic",
        side="outbox",
    ),
    Counter(
        "retrysafe.outbox.relay_failures",
        "{failure}",
        "What relays could not do at once.",
        ("relay_failed", "relay_lost", "backlog_uncounted"),
    ),
    Counter(
        "retrysafe.outbox.destination_stalls",
        "{failure}",
        "Calls and probes that a destination took nothing of, by destination.",
        ("destination_stalled",),
        field="destination",
    ),
    Counter(
        "retrysafe.outbox.stalled",
        "{look}",
        "Looks at an outbox whose messages are due for too long.",
        ("backlog_stalled",),
    ),
    Counter(
        "retrysafe.outbox.operations",
        "{operation}",
        "What people did to outboxes.",
        ("topic_paused", "topic_resumed", "redriven", "discarded"),
        outcome=True,
        side="outbox",
    ),
    Counter("idempotency.cache.hits", "{hit}", "The literature's name for replays.", ANSWERS),
    Counter("idempotency.cache.misses", "{miss}", "The literature's name for claims that ran.", BEGINNINGS),
    Counter(
        "outbox.messages.processed",
        "{message}",
        "The literature's name for messages that left.",
        ("relayed",),
        amount="messages",
    ),
)

GAUGES = (
    Gauge("retrysafe.outbox.lag", "s", "How long the oldest of the last messages waited that left.", "relayed", "lag"),
    Gauge(
        "retrysafe.outbox.depth",
        "{message}",
        "Messages that wait, up to 100,000, as one relay told last.",
        "backlog",
        "messages",
    ),
    Gauge("retrysafe.outbox.due", "{message}", "Those that wait for nothing but a relay.", "backlog", "due"),
    Gauge("retrysafe.outbox.oldest", "s", "Age of the oldest message that has not left.", "backlog", "oldest"),
    Gauge("retrysafe.outbox.oldest_due", "s", "Age of the oldest that is due: alarm on it.", "backlog", "oldest_due"),
    Gauge("retrysafe.outbox.dead", "{message}", "Dead letters.", "backlog", "dead"),
    Gauge(
        "retrysafe.outbox.log_behind",
        "By",
        "Of PostgreSQL's log, what the relay that reads it has not confirmed, as it told last.",
        "log_lag",
        "behind",
        by="slot",
    ),
    Gauge(
        "retrysafe.outbox.log_kept",
        "By",
        "Of PostgreSQL's log, what is kept on the disk for the relay that reads it, as it told last.",
        "log_lag",
        "kept",
        by="slot",
    ),
    Gauge("retrysafe.outbox.relays", "{relay}", "Relays that are there.", "backlog", "relays"),
    Gauge(
        "retrysafe.inbox.lag",
        "{message}",
        "Messages that a consumer's group has not settled, as the broker counts them: take the maximum of a partition.",
        "consumer_lag",
        "messages",
        by="partition",
    ),
    Gauge(
        "retrysafe.inbox.retried",
        "{message}",
        "Messages that a consumer keeps in memory because they, or one of their key, are tried again: alarm on it.",
        "consumer_retries",
        "messages",
        by="partition",
    ),
    Gauge(
        "retrysafe.runs.stranded",
        "{run}",
        "Work in steps that nobody asks for any more, as a sweeper told last: alarm on it.",
        "runs_stranded",
        "runs",
    ),
    Gauge(
        "retrysafe.doctor.findings",
        "{finding}",
        "Findings of the doctor that no waiver covers, as a process told last: when it started, or in its console.",
        "doctor_examined",
        "findings",
        by="severity",
    ),
    Gauge("outbox.queue.depth", "{message}", "The literature's name for the outbox's depth.", "backlog", "messages"),
)

STORE_DURATION = Measure(
    "retrysafe.store.duration",
    "s",
    "How long the store took for one step (claim, settle, renew, resolve).",
    ("retrysafe.step", "retrysafe.answered", "retrysafe.store"),
)
WORK_DURATION = Measure("retrysafe.work.duration", "s", "How long guarded work ran, from its claim to its end.")
IN_PROGRESS = Measure("retrysafe.in_progress", "{attempt}", "Attempts that are running in this process.")
MEASURES = (STORE_DURATION, WORK_DURATION, IN_PROGRESS)

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds of the histograms, in seconds: from a local file to a store that is nearly away, and to long work."""


def instruments_of(event: str) -> list[str]:
    """The names of the counters and gauges that an event moves."""
    return [
        *(counter.name for counter in COUNTERS if event in counter.events),
        *(gauge.name for gauge in GAUGES if gauge.event == event),
    ]
