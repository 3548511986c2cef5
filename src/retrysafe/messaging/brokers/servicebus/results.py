"""The meaning of Service Bus's errors for messages. Texts are the same for every message: they are grouped by them."""

from __future__ import annotations

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.servicebus.client import DECLARE, condition_of
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.messages import PublishResult, PublishStatus

_STALLED: tuple[tuple[type[Exception], str], ...] = (
    (MessagingEntityNotFoundError, f"there is no such queue or topic: {DECLARE}"),
    (MessagingEntityDisabledError, "the queue or topic is disabled for sending: enable it"),
    (ServiceBusQuotaExceededError, "the queue or topic is full: let consumers catch up, or give it a larger size"),
    (ServiceBusServerBusyError, "the service is busy: it throttles the namespace"),
    (ServiceBusAuthorizationError, "we may not send: give this identity the right Send, or the role Data Sender"),
)
"""The errors of a destination, or of our rights to it."""
_BLAMING = ("amqp:not-allowed", "amqp:invalid-field", "amqp:decode-error", "amqp:not-implemented")
"""Conditions of what may be wrong with a message."""
_ARGUMENT = "com.microsoft:argument-"
_NOT_ALLOWED = "amqp:not-allowed"
_OURS, _THEIRS = 400, 500
"""Between these are statuses by which the service says that it is our fault."""
_LATER = (408, 429)
"""Those of them by which it says that we should come again."""
_SESSIONS = PublishResult(PublishStatus.STALLED, "the queue or topic wants sessions: publish with ordered=True")


def blames_one(error: BaseException) -> bool:
    """Tell whether a batch was refused for a fault of one of its messages, or for several sessions in it."""
    condition = condition_of(error)
    return isinstance(error, MessageSizeExceededError) or condition in _BLAMING or condition.startswith(_ARGUMENT)


def is_silence(error: BaseException) -> bool:
    """Tell whether the service did not answer in time."""
    return isinstance(error, TimeoutError | OperationTimeoutError)


def alone(error: BaseException, session: str | None) -> PublishResult:
    """Turn a failure into the result of a message that was sent alone, or of all messages of a batch.

    What the service does not allow of one without a session is the same for all of them.
    """
    if session is None and condition_of(error) == _NOT_ALLOWED:
        return _SESSIONS
    return result_of(error)


def result_of(error: BaseException, *, sent: bool = True) -> PublishResult:
    """Turn a failure into a result; messages of a batch of several that `blames_one` are to be sent alone before.

    sent: whether they may have left.
    """
    for kind, text in _STALLED:
        if isinstance(error, kind):
            return PublishResult(PublishStatus.STALLED, text)
    if isinstance(error, MessageSizeExceededError):
        return PublishResult(PublishStatus.REJECTED, "larger than the queue or topic takes")
    if isinstance(error, ConfigurationError | ServiceBusAuthenticationError):
        return PublishResult(PublishStatus.UNAVAILABLE, _text(error))
    if sent and blames_one(error):
        return PublishResult(PublishStatus.RETRYABLE, _text(error))
    if not sent:
        return PublishResult(PublishStatus.UNAVAILABLE, _text(error))
    text = "the service did not answer in time" if is_silence(error) else _text(error)
    return PublishResult(PublishStatus.UNKNOWN, text)


def for_a_consumer(error: Exception, path: str) -> Exception:
    """Turn the error of a refused consumer into its own: errors that it would meet again are faults of the set-up."""
    if _passes(error):
        return error
    if isinstance(error, MessagingEntityNotFoundError):
        return QueueMissing(f"Service Bus has no {path}: {DECLARE}, and its group.")
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return ConfigurationError(
            f"We may not receive from {path}: {_text(error)}. Give this identity the right Listen, or the role Azure "
            "Service Bus Data Receiver."
        )
    if condition_of(error) == _NOT_ALLOWED:
        return ConfigurationError(
            f"Service Bus does not let us receive from {path} like this: {_text(error)}. One that requires sessions "
            "needs ordered=True of the consumer, and one without sessions needs ordered=False."
        )
    return error


def _passes(error: Exception) -> bool:
    """Tell whether the refusal was not ours: the service did not judge our token, or it ended meanwhile."""
    cause = getattr(error, "inner_exception", None)
    if not isinstance(error, ServiceBusAuthenticationError) or cause is None:
        return False
    status = getattr(cause, "status_code", None)
    return not isinstance(status, int) or not _OURS <= status < _THEIRS or status in _LATER


def _text(error: BaseException) -> str:
    """Without what the service says, which has numbers of its own in it."""
    if isinstance(error, ConfigurationError):
        return str(error)
    condition = condition_of(error)
    return f"{type(error).__name__}: {condition}" if condition else type(error).__name__
