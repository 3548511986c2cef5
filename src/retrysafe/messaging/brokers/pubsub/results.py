"""The meaning of Pub/Sub's errors for messages. Texts are the same for every message: they are grouped by them."""

from __future__ import annotations

from collections.abc import Mapping

from google.api_core.exceptions import (
    Cancelled,
    ClientError,
    DeadlineExceeded,
    GoogleAPICallError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    ServiceUnavailable,
    Unauthenticated,
)

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.pubsub.client import DECLARE
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.messages import PublishResult, PublishStatus

MISSING = PublishResult(PublishStatus.STALLED, f"there is no such topic: {DECLARE}")
_FORBIDDEN = PublishResult(
    PublishStatus.STALLED, "we may not publish to the topic: give this account the role roles/pubsub.publisher"
)
_SILENT = PublishResult(PublishStatus.UNKNOWN, "the service did not answer in time")
_EXACTLY_ONCE = "EXACTLY_ONCE"
"""The beginning of the reasons whose metadata are acknowledgements."""
_TRANSIENT = "TRANSIENT_"
"""The beginning of an acknowledgement's result that may be tried again."""


def blames_one(error: BaseException) -> bool:
    """Tell whether a request was refused for what is wrong with one of its messages."""
    return isinstance(error, InvalidArgument)


def result_of(error: BaseException) -> PublishResult:
    """Turn the failure of a request into a result; one of several that `blames_one` is to be divided before."""
    if isinstance(error, NotFound):
        return MISSING
    if isinstance(error, PermissionDenied):
        return _FORBIDDEN
    if isinstance(error, DeadlineExceeded):
        return _SILENT
    if isinstance(error, ResourceExhausted):
        return PublishResult(PublishStatus.STALLED, "a quota of the project is used up")
    if isinstance(error, ServiceUnavailable | Unauthenticated | ConfigurationError):
        return PublishResult(PublishStatus.UNAVAILABLE, _text(error))
    if blames_one(error):
        return PublishResult(PublishStatus.RETRYABLE, _text(error))
    refused = isinstance(error, ClientError) and not isinstance(error, Cancelled)
    return PublishResult(PublishStatus.STALLED if refused else PublishStatus.UNKNOWN, _text(error))


def for_a_consumer(error: Exception, subscription: str) -> Exception:
    """Turn an error into that of the consumer: errors that further calls would meet again are faults of the set-up."""
    if isinstance(error, NotFound):
        return QueueMissing(f"Pub/Sub has no subscription {subscription}: {DECLARE}, and its group.")
    if isinstance(error, PermissionDenied | Unauthenticated):
        return ConfigurationError(
            f"We may not consume {subscription}: {_text(error)}. Give this account the roles roles/pubsub.subscriber "
            "and roles/pubsub.viewer."
        )
    return error


def refusals_of(error: BaseException) -> Mapping[str, str]:
    """Return the results of acknowledgements to a subscription with exactly-once delivery, by their ids.

    The others of the request were taken. Empty for an error that says nothing of single ones.
    """
    if not isinstance(error, GoogleAPICallError) or not (error.reason or "").startswith(_EXACTLY_ONCE):
        return {}
    return dict(error.metadata or {})


def may_be_repeated(fate: str) -> bool:
    return fate.startswith(_TRANSIENT)


def _text(error: BaseException) -> str:
    said = error.message if isinstance(error, GoogleAPICallError) else str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
