"""A message of Pub/Sub as an envelope, and the other way round: the attributes of a CloudEvent are its attributes.

Both modes of the binding that Google wrote for CloudEvents
(https://github.com/googleapis/google-cloudevents/blob/main/docs/spec/pubsub.md) are written and read. An event whose
attributes exceed the limits of a message (https://cloud.google.com/pubsub/quotas#resource_limits) is always written in
structured mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from retrysafe.messaging.cloudevents import (
    OWN,
    STRUCTURED,
    Mode,
    is_event,
    other_headers,
    read_event,
    to_structured,
    with_prefix,
)
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.ordering import lane

_PREFIX, _MEDIA_TYPE = "ce-", "content-type"
_RESERVED = "goog"
"""The beginning of the service's own names of attributes, topics and subscriptions."""
_MOST_ATTRIBUTES = 100
_LONGEST_NAME, _LONGEST_VALUE = 256, 1024
_LONGEST_KEY = 1024
_SHORTEST_RESOURCE, _LONGEST_RESOURCE = 3, 255


class PubSubContent(NamedTuple):
    data: bytes
    attributes: dict[str, str]
    ordering_key: str


def topic_path(project: str, prefix: str, topic: str) -> str:
    """The topic of Pub/Sub for a topic. Raises `ValueError` for a name that none has."""
    return f"projects/{project}/topics/{_check(_encode(prefix + topic))}"


def subscription_path(project: str, prefix: str, topic: str, group: str) -> str:
    """The subscription of a group to a topic. Raises `ValueError` for a name that none has."""
    service = _encode(group).replace(".", "%2E")  # the first dot ends it
    return f"projects/{project}/subscriptions/{_check(f'{_encode(prefix)}{service}.{_encode(topic)}')}"


def _encode(text: str) -> str:
    return quote(text, safe="+")


def _check(name: str) -> str:
    fits = _SHORTEST_RESOURCE <= len(name) <= _LONGEST_RESOURCE
    if not fits or not (name[0].isascii() and name[0].isalpha()) or name.startswith(_RESERVED):
        raise ValueError(
            f"{name!r} is not a name of Pub/Sub: 3 to 255 characters, of which the first is a letter, not 'goog…'"
        )
    return name


def content_of(envelope: Envelope, mode: Mode) -> PubSubContent:
    """Return the message for an envelope.

    A header of the envelope whose name no attribute of an event may have is an attribute of the message under its own
    name. Raises `ValueError` for what has no place in a message.
    """
    others = other_headers(envelope)
    for name, value in others.items():
        if not _is_name(name) or not _fits(name, value):
            raise ValueError(f"a header {name!r} cannot be an attribute of a message of Pub/Sub: its name or its value")
    told = with_prefix(envelope, _PREFIX)
    fits = len(told) <= _MOST_ATTRIBUTES and all(_fits(name, value) for name, value in told.items())
    if mode == "binary" and fits and not is_event(envelope.media_type):
        return PubSubContent(envelope.payload, told, ordering_key(envelope))
    return PubSubContent(to_structured(envelope), {_MEDIA_TYPE: STRUCTURED, **others}, ordering_key(envelope))


def _is_name(name: str) -> bool:
    lower = name.lower()
    return bool(name) and not lower.startswith((_PREFIX, _RESERVED)) and lower != _MEDIA_TYPE and lower not in OWN


def _fits(name: str, value: str) -> bool:
    """Tell whether a message may have such an attribute. Halves of characters have no place in UTF-8."""
    try:
        return len(name.encode()) <= _LONGEST_NAME and len(value.encode()) <= _LONGEST_VALUE
    except UnicodeEncodeError:
        return False


def ordering_key(envelope: Envelope) -> str:
    """The key of the message; that of its lane if it is empty or too long; none for a message without a key."""
    if envelope.key is None:
        return ""
    if envelope.key and _fits("", envelope.key):
        return envelope.key
    return f"lane-{lane(envelope.topic, envelope.key, envelope.id) & (1 << 64) - 1:016x}"


def envelope_from(data: bytes, told: Mapping[str, str], key: str, topic: str) -> Envelope:
    """The envelope of a message with this data, attributes and ordering key, from any publisher.

    An event of another publisher, without a subject, is ordered by the ordering key.
    """
    given: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in told.items():
        lower = name.lower()
        if lower.startswith(_PREFIX):
            given.setdefault(lower.removeprefix(_PREFIX), value)
        elif lower != _MEDIA_TYPE and name not in OWN:
            others[name] = value
    media_types = [value for name, value in told.items() if name.lower() == _MEDIA_TYPE]
    if media_types:
        given["datacontenttype"] = media_types[0]
    envelope = read_event(given, data, topic, others, may_be_bare=True)
    if envelope.key is None and key:
        envelope = envelope._replace(key=key)
    return envelope
