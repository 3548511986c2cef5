"""The spec of a broker, written in its folder, so that no code outside of the folder names it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from retrysafe.backends.spec import library
from retrysafe.messaging.brokers.options import Option, read_options


def declaring(group: str = "") -> str:
    """The command that declares a topic, for errors: with the broker that the relay has."""
    return f"retrysafe topics declare --broker URL --topic TOPIC{group and f' --group {group}'}"


class BrokerSpec(NamedTuple):
    """One broker: the URLs it is recognised by, and what is imported then.

    References such as "opening:publisher" name a module of the folder and an attribute of it.

    package: the folder, as an importable name.
    title: what people call the broker.
    schemes: of its URLs.
    publisher: makes the publisher of `retrysafe relay`: of a URL and the options, which are its arguments.
    async_publisher: makes it for async stores; empty if it is the same.
    consumer: makes the consumer of `retrysafe inbox run`: of a URL, topics, ``group`` and the options; empty if none.
    declaration: makes what `retrysafe topics declare` is given: of a URL, topics, ``group`` and the options; empty if
        everything is made when it is first used.
    declares: the arguments of the declaration that are options.
    passed_to: for each function that only passes its options on, the class or function that declares them.
    extra: the optional dependency that it needs; empty if none.
    broker: makes the `Broker` of a URL, ``name``, ``partitions`` and ``lease``.
    checks: the `Examination` of `retrysafe doctor`.
    """

    package: str
    title: str
    schemes: tuple[str, ...]
    publisher: str
    async_publisher: str = ""
    consumer: str = ""
    declaration: str = ""
    declares: tuple[str, ...] = ()
    passed_to: Mapping[str, str] = {}
    extra: str = ""
    broker: str = "consumer:broker"
    checks: str = ""

    @property
    def name(self) -> str:
        return self.package.rpartition(".")[2]

    @property
    def publisher_options(self) -> tuple[Option, ...]:
        """The options of `retrysafe relay`."""
        return self._options(self.publisher)

    @property
    def consumer_options(self) -> tuple[Option, ...]:
        """The options of `retrysafe inbox run`."""
        return self._options(self.consumer)

    @property
    def declare_options(self) -> tuple[Option, ...]:
        """The options of `retrysafe topics declare`."""
        return tuple(option for option in self._options(self.declaration) if option.argument in self.declares)

    def _options(self, reference: str) -> tuple[Option, ...]:
        if not reference:
            return ()
        module, _, name = self.passed_to.get(reference, reference).partition(":")
        return read_options(files(self.package).joinpath(f"{module}.py").read_text("utf-8"), name)

    def load(self, reference: str) -> Any:
        """Import what a reference names. Raises `ConfigurationError` when its library is missing."""
        module, _, attribute = reference.partition(":")
        return getattr(library(f"{self.package}.{module}", self.extra, self.title), attribute)


def lazily(package: str, **names: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: by module the names, separated by spaces, that are imported when asked for."""
    modules = {name: module for module, listed in names.items() for name in listed.split()}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return find
