"""Alerts on the metrics of `retrysafe.observability.otel`, as rules for Prometheus.

The metrics have the names that OpenTelemetry's Prometheus exporter gives them. A counter comes into being with its
first event, which ``increase`` does not see: a rule that must not miss it asks for new series too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal, NamedTuple

from retrysafe.backends.commands import WHY

RUNBOOKS = "https://retrysafe.readthedocs.io/en/latest/reference/alerts/#"
Urgency = Literal["critical", "warning"]
"""The urgency: a critical alert means that work is lost, doubtful or waiting; a warning that it soon may be."""


class Alert(NamedTuple):
    """One alert, and what to do about it.

    name: in Prometheus, and the heading of its runbook.
    expr: the condition, in PromQL.
    hold: for how long it must be true, as "5m".
    severity: how soon an operator should look.
    summary: one line for who is called.
    meaning: what has happened, and what has not.
    commands: to paste, in this order; the first is the alert's annotation.
    over: when it is over.
    """

    name: str
    expr: str
    hold: str
    severity: Urgency
    summary: str
    meaning: str
    commands: tuple[str, ...]
    over: str

    @property
    def runbook(self) -> str:
        """The URL of its part of the runbook page."""
        return RUNBOOKS + self.name.lower()


_BOUNDARY = "retrysafe_boundary"
_RAN = 'retrysafe_claims_total{retrysafe_outcome=~"started|takeover|reclaimed"}'


def _any(metric: str, window: str = "15m", by: str = _BOUNDARY) -> str:
    """Any event of a counter in the last ``window``, the very first one too."""
    return (
        f"sum by ({by}) (increase({metric}[{window}])) > 0 or sum by ({by}) ({metric} unless {metric} offset {window})"
        " > 0"
    )


def _many(metric: str, more_than: int, window: str = "10m", by: str = _BOUNDARY) -> str:
    return f"sum by ({by}) (increase({metric}[{window}])) > {more_than}"


ALERTS = (
    Alert(
        "RetrysafeOutcomesUnknown",
        _any("retrysafe_unknown_total"),
        "0m",
        "critical",
        "attempts ended in doubt: their retries are refused until somebody settles them",
        "An external effect was begun, and nobody knows whether it happened: the process died, the provider did not "
        "answer, or a lease ended. The keys stay unknown, and callers get OutcomeUnknown (HTTP 409). Nothing is run "
        "twice meanwhile.",
        (
            "retrysafe keys list --state unknown",
            "retrysafe keys show KEY",
            f"retrysafe keys resolve KEY --as completed --result null --reason {WHY}",
        ),
        "No key is unknown any more: `retrysafe status` shows 0. With `probe=` most settle themselves.",
    ),
    Alert(
        "RetrysafeRunsStranded",
        "max(retrysafe_runs_stranded) > 0",
        "5m",
        "warning",
        "work in steps was begun, and nobody asks for it any more",
        "Some of its steps are done, and the next attempt would go on behind them, or undo them. It comes from the "
        "caller, the broker or the scheduler, and none has come for an hour. No command starts it: let one of them ask "
        "again with the key, also after `runs cancel`. A run ends unfinished with its window. "
        "A run that sleeps for longer than an hour is among them. Told by a sweeper, each time that it looks.",
        (
            "retrysafe runs list --stranded",
            "retrysafe runs show KEY",
            f"retrysafe runs cancel KEY --reason {WHY}",
        ),
        "`retrysafe runs list --stranded` is empty: the work was asked for again with its key, or given up, and its "
        "next attempt has undone it.",
    ),
    Alert(
        "RetrysafeResultsNotStored",
        _any("retrysafe_results_not_stored_total"),
        "0m",
        "critical",
        "work was done whose outcome the store did not take before the lease ended",
        "The handler has finished, and the store could not be written to for the whole lease. A keyed operation is run "
        "again by the next retry, which its receiver recognises by the derived key; an external one becomes unknown.",
        ("retrysafe status", "retrysafe doctor", "retrysafe keys list --state unknown"),
        "The store takes writes again, and no key is unknown.",
    ),
    Alert(
        "RetrysafeLeasesLost",
        _any("retrysafe_lease_lost_total"),
        "0m",
        "warning",
        "leases ended before their work did",
        "A process was paused or cut off from the store for longer than `lease=`. Another attempt may have begun: the "
        "fencing token keeps the late one from storing its outcome, not from having effects elsewhere.",
        ("retrysafe doctor", "retrysafe keys list --state running"),
        "No lease was lost for 15 minutes. Make `lease=` longer than the longest pause of a process.",
    ),
    Alert(
        "RetrysafeStoreFailing",
        f'sum by ({_BOUNDARY}) (rate(retrysafe_claims_total{{retrysafe_outcome="error"}}[5m])) '
        f"/ sum by ({_BOUNDARY}) (rate(retrysafe_claims_total[5m])) > 0.05",
        "5m",
        "critical",
        "more than one claim in twenty fails, so that its work is refused",
        "Claims end in errors: the store does not answer, refuses the user, or has not been migrated. Guarded work is "
        "not run, unless the boundary or its guard lets it pass.",
        ("retrysafe status", "retrysafe doctor", "retrysafe migrate"),
        "Fewer than one claim in twenty fails.",
    ),
    Alert(
        "RetrysafeStoreSlow",
        f"histogram_quantile(0.99, sum by (le, {_BOUNDARY}) (rate(retrysafe_store_duration_seconds_bucket[5m]))) > 1",
        "10m",
        "warning",
        "the store takes longer than a second for one step in a hundred",
        "Each claim waits for the store twice. Look for a full disk, locks, a missing index, or a network in between.",
        ("retrysafe doctor",),
        "99 of 100 steps take less than a second.",
    ),
    Alert(
        "RetrysafeResultsUnreadable",
        _any("retrysafe_unreadable_total"),
        "0m",
        "critical",
        "stored results cannot be read, so that retries get no answer",
        "A key of `encryption=` is missing in this process: it was removed too early, or a deployment has another set. "
        "Or a return annotation, a codec or a release of retrysafe does not fit what was stored before. "
        "The work is not run again.",
        ("retrysafe keys show KEY",),
        "Every process has all keys with which results that still live were written, and annotations that fit them.",
    ),
    Alert(
        "RetrysafeKeysReused",
        _many("retrysafe_mismatches_total", 20),
        "10m",
        "warning",
        "many calls carry a key that was used for something else",
        "A client makes keys that are not unique, or somebody tries keys of others. The calls are refused (KeyReused, "
        "HTTP 422), and nothing is shown to them.",
        ("retrysafe keys show KEY",),
        "The client makes a new key for each intent.",
    ),
    Alert(
        "RetrysafeRetryStorm",
        f"sum by ({_BOUNDARY}) (rate(retrysafe_replays_total[10m])) "
        f"/ sum by ({_BOUNDARY}) (rate(retrysafe_claims_total[10m])) > 0.5 "
        f"and sum by ({_BOUNDARY}) (rate(retrysafe_claims_total[10m])) > 1",
        "15m",
        "warning",
        "more than half of the calls are retries of work that was done",
        "Answers do not reach the callers, or time-outs of callers are shorter than the work. Nothing is run twice.",
        ("retrysafe status",),
        "Fewer than half of the calls are replays.",
    ),
    Alert(
        "RetrysafeConflictsMany",
        _many("retrysafe_conflicts_total", 50),
        "10m",
        "warning",
        "many calls come while another attempt with their key runs",
        "Clients retry before the work can have ended, or send a request several times at once. Each is told when to "
        "try again. Nothing is run twice.",
        ("retrysafe keys list --state running", "retrysafe doctor"),
        "Fewer than 50 calls of a boundary meet another attempt within ten minutes.",
    ),
    Alert(
        "RetrysafeNewKeysJump",
        f"sum by ({_BOUNDARY}) (rate({_RAN}[5m])) > 3 * sum by ({_BOUNDARY}) (rate({_RAN}[5m] offset 30m)) "
        f"and sum by ({_BOUNDARY}) (rate({_RAN}[5m])) > 1",
        "10m",
        "warning",
        "three times as many keys are new as half an hour ago",
        "Traffic has grown, or a client makes a new key for each attempt, so that its retries are not recognised and "
        "run again. Compare the calls with what they are for.",
        ("retrysafe status", "retrysafe keys list --state completed"),
        "As many keys are new as there are intents.",
    ),
    Alert(
        "RetrysafeSettingsWeak",
        _any("retrysafe_warnings_total", "1h", f"{_BOUNDARY}, retrysafe_outcome"),
        "0m",
        "warning",
        "a setting of the server, or code in a guarded request, weakens a promise",
        "The log has a line for each, with the setting and what it costs.",
        ("retrysafe doctor",),
        "`retrysafe doctor` finds nothing, or what it finds has a waiver.",
    ),
    Alert(
        "RetrysafeDoctorFindings",
        'max by (retrysafe_severity) (retrysafe_doctor_findings{retrysafe_severity=~"error|warning"}) > 0',
        "0m",
        "warning",
        "the doctor found a set-up that breaks a promise, or makes it weaker than it looks",
        "Told by `check_at_start(observers=)` when a process starts, whose log has each finding with its fix, and by "
        "the page Doctor of a `Console(observers=)`.",
        ("retrysafe doctor",),
        "`retrysafe doctor` finds nothing that has no waiver, and the process has looked again.",
    ),
    Alert(
        "RetrysafeOutboxLate",
        "max(retrysafe_outbox_oldest_due_seconds) > 60",
        "5m",
        "critical",
        "messages are due for more than a minute, and do not leave",
        "No relay runs, none can reach the broker, or it publishes less than is written. Nothing is lost: messages "
        "wait in the outbox, in their order.",
        ("retrysafe outbox status", "retrysafe relay"),
        "The oldest message that is due is younger than a minute.",
    ),
    Alert(
        "RetrysafeOutboxDeep",
        "max(retrysafe_outbox_depth) > 10000",
        "10m",
        "warning",
        "more than 10,000 messages wait in the outbox",
        "More is written than leaves: a destination is away, a topic is paused, or there are too few relays. Nothing "
        "is lost.",
        ("retrysafe outbox status", "retrysafe relay"),
        "Fewer than 10,000 messages wait.",
    ),
    Alert(
        "RetrysafeRelayFailing",
        _many("retrysafe_outbox_relay_failures_total", 3, by="job"),
        "5m",
        "critical",
        "a relay is gone, or cannot go on",
        "A relay failed, or has said nothing for so long that it is taken for gone. Others take its buckets over.",
        ("retrysafe outbox status", "retrysafe doctor"),
        "The relays that should be there are listed, and none fails.",
    ),
    Alert(
        "RetrysafeDestinationStalled",
        _many("retrysafe_outbox_destination_stalls_total", 5, by="retrysafe_outcome"),
        "10m",
        "warning",
        "a destination takes no messages",
        "The broker answers, and takes nothing for this destination: a queue or topic is missing or full, or the user "
        "may not publish. Messages of other destinations leave.",
        ("retrysafe outbox status", "retrysafe doctor"),
        "The log says `destination_recovered`.",
    ),
    Alert(
        "RetrysafeMessagesGivenUp",
        _any("retrysafe_outbox_given_up_total", by="retrysafe_outcome"),
        "0m",
        "critical",
        "messages of the outbox were given up, and need a person",
        "The broker refused a message as often as the relay tries, or for good. A parked message holds its lane; a "
        "dead letter does not.",
        ("retrysafe outbox dead list", f"retrysafe outbox dead redrive --topic TOPIC --reason {WHY}"),
        "There are no dead letters and no parked messages.",
    ),
    Alert(
        "RetrysafeDeadLetters",
        _any("retrysafe_inbox_dead_total", by=f"{_BOUNDARY}, retrysafe_operation"),
        "0m",
        "critical",
        "a consumer has given messages up",
        "A handler failed as often as it is tried, or a message cannot be read. It is in the dead letters with its "
        "error.",
        ("retrysafe inbox dead list", f"retrysafe inbox dead redrive --consumer NAME --reason {WHY}"),
        "The dead letters were redriven, and handled, or discarded.",
    ),
    Alert(
        "RetrysafeConsumerFailing",
        _many("retrysafe_inbox_failures_total", 5, by=f"{_BOUNDARY}, retrysafe_operation"),
        "5m",
        "critical",
        "a consumer cannot reach its broker or its database, or has no queue",
        "Nothing is consumed. Messages wait at the broker, for as long as it keeps them.",
        ("retrysafe doctor", "retrysafe inbox status"),
        "Messages are consumed again.",
    ),
    Alert(
        "RetrysafeConsumerBehind",
        f"max by ({_BOUNDARY}, retrysafe_operation, retrysafe_partition) (retrysafe_inbox_lag) > 1000",
        "15m",
        "warning",
        "a consumer is more than 1,000 messages behind",
        "It handles less than is published, a message that fails keeps its lane waiting, or no consumer has the "
        "partition. Messages wait at the broker, for as long as it keeps them.",
        ("retrysafe inbox status", "retrysafe doctor"),
        "Every partition has fewer than 1,000 messages that its group has not settled.",
    ),
    Alert(
        "RetrysafeWebhooksRefused",
        _many("retrysafe_webhooks_refused_total", 20, by=f"{_BOUNDARY}, retrysafe_outcome"),
        "10m",
        "warning",
        "webhooks are refused: they cannot be verified or read",
        "The secret was rotated on one side only, a proxy changes bodies, clocks differ, or somebody forges them. "
        "The provider sends what is true again, for some days.",
        ("retrysafe doctor",),
        "Deliveries are verified. Ask the provider to send again what it gave up.",
    ),
    Alert(
        "RetrysafeClientGivesUp",
        _many("retrysafe_client_given_up_total", 10, by="retrysafe_outcome"),
        "10m",
        "warning",
        "requests to other services were given up",
        "The budget, the deadline or the number of attempts was used up. Requests in a journal can be sent again with "
        "their keys.",
        ("retrysafe requests list", "retrysafe requests resume --client MODULE:NAME"),
        "The service answers, and the journal has no open requests.",
    ),
)
"""Every alert."""


def rules(alerts: tuple[Alert, ...] = ALERTS) -> Iterator[str]:
    """The lines of a rule file for Prometheus, in YAML."""
    yield "groups:"
    yield "- name: retrysafe"
    yield "  rules:"
    for alert in alerts:
        yield f"  - alert: {alert.name}"
        yield f"    expr: {json.dumps(alert.expr)}"
        yield f"    for: {alert.hold}"
        yield "    labels:"
        yield f"      severity: {alert.severity}"
        yield "    annotations:"
        yield f"      summary: {json.dumps(f'retrysafe: {alert.summary}')}"
        yield f"      description: {json.dumps(alert.meaning, ensure_ascii=False)}"
        yield f"      command: {json.dumps(alert.commands[0], ensure_ascii=False)}"
        yield f"      runbook_url: {json.dumps(alert.runbook)}"
