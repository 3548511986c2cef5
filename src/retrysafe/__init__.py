"""Make any operation safe to retry: claim a key atomically, run once, store the outcome, replay it."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing would be half of the time to import; type checkers know the name
if TYPE_CHECKING:
    from retrysafe.boundary import Boundary
    from retrysafe.claims.claim import Claim, current
    from retrysafe.claims.codec import Codec, JSONCodec
    from retrysafe.claims.declaration import declare
    from retrysafe.claims.encryption import Keyring
    from retrysafe.claims.named_lease import Lease
    from retrysafe.claims.observers import LoggingObserver
    from retrysafe.claims.settings import layered, reject, wait
    from retrysafe.claims.step import Step
    from retrysafe.commands import CommandBus
    from retrysafe.errors import (
        ConfigurationError,
        IllegalTransition,
        InProgress,
        InvalidKey,
        KeyExpired,
        KeyReused,
        LeaseLost,
        OutcomeUnknown,
        Postponed,
        QuotaExceeded,
        ResultNotEncodable,
        ResultUnreadable,
        RetrysafeError,
        RetryTransaction,
        SchemaOutdated,
        StaleToken,
        StoredFailure,
        StoreMisconfigured,
        StoreUnavailable,
    )
    from retrysafe.patterns import insert_once, update_if, upsert
    from retrysafe.protocol.content_keys import content_key
    from retrysafe.protocol.events import Event, Observer
    from retrysafe.protocol.quotas import Quota
    from retrysafe.protocol.records import StoredResult

__all__ = [
    "Boundary",
    "Claim",
    "Codec",
    "CommandBus",
    "ConfigurationError",
    "Event",
    "IllegalTransition",
    "InProgress",
    "InvalidKey",
    "JSONCodec",
    "KeyExpired",
    "KeyReused",
    "Keyring",
    "Lease",
    "LeaseLost",
    "LoggingObserver",
    "Observer",
    "OutcomeUnknown",
    "Postponed",
    "Quota",
    "QuotaExceeded",
    "ResultNotEncodable",
    "ResultUnreadable",
    "RetryTransaction",
    "RetrysafeError",
    "SchemaOutdated",
    "StaleToken",
    "Step",
    "StoreMisconfigured",
    "StoreUnavailable",
    "StoredFailure",
    "StoredResult",
    "content_key",
    "current",
    "declare",
    "insert_once",
    "layered",
    "reject",
    "update_if",
    "upsert",
    "wait",
]
__version__ = "0.1.0"

_HOMES = {
    "Boundary": "boundary",
    "Claim": "claims.claim",
    "Codec": "claims.codec",
    "CommandBus": "commands",
    "ConfigurationError": "errors",
    "Event": "protocol.events",
    "IllegalTransition": "errors",
    "InProgress": "errors",
    "InvalidKey": "errors",
    "JSONCodec": "claims.codec",
    "KeyExpired": "errors",
    "KeyReused": "errors",
    "Keyring": "claims.encryption",
    "Lease": "claims.named_lease",
    "LeaseLost": "errors",
    "LoggingObserver": "claims.observers",
    "Observer": "protocol.events",
    "OutcomeUnknown": "errors",
    "Postponed": "errors",
    "Quota": "protocol.quotas",
    "QuotaExceeded": "errors",
    "ResultNotEncodable": "errors",
    "ResultUnreadable": "errors",
    "RetryTransaction": "errors",
    "RetrysafeError": "errors",
    "SchemaOutdated": "errors",
    "StaleToken": "errors",
    "Step": "claims.step",
    "StoreMisconfigured": "errors",
    "StoreUnavailable": "errors",
    "StoredFailure": "errors",
    "StoredResult": "protocol.records",
    "content_key": "protocol.content_keys",
    "current": "claims.claim",
    "declare": "claims.declaration",
    "insert_once": "patterns",
    "layered": "claims.settings",
    "reject": "claims.settings",
    "update_if": "patterns",
    "upsert": "patterns",
    "wait": "claims.settings",
}
"""The module of each name; it is imported when the name is first asked for."""

if not TYPE_CHECKING:  # type checkers know the names above, and refuse others

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
