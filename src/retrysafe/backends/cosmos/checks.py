"""The checks of Cosmos DB."""

from __future__ import annotations

from retrysafe.backends.checks import Examination, no_facts
from retrysafe.protocol.checks import Check, Severity, told

_ROWS = {
    "key": (
        "Has the container the partition key that this store needs?",
        Severity.ERROR,
        "Name another container in store=, and run  {program} migrate --store {store}",
    ),
    "write-regions": (
        "Does one region decide who wins a claim?",
        Severity.ERROR,
        "Switch multi-region writes of the account off, or use another account.",
    ),
    "ttl": (
        "Does the container forget by itself?",
        Severity.WARNING,
        "Switch its time to live on, without a default:  az cosmosdb sql container update … --ttl -1",
    ),
    "consistency": (
        "Does a process read what it has written?",
        Severity.WARNING,
        "Set the account's default consistency to Session or stronger.",
    ),
    "clock": ("Does the service tell its time?", Severity.WARNING, "Let the Date header through to the client."),
}
CHECKS = tuple(
    Check(f"cosmos-{name}", asks, severity, fix, "how-to/run-on-cosmos.md", told(name))
    for name, (asks, severity, fix) in _ROWS.items()
)
EXAMINATION = Examination(CHECKS, no_facts, counts_unknown=False)
