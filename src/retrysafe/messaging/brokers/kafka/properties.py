"""The properties of a Kafka client, from a URL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from confluent_kafka import KafkaException

from retrysafe.backends.urls import without_password
from retrysafe.claims.repeats import Repeats
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.records import Duration

Properties = Mapping[str, str | int | float | bool]
"""Of librdkafka: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"""
_DEFAULTS: Properties = {
    "client.id": "retrysafe",
    "topic.metadata.refresh.interval.ms": 5000,  # not after minutes: the client may ask again only then where the
    # answer about its topics was lost, and looks only then for one that was missing
}
_MEMBER: Properties = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # so that lost messages, or a partition that is another one, are reported
    "partition.assignment.strategy": "cooperative-sticky",
    "isolation.level": "read_committed",
}
LOG = logging.getLogger("retrysafe.kafka")
"""The log of librdkafka, which otherwise writes to stderr. It says of an outage the same again and again."""
_repeats = Repeats()
LOG.addFilter(lambda record: _repeats.is_new("".join(sign for sign in record.getMessage() if not sign.isdigit())))


def properties_of(url: str, ours: Properties, theirs: Properties | None = None) -> dict[str, Any]:
    """The properties of a client: those of the URL, of the caller, and ours, which are not to be changed.

    The URL is "kafka://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][?PROPERTY=VALUE&...]". Raises `ConfigurationError`
    for a URL without a host, and for a property that a promise of ours depends on.
    """
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    if parts.scheme != "kafka" or not hosts or parts.path not in ("", "/"):
        raise ConfigurationError(f"{without_password(url)}: write kafka://host:9092,other:9092.")
    given: dict[str, Any] = {"bootstrap.servers": hosts}
    if credentials:
        user, _, password = credentials.partition(":")
        given |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
    given |= {**dict(parse_qsl(parts.query, keep_blank_values=True)), **(theirs or {})}
    if fixed := sorted(given.keys() & ours.keys()):
        raise ConfigurationError(f"{', '.join(fixed)} cannot be set: what is promised of messages depends on it.")
    return {**_DEFAULTS, **given, **ours}


def require_known(client: Callable[..., Any], properties: Properties) -> None:
    """Raise `ConfigurationError` for properties that the client refuses; without servers it connects to nothing."""
    try:
        client({name: value for name, value in properties.items() if name != "bootstrap.servers"}, logger=LOG)
    except KafkaException as error:
        raise ConfigurationError(f"{error.args[0].str()}: correct it in the URL, or in properties=.") from error


def properties_of_member(group: str, session: Duration) -> Properties:
    """The properties of a consumer in a group, which has its partitions for so long when it is dead."""
    timeout = round(seconds_of(session, "session") * 1000)
    return {**_MEMBER, "group.id": group, "session.timeout.ms": timeout, "heartbeat.interval.ms": timeout // 4 or 1}
