"""HTTP, the client's side: requests that keep their key over every retry, and over a crash of the client.

`Retries` says how requests are retried, `Host` which servers honour keys, `Journal` where requests survive. The
transports are in `retrysafe.http.client.httpx` (sync and async) and `retrysafe.http.client.requests`.
"""

from retrysafe.http.client.budget import Budgets
from retrysafe.http.client.calling import Retries
from retrysafe.http.client.errors import (
    JournalUnavailable,
    RequestKeyExpired,
    RequestKeyReused,
    RequestOutcomeUnknown,
    RequestTooLarge,
)
from retrysafe.http.client.hosts import Host
from retrysafe.http.client.journal import Entry, Journal
from retrysafe.http.client.policy import Environment
from retrysafe.http.client.resuming import Resumed

__all__ = [
    "Budgets",
    "Entry",
    "Environment",
    "Host",
    "Journal",
    "JournalUnavailable",
    "RequestKeyExpired",
    "RequestKeyReused",
    "RequestOutcomeUnknown",
    "RequestTooLarge",
    "Resumed",
    "Retries",
]
