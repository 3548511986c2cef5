"""From the URL of a broker to what publishes to it and consumes from it.

A broker is a folder beside this module, with a `BrokerSpec`; its other modules are imported when its URL is met. The
memory broker and webhooks have no URL: they are made in code.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from urllib.parse import urlsplit

from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.spec import BrokerSpec
from retrysafe.protocol.records import Duration

BROKERS = ("kafka", "mqtt", "nats", "pubsub", "rabbitmq", "redis_streams", "servicebus", "sqlite", "sqs")
"""The folders of the brokers that have URLs."""


def specs() -> Iterator[BrokerSpec]:
    """The specs of all brokers that have URLs."""
    for name in BROKERS:
        spec: BrokerSpec = importlib.import_module(f"retrysafe.messaging.brokers.{name}").BROKER
        yield spec


def spec_of(url: str) -> BrokerSpec:
    """The spec of the broker that has the scheme of a URL. Raises `ConfigurationError` for an unknown scheme."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    for spec in specs():
        if scheme in spec.schemes:
            _require_readable(scheme, url)
            return spec
    known = ", ".join(f"{name}://" for spec in specs() for name in spec.schemes)
    raise ConfigurationError(f"{without_password(scheme or url)!r} is not a URL of a broker; known are {known}.")


def _require_readable(scheme: str, url: str) -> None:
    """Refuse what every client would fail on, again and again, and some with a part of the password in the error."""
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{host}").port
        if parts.netloc and ("@" in parts.fragment or "@" in parts.query.partition("=")[0]):
            raise ValueError  # the rest of a password, as of user:12#34@host
    except ValueError:
        raise ConfigurationError(
            f"The {scheme}:// URL of the broker cannot be read: a port is a number up to 65535, and / ? # @ : and % in "
            "a user's name or password are percent-encoded, as in %2F."
        ) from None


def broker_at(url: str, *, name: str, partitions: int | None = None, lease: Duration = "15s") -> Broker:
    """The broker behind a URL. Connects when it is first used.

    Arguments:
        name: of what is ours there, which keeps it apart from what others have at the same broker.
        partitions: over how many queues or streams each topic is spread.
        lease: for how long a dead consumer keeps its messages, where the broker cannot see that it is gone.

    Raises `ConfigurationError` for a URL that no broker has, and when the broker's library is missing.
    """
    spec = spec_of(url)
    broker: Broker = spec.load(spec.broker)(url, name=name, partitions=partitions, lease=lease)
    return broker
