"""The command line has an option for every parameter of what it runs, with the same default."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import pytest

from retrysafe.admin.sweeper import Sweeper
from retrysafe.cli import inbox, outbox, relay, sweep
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers import registry
from retrysafe.messaging.brokers.options import read_options
from retrysafe.messaging.brokers.spec import BrokerSpec
from retrysafe.messaging.relay.operator import OutboxSweeper
from retrysafe.messaging.relay.relay import Relay
from retrysafe.messaging.subscription.subscription import Subscription
from tests.tables import each_row

EXCEPTIONS = {"observers": "the command tells by its log and its output", "publisher": "is made of --broker"}
NAMED = {"sources": "source", "topics": "topic"}
IN_THE_URL = {"client", "url", "project", "region", "endpoint", "topics", "group"}
NOT_IN_A_WORD = {"observers", "properties"}
PUBLISHER = '''
class Base:
    def __init__(
        self,
        url: str,
        *,
        count: int = 3,
        keep: Duration | None = "1d",
        delete: bool = False,
        only: Iterable[int] | None = None,
        sort: Literal["a", "b"] = "a",
        timeout: Duration = "1s",
        region: str = "",
        observers: Iterable[Observer] = (),
    ):
        pass


class Publisher(Base):
    """Publishes.

    Arguments:
        count: so many; more are
            refused.
        delete: at once.
        only: these. Others are not.
        sort: sorted so.
    """
'''
NEEDED = {"outbox sweep": ("--older-than", "7d"), "inbox run": ("module:handler",)}
OTHER_DEFAULTS = {
    "every": "without it, the command ends when nothing is left",
    "keep": "a flag",
    "rotate": "a flag",
    "sources": "a list, empty: all",
    "topics": "a list, empty: all",
}


@each_row(("verb", "made"), [("relay", Relay), ("sweep", Sweeper), ("outbox sweep", OutboxSweeper)])
def test_every_parameter_has_an_option(verb: str, made: Any) -> None:
    parser = argparse.ArgumentParser()
    {"relay": relay, "sweep": sweep, "outbox": outbox}[verb.split()[0]].add_to(parser.add_subparsers())
    options = vars(parser.parse_args([*verb.split(), *NEEDED.get(verb, ())]))
    wanted = {n: p for n, p in inspect.signature(made).parameters.items() if n not in EXCEPTIONS}
    assert wanted
    for name, parameter in wanted.items():
        option = NAMED.get(name, name)
        assert option in options, f"retrysafe {verb} has no --{option.replace('_', '-')}"
        if parameter.default is not inspect.Parameter.empty and name not in OTHER_DEFAULTS:
            assert options[option] == parameter.default, name


def test_every_parameter_of_a_subscription_has_an_option() -> None:
    parser = argparse.ArgumentParser()
    inbox.add_to(parser.add_subparsers())
    options = vars(parser.parse_args(["inbox", "run", *NEEDED["inbox run"]]))
    assert inspect.signature(Subscription).parameters.keys() - options.keys() == {"consumer"}


@each_row("spec", list(registry.specs()), ids=lambda spec: spec.name)
def test_every_parameter_of_a_broker_is_an_option(spec: BrokerSpec) -> None:
    """Options are read from the source; here the libraries are installed, so that it can be imported."""
    for reference, options in (
        (spec.publisher, spec.publisher_options),
        (spec.async_publisher or spec.publisher, spec.publisher_options),
        (spec.consumer, spec.consumer_options),
    ):
        parameters = inspect.signature(spec.load(spec.passed_to.get(reference, reference))).parameters.keys()
        if "options" not in parameters:
            assert parameters - IN_THE_URL - NOT_IN_A_WORD == {option.argument for option in options}, reference
        assert all(option.help for option in options)
    assert {option.argument for option in spec.declare_options} == {*spec.declares}


def test_values_become_arguments() -> None:
    options = {option.name: option for option in read_options(PUBLISHER, "Publisher")}
    assert [options[name].help for name in ("count", "only", "sort")] == ["so many (3)", "these", "sorted so (a)"]
    given = {"count": 4, "keep": "forever", "delete": "yes", "only": "1,2", "sort": "b", "broker_timeout": "2s"}
    assert {options[name].argument: options[name].convert(value) for name, value in given.items()} == {
        "count": 4,
        "keep": None,
        "delete": True,
        "only": [1, 2],
        "sort": "b",
        "timeout": "2s",
    }
    assert options.keys() == given.keys()
    with pytest.raises(ConfigurationError, match="'x' is no number"):
        options["only"].convert("1,x")
    with pytest.raises(ConfigurationError, match="no option has the type Hooks"):
        read_options(PUBLISHER.replace("Iterable[Observer]", "Hooks"), "Publisher")
