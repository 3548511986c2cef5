"""The checks of MongoDB."""

from __future__ import annotations

from retrysafe.backends.checks import Examination, no_facts
from retrysafe.protocol.checks import Check, Severity, told

_GUIDE = "how-to/run-on-mongodb.md"

CHECKS = (
    Check(
        "mongodb-replica-set",
        "Does the server replicate what it has acknowledged, and have transactions?",
        Severity.WARNING,
        "Run it as a replica set:  mongod --replSet NAME, and rs.initiate() once",
        _GUIDE,
        told("replica set"),
    ),
    Check(
        "mongodb-ttl",
        "Does the collection forget by itself?",
        Severity.WARNING,
        "{program} migrate --store {store}  (it makes the TTL index on purge_at)",
        _GUIDE,
        told("time to live"),
    ),
)
EXAMINATION = Examination(CHECKS, no_facts, clock=lambda store: store.time(), counts_unknown=False)
