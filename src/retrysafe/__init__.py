"""Make any operation safe to retry: claim a key atomically, run once, store the outcome, replay it."""

from retrysafe.boundary import Boundary
from retrysafe.claims.claim import Claim, current
from retrysafe.claims.codec import Codec, JSONCodec
from retrysafe.claims.encryption import Keyring
from retrysafe.claims.observers import LoggingObserver
from retrysafe.claims.settings import layered, reject, wait
from retrysafe.errors import (
    ConfigurationError,
    IllegalTransition,
    InProgress,
    InvalidKey,
    KeyExpired,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    QuotaExceeded,
    ResultNotEncodable,
    ResultUnreadable,
    RetrysafeError,
    RetryTransaction,
    SchemaOutdated,
    StoredFailure,
    StoreUnavailable,
)
from retrysafe.protocol.events import Event, Observer
from retrysafe.protocol.quotas import Quota
from retrysafe.protocol.records import StoredResult

__all__ = [
    "Boundary",
    "Claim",
    "Codec",
    "ConfigurationError",
    "Event",
    "IllegalTransition",
    "InProgress",
    "InvalidKey",
    "JSONCodec",
    "KeyExpired",
    "KeyReused",
    "Keyring",
    "LeaseLost",
    "LoggingObserver",
    "Observer",
    "OutcomeUnknown",
    "Quota",
    "QuotaExceeded",
    "ResultNotEncodable",
    "ResultUnreadable",
    "RetryTransaction",
    "RetrysafeError",
    "SchemaOutdated",
    "StoreUnavailable",
    "StoredFailure",
    "StoredResult",
    "current",
    "layered",
    "reject",
    "wait",
]
__version__ = "0.1.0"
