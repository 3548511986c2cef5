"""The spec of a broker, written in its folder, so that no code outside of the folder names it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retrysafe.backends.spec import library


class Option(NamedTuple):
    """An option of `retrysafe relay` that a broker's publishers have, or of `retrysafe inbox run` for its consumers.

    name: with underscores.
    choices: the only values, if there are such.
    metavar: what stands for the value in the help.
    argument: of publishers and consumers, if it has another name.
    convert: makes the argument of the value.
    """

    name: str
    help: str
    default: Any = None
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] | None = None
    metavar: str | None = None
    argument: str = ""
    convert: Callable[[Any], Any] = lambda value: value


def is_yes(value: str) -> bool:
    """Convert the choices "yes" and "no"."""
    return value == "yes"


PARTITIONS = Option(
    "partitions", "spread each topic over so many queues or streams (default: one)", type=int, metavar="N"
)
PREFIX = Option("prefix", "what the names of topics, streams or subjects begin with", default="", metavar="TEXT")
ORDERED = Option(
    "ordered",
    "whether queues and topics are FIFO, or messages have sessions (yes)",
    default="yes",
    choices=("yes", "no"),
    convert=is_yes,
)
MODE = Option("mode", "the mode of CloudEvents (binary)", default="binary", choices=("binary", "structured"))
BROKER_TIMEOUT = Option(
    "broker_timeout", "how long confirms are waited for (10s)", default="10s", metavar="TIME", argument="timeout"
)


# Of consumers. None leaves a consumer its own default, which is not the same for every broker.
PREFETCH = Option("prefetch", "unsettled messages of a queue or partition in memory, at most", type=int, metavar="N")
PREFETCH_BYTES = Option("prefetch_bytes", "bytes of them, at most", type=int, metavar="N")
LEASE = Option("lease", "how long a dead consumer keeps its messages", metavar="TIME")
POLL = Option("poll", "how long the broker is asked to wait for messages", metavar="TIME")
KEEP = Option(
    "keep",
    "how long settled entries, or a session without a consumer, are kept; or forever",
    metavar="TIME",
    convert=lambda value: None if value == "forever" else value,
)
REDELIVERY_WINDOW = Option(
    "redelivery_window",
    "how long after its publication a message may come again, where the broker does not tell",
    metavar="TIME",
)


# Of what is declared.
REPLICAS = Option("replicas", "servers that keep each message (default: as they are set to)", type=int, metavar="N")


def declaring(topic: str = "TOPIC", group: str = "") -> str:
    """The command that declares a topic, for errors: with the broker that the relay has."""
    return f"retrysafe topics declare --broker URL --topic {topic}{group and f' --group {group}'}"


class BrokerSpec(NamedTuple):
    """One broker: the URLs it is recognised by, and what is imported then.

    References such as "opening:publisher" name a module of the folder and an attribute of it.

    package: the folder, as an importable name.
    title: what people call the broker.
    schemes: of its URLs.
    broker: the class of its `Broker`.
    publisher: makes the publisher of `retrysafe relay`: of a URL and the options.
    async_publisher: makes it for async stores; empty if it is the same.
    options: of that publisher.
    consumer: makes the consumer of `retrysafe inbox run`: of a URL, topics, ``group`` and the options; empty if none.
    consumer_options: of that consumer.
    declaration: makes what `retrysafe topics declare` is given: of a URL, topics, ``group`` and the options; empty if
        everything is made when it is first used.
    declare_options: of that.
    extra: the optional dependency that it needs; empty if none.
    checks: the `Examination` of `retrysafe doctor`.
    """

    package: str
    title: str
    schemes: tuple[str, ...]
    broker: str
    publisher: str
    async_publisher: str = ""
    options: tuple[Option, ...] = ()
    consumer: str = ""
    consumer_options: tuple[Option, ...] = ()
    declaration: str = ""
    declare_options: tuple[Option, ...] = ()
    extra: str = ""
    checks: str = ""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.package.rpartition(".")[2]

    def load(self, reference: str) -> Any:
        """Import what a reference names. Raises `ConfigurationError` when its library is missing."""
        module, _, attribute = reference.partition(":")
        return getattr(library(f"{self.package}.{module}", self.extra, self.title), attribute)


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names are imported from their modules when they are first asked for."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return find
