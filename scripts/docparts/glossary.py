"""The glossary: what each term means, and what version 0.1 called it."""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """A term of the field, what it means here, and the public names of 0.1 that it has taken the place of."""

    name: str
    meaning: str
    formerly: tuple[str, ...] = ()


TERMS = (
    Term("attempt", "One run of guarded work under a key. `token` numbers the attempts of a key."),
    Term("backoff", "The growing, random wait between attempts.", ("pause=", "longest_pause=")),
    Term("boundary", "A name and the settings under which keys are claimed: store, effects, window, lease."),
    Term("claim", "The exclusive right to run the work of a key, and the object that stands for it."),
    Term("consumer", "A named handler of messages; each consumer handles every message once."),
    Term(
        "dead letter",
        "A message that is not retried any more and waits for an operator.",
        ("letters=", "message_dead", "died"),
    ),
    Term("effects", 'How the work and its record go together: "transactional", "keyed" or "external".'),
    Term(
        "event",
        "A decision or an observation of retrysafe that is passed to observers, such as `claimed` or `replayed`.",
        ("Occurrence", "Meaning"),
    ),
    Term("expired", "A key whose window is over; `on_expired` says whether it may be used again."),
    Term("fencing token", "A number that grows with every attempt; a write with an older one is refused."),
    Term(
        "fingerprint",
        "A hash of the payload, stored with the key. A call with the same key and another payload is refused.",
    ),
    Term("heartbeat", "A background task or thread that renews the leases of running attempts."),
    Term("inbox", "A table that records which messages a consumer has handled, so that a second delivery is skipped."),
    Term("key", "The text that identifies one piece of work. A retry has the same key."),
    Term("lane", "The messages of one topic and key, which keep their order."),
    Term("lapsed", "The state of a running attempt whose lease is over. Another attempt may take the key over."),
    Term("lease", "The time for which an attempt holds its key; renewed while the work runs."),
    Term("operator", "A person or a script that looks at keys and settles them, by `retrysafe keys` or `Operator`."),
    Term(
        "outbox", "A table of messages. A relay publishes a message after the transaction that wrote it has committed."
    ),
    Term(
        "outcome of a message",
        "The result of handling a message: applied, a duplicate, retried later, or a dead letter.",
        ("Became", "Handled"),
    ),
    Term("probe", "A function of yours that asks the other system whether an effect in doubt happened."),
    Term(
        "publish status",
        "The answer of a broker to a published message: accepted, rejected, or to be retried.",
        ("Reception", "Published", "FATAL"),
    ),
    Term("record", "The row of a key in the store: state, fingerprint, lease, token and stored outcome."),
    Term(
        "redelivery window", "The time after publishing in which a broker may deliver a message again.", ("redelivers",)
    ),
    Term("redrive", "To have a dead letter published, or handled, again.", ("message_redriven",)),
    Term("relay", "A process that publishes the messages of an outbox."),
    Term("replay", "To answer a retry with the stored outcome instead of running again."),
    Term(
        "scope",
        "Part of a key's identity: the tenant or principal that the key belongs to. Two scopes can use the same key.",
    ),
    Term("takeover", "A new attempt that claims a key whose earlier attempt let its lease lapse."),
    Term("tombstone", "A record past its window, kept so that a late retry is recognised.", ("forget",)),
    Term("transition", "A change of a record's state, as the table of transitions allows it."),
    Term(
        "unknown",
        "The state of a key whose last attempt ended in doubt: its effect may have happened. Retries are refused until "
        "a probe or an operator settles the key.",
        ("doubted",),
    ),
    Term("window", "The time after the end of an attempt in which a retry is answered with the stored outcome."),
)


def terms() -> str:
    """The table of terms."""
    rows = ["| term | meaning | in 0.1 |", "| --- | --- | --- |"]
    for term in sorted(TERMS):
        former = ", ".join(f"`{name}`" for name in term.formerly)
        rows.append(f"| {term.name} | {term.meaning} | {former} |")
    return "\n".join(rows)
