"""The meaning of MQTT's reason codes for messages. Texts are the same for every message: they are grouped by them."""

from __future__ import annotations

from paho.mqtt.reasoncodes import ReasonCode

from retrysafe.messaging.brokers.mqtt.connecting import ConnectionEnded
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.protocol.messages import PublishResult, PublishStatus

ACKED = PublishResult(PublishStatus.ACKED)
_NOBODY = 0x10
_NEVER = (0x95, 0x99)
"""Packet too large, payload format invalid: the message will never be taken."""
_PERHAPS = (0x90,)
"""Topic name invalid: of the message, unless the broker is set up to allow it."""
_DESTINATION = (0x87, 0x97, 0x9B)
"""Not authorized, quota exceeded, QoS not supported: the topic takes nothing from us now."""
_BUSY = (0x88, 0x89, 0x8B, 0x93, 0x96, 0x97, 0x9F)
"""Of a broker that ends a connection: unavailable, busy, shutting down, or more than it wants of us at a time."""
_NO_SUBSCRIBER = PublishResult(
    PublishStatus.STALLED,
    "no session subscribes to the topic, so the broker has dropped it: declare one:  " + declaring(group="GROUP"),
)


def result_of(code: ReasonCode) -> PublishResult:
    if code.value == 0:
        return ACKED
    if code.value == _NOBODY:
        return _NO_SUBSCRIBER
    if code.value in _NEVER:
        return PublishResult(PublishStatus.REJECTED, str(code))
    if code.value in _PERHAPS:
        return PublishResult(PublishStatus.RETRYABLE, str(code))
    return PublishResult(PublishStatus.STALLED if code.value in _DESTINATION else PublishStatus.UNKNOWN, str(code))


def result_of_end(why: ConnectionEnded) -> PublishResult:
    """Turn the end of a connection into the result of unacknowledged messages."""
    return PublishResult(PublishStatus.UNAVAILABLE if why.code in _BUSY else PublishStatus.UNKNOWN, str(why))
