"""The checks of DynamoDB."""

from __future__ import annotations

from retrysafe.backends.checks import Examination, no_facts
from retrysafe.protocol.checks import Check, Severity, told

_GUIDE = "how-to/run-on-dynamodb.md"

CHECKS = (
    Check(
        "dynamodb-key",
        "Has the table the key that this store needs?",
        Severity.ERROR,
        "Name another table in store=, and run  {program} migrate --store {store}",
        _GUIDE,
        told("key"),
    ),
    Check(
        "dynamodb-permission",
        "May the settings of the table be read?",
        Severity.NOTE,
        "Allow dynamodb:DescribeTable and dynamodb:DescribeTimeToLive.",
        _GUIDE,
        told("table"),
    ),
    Check(
        "dynamodb-ttl",
        "Does the table forget by itself?",
        Severity.WARNING,
        "{program} migrate --store {store}  (it switches on time to live for the attribute ttl)",
        _GUIDE,
        told("time to live"),
    ),
    Check(
        "dynamodb-replicas",
        "Does one region decide who wins a claim?",
        Severity.ERROR,
        "Use a table of one region, or send every claim to one of them.",
        _GUIDE,
        told("global table"),
    ),
    Check(
        "dynamodb-clock",
        "Does the service tell its time?",
        Severity.WARNING,
        "Let the Date header through to the client.",
        _GUIDE,
        told("clock"),
    ),
)
EXAMINATION = Examination(CHECKS, no_facts, counts_unknown=False)
