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
    Term("dead letter", "A message that was given up and waits for a person.", ("letters=", "message_dead", "died")),
    Term("effects", 'How the work and its record go together: "transactional", "keyed" or "external".'),
    Term("event", "Something retrysafe decided or noticed, told to observers.", ("Occurrence", "Meaning")),
    Term("expired", "A key whose window is over; `on_expired` says whether it may be used again."),
    Term("fencing token", "A number that grows with every attempt; a write with an older one is refused."),
    Term("fingerprint", "A hash of the payload: the same key with another payload is refused."),
    Term("heartbeat", "What renews the leases of work in progress."),
    Term("inbox", "Where the messages a consumer has handled are recorded."),
    Term("key", "What names one piece of work: retries come with the same one."),
    Term("lane", "The messages of one topic and key, which keep their order."),
    Term("lapsed", "A running attempt whose lease is over."),
    Term("lease", "The time for which an attempt holds its key; renewed while the work runs."),
    Term("outbox", "A table of messages that leave when the transaction that wrote them has committed."),
    Term("outcome of a message", "What became of a message at its consumer.", ("Became", "Handled")),
    Term("probe", "A function that finds out whether an effect in doubt has happened."),
    Term("publish status", "What a broker made of a message.", ("Reception", "Published", "FATAL")),
    Term("redelivery window", "How long after it was published a broker may deliver a message again.", ("redelivers",)),
    Term("redrive", "To have a dead letter published, or handled, again.", ("message_redriven",)),
    Term("relay", "A process that publishes what is in an outbox."),
    Term("replay", "To answer a retry with the stored outcome instead of running again."),
    Term("scope", "Part of a key: whose it is, such as a tenant or a principal."),
    Term("takeover", "A new attempt after one whose lease has lapsed."),
    Term("tombstone", "A record past its window, kept so that a late retry is recognised.", ("forget",)),
    Term("transition", "A change of a record's state, as the table of transitions allows it."),
    Term("unknown", "The state of a key of which nobody can tell whether its effect has happened.", ("doubted",)),
    Term("window", "How long after its outcome was stored a key is answered with it."),
)


def terms() -> str:
    """The table of terms."""
    rows = ["| term | meaning | in 0.1 |", "| --- | --- | --- |"]
    for term in sorted(TERMS):
        former = ", ".join(f"`{name}`" for name in term.formerly)
        rows.append(f"| {term.name} | {term.meaning} | {former} |")
    return "\n".join(rows)
