"""The broker of `retrysafe relay` and `retrysafe inbox run`: its URL, and the options that only some brokers have."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from retrysafe.cli.options import add_option
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers import registry
from retrysafe.messaging.brokers.options import Option
from retrysafe.messaging.brokers.spec import BrokerSpec
from retrysafe.observability.json_logs import JsonFormatter

R = TypeVar("R")
BROKER = "RETRYSAFE_BROKER"
Side = Callable[[BrokerSpec], tuple[Option, ...]]
"""The options of a broker's publishers, or of its consumers."""


def add_broker(parser: argparse.ArgumentParser, side: Side) -> None:
    """Add --broker, and the options of one side of all brokers, each with the brokers that have it."""
    schemes = " or ".join(f"{spec.schemes[0]}://… ({spec.title})" for spec in registry.specs())
    add_option(parser, "--broker URL", f"the broker: {schemes} (default: ${BROKER})")
    for option, titles in _options(side).items():
        parser.add_argument(
            _flag(option),
            metavar=option.metavar,
            help=f"{', '.join(titles)}: {option.help}",
            type=option.type,
            choices=option.choices,
        )


def choose(options: argparse.Namespace, side: Side, instead: str = "") -> tuple[str, BrokerSpec, dict[str, Any]]:
    """The URL of the broker, its spec, and the arguments made of its options that were given.

    Raises `ConfigurationError` without a URL (``instead``: what else could be given), and for another broker's option.
    """
    url: str | None = options.broker or os.environ.get(BROKER)
    if not url:
        raise ConfigurationError(f"--broker is missing: give the broker's URL, or set {BROKER}{instead}.")
    spec = registry.spec_of(url)
    for option, titles in _options(side).items():
        if option not in side(spec) and getattr(options, option.name) is not None:
            raise ConfigurationError(f"{_flag(option)} is for {_join(titles)}; --broker is {spec.title}.")
    given = {option: value for option in side(spec) if (value := getattr(options, option.name)) is not None}
    return url, spec, {option.argument: option.convert(value) for option, value in given.items()}


def make_for(side: Side, make: Callable[[], R]) -> R:
    """Call ``make``; an error that names arguments names the options of the command line instead."""
    try:
        return make()
    except ConfigurationError as error:
        flags = {"topics": "--topic", "group": "--group", "url": "--broker"}
        flags |= {option.argument: _flag(option) for option in _options(side)}
        detail = re.sub(r"\b([a-z_]+)=(?![\w'\"(])", lambda found: flags.get(found[1], found[0]), error.detail or "")
        raise ConfigurationError(detail) from error


def log_to_stderr(options: argparse.Namespace) -> None:
    """Send the log to stderr, from level INFO; as JSON with --json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if options.json else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    log = logging.getLogger("retrysafe")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    logging.getLogger("aiormq.connection").setLevel(logging.CRITICAL)  # it logs every error that it raises, unbounded


def _options(side: Side) -> dict[Option, list[str]]:
    found: dict[Option, list[str]] = {}
    for spec in registry.specs():
        for option in side(spec):
            found.setdefault(option, []).append(spec.title)
    return found


def _flag(option: Option) -> str:
    return f"--{option.name.replace('_', '-')}"


def _join(titles: list[str]) -> str:
    *others, last = titles
    return f"{', '.join(others)} and {last}" if others else last
