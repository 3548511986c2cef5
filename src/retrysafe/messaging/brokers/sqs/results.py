"""The meaning for messages of answers of SQS and SNS. Texts are equal for all messages, which are grouped by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.messaging.brokers.sqs.client import code_of, is_missing, plain, status_of
from retrysafe.protocol.messages import PublishResult, PublishStatus

_BLAMES = ("Throttl", "OverLimit", "Kms", "KMS", "AccessDenied", "Authorization", "InvalidSecurity", "Queue")
"""The beginning of codes that blame the rate, our rights, a key or the queue, and no message."""
_NEVER = ("InvalidMessageContents", "BatchRequestTooLong", "MessageTooLong")
"""Codes for a message that will never be taken."""
_PERHAPS = ("InvalidParameterValue", "InvalidParameter", "ParameterValueInvalid", "InvalidAttributeValue")
"""Codes for what may be wrong with a message."""


def result_of_answer(answer: Mapping[str, Any]) -> PublishResult:
    code = plain(answer.get("Code"))
    if not answer.get("SenderFault") or code.removeprefix("Request").startswith(_BLAMES):
        return PublishResult(PublishStatus.STALLED, code)
    return PublishResult(PublishStatus.REJECTED if code in _NEVER else PublishStatus.RETRYABLE, code)


_MISSING = f"there is no such queue or topic: declare it:  {declaring()}"


def blames_one(error: BaseException) -> bool:
    """Tell whether a whole batch was refused for what is wrong with one of its messages."""
    return isinstance(error, ClientError) and code_of(error) in (*_NEVER, *_PERHAPS)


def result_of(error: BaseException, *, sent: bool = True) -> PublishResult:
    """Turn the failure of a call into a result; a batch of several that `blames_one` is to be divided before.

    sent: whether the call would have published them.
    """
    if is_missing(error):
        return PublishResult(PublishStatus.STALLED, _MISSING)
    if isinstance(error, ClientError) and status_of(error) < 500:
        code = code_of(error)
        if sent and blames_one(error):
            return PublishResult(PublishStatus.REJECTED if code in _NEVER else PublishStatus.RETRYABLE, code)
        return PublishResult(PublishStatus.STALLED, code)  # the queue, our rights, or the rate: no single message
    text = code_of(error) if isinstance(error, ClientError) else type(error).__name__
    if isinstance(error, ConfigurationError):
        return PublishResult(PublishStatus.UNAVAILABLE, str(error))
    nowhere = not sent or isinstance(error, EndpointConnectionError | ConnectTimeoutError)
    return PublishResult(PublishStatus.UNAVAILABLE if nowhere else PublishStatus.UNKNOWN, text)
