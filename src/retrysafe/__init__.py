"""Make any operation safe to retry: claim a key atomically, run once, store the outcome, replay it."""

from retrysafe.boundary import Boundary
from retrysafe.claim import Claim, current
from retrysafe.codec import JSONCodec
from retrysafe.core.quotas import Quota
from retrysafe.encryption import Keyring
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
from retrysafe.observers import LoggingObserver
from retrysafe.ports import Codec, Event, Observer
from retrysafe.terms import layered, reject, wait
from retrysafe.types import StoredResult

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
