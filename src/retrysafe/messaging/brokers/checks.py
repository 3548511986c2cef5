"""The form in which a broker's folder brings its checks for `retrysafe doctor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retrysafe.protocol.checks import Check, Severity


class BrokerExamination(NamedTuple):
    """The checks of one broker.

    checks: each judges the facts.
    facts: asks the broker at a URL for them, with the topics that are looked at. It is called in a thread of its own,
        and abandoned when it takes too long. What it raises means that the broker cannot be reached.
    """

    checks: tuple[Check, ...]
    facts: Callable[[str, tuple[str, ...]], Mapping[str, Any]]


UNREACHABLE = Check(
    "broker-unreachable",
    "Does the broker answer, and let us in?",
    Severity.ERROR,
    "Start the broker, or correct the address, user and password in its URL.",
    "how-to/troubleshooting.md",
    lambda facts: facts.get("unreachable"),
)
