"""The spec of a broker, written in its folder, so that no code outside of the folder names it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retrysafe.backends.spec import library


class Option(NamedTuple):
    """An option of `retrysafe relay` that a broker's publishers have.

    name: with underscores, as ``publisher`` takes it.
    choices: the only values, if there are such.
    metavar: what stands for the value in the help.
    """

    name: str
    help: str
    default: Any = None
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] | None = None
    metavar: str | None = None


PARTITIONS = Option(
    "partitions", "spread each topic over so many queues or streams (default: one)", type=int, metavar="N"
)
PREFIX = Option("prefix", "what the names of topics, streams or subjects begin with", default="", metavar="TEXT")
ORDERED = Option(
    "ordered",
    "whether queues and topics are FIFO, or messages have sessions (yes)",
    default="yes",
    choices=("yes", "no"),
)
MODE = Option("mode", "the mode of CloudEvents (binary)", default="binary", choices=("binary", "structured"))
BROKER_TIMEOUT = Option("broker_timeout", "how long confirms are waited for (10s)", default="10s", metavar="TIME")


class BrokerSpec(NamedTuple):
    """One broker: the URLs it is recognised by, and what is imported then.

    References such as "opening:publisher" name a module of the folder and an attribute of it.

    package: the folder, as an importable name.
    title: what people call the broker.
    schemes: of its URLs.
    broker: the class of its `Broker`.
    publisher: makes the publisher of `retrysafe relay`: of a URL, ``asynchronous`` and the options.
    options: of that publisher.
    extra: the optional dependency that it needs; empty if none.
    checks: the `Examination` of `retrysafe doctor`.
    """

    package: str
    title: str
    schemes: tuple[str, ...]
    broker: str
    publisher: str
    options: tuple[Option, ...] = ()
    extra: str = ""
    checks: str = ""

    @property
    def name(self) -> str:
        """What its folder is called."""
        return self.package.rpartition(".")[2]

    def load(self, reference: str) -> Any:
        """Import what a reference names. Raises `ConfigurationError` when its library is missing."""
        module, _, attribute = reference.partition(":")
        return getattr(library(f"{self.package}.{module}", self.extra, self.title), attribute)


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names are imported from their modules when they are first asked for."""

    def found(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return found
