"""`retrysafe topics`: declare on a broker what relays and consumers need there.

What is there stays as it is. Exit code: 0 if everything is there now, 2 if the command could not be carried out.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from retrysafe.admin.operator import connect
from retrysafe.backends.commands import STORE, quoted
from retrysafe.cli.brokers import add_broker, choose, make_for
from retrysafe.cli.opening import add_store, store_of
from retrysafe.cli.options import add_option, add_verb, add_verbs
from retrysafe.cli.rendering import as_json
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.messaging.brokers.spec import BrokerSpec
from retrysafe.messaging.errors import BrokerUnavailable
from retrysafe.messaging.relay.operator import OutboxOperator

_SIDE = attrgetter("declare_options")


def add_to(verbs: Any) -> None:
    below = add_verbs(verbs, "topics", "declare topics and queues on a broker", __doc__)
    declare = add_verb(below, "declare", "make the topics, queues and subscriptions that are missing", run_declare)
    add_broker(declare, _SIDE)
    add_option(
        declare,
        "--topic NAME...",
        "a topic; may be repeated (default: the topics of the messages that wait in the outbox of --store)",
    )
    add_option(declare, "--group NAME", "the service whose queues or subscriptions it is", "")
    add_store(declare)


def run_declare(options: argparse.Namespace) -> int:
    url, spec, given = choose(options, _SIDE)
    topics = _topics(options)
    _declare_topics(url, spec, topics, options.group, given)
    done = f"declared: {', '.join(topics)}"
    said = done if spec.declaration else f"nothing to declare: {spec.title} makes what is missing when it is first used"
    print(as_json({"declared": topics if spec.declaration else []}) if options.json else said)
    return 0


def add_declare(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--declare", "first make what is missing on the broker for --topic, as `topics declare` does")


def declare_for_worker(options: argparse.Namespace, url: str, spec: BrokerSpec, given: Mapping[str, Any]) -> None:
    """Make what is missing for a worker with --declare, by those of its options that a declaration has too."""
    if not (options.declare and spec.declaration):
        return
    if not options.topic:
        raise ConfigurationError("--declare: name with --topic for which topics.")
    alike = {name: value for name, value in given.items() if name in spec.declares}
    group = getattr(options, "group", "")
    missing = _missing(spec.load(spec.declaration), {**alike, **({"group": group} if group else {})})
    if any(not hasattr(options, name) for name in missing):
        named = " and ".join(f"--{name}" for name in missing)
        raise ConfigurationError(
            f"--declare: {spec.title} needs {named} too, which this command has not. Declare it beforehand:  "
            f"{_command(options, spec, alike, group, missing)}"
        )
    _declare_topics(url, spec, options.topic, group, alike)


def _command(
    options: argparse.Namespace, spec: BrokerSpec, given: Mapping[str, Any], group: str, missing: Sequence[str]
) -> str:
    """The `topics declare` with what a worker was given, without its URL, which may contain a password."""
    words = [("topic", topic) for topic in options.topic] + ([("group", group)] if group else [])
    words += [(one.name, getattr(options, one.name)) for one in spec.declare_options if one.argument in given]
    told = [f"--{name} {quoted(str(value))}" for name, value in words] + [
        f"--{name} {name.upper()}" for name in missing
    ]
    return f"retrysafe topics declare --broker URL {' '.join(told)}"


def _declare_topics(url: str, spec: BrokerSpec, topics: Sequence[str], group: str, given: dict[str, Any]) -> None:
    if spec.declaration:
        declare = spec.load(spec.declaration)
        given = _with_group(declare, given, group, spec.title)
        make_for(_SIDE, lambda: _declare(declare, url, topics, **given))


def _with_group(declare: Any, given: dict[str, Any], group: str, title: str) -> dict[str, Any]:
    """Add the group, if the declaration takes one, and refuse what lacks a required argument."""
    parameters = inspect.signature(declare).parameters.values()
    if group and any(one.name == "group" or one.kind is one.VAR_KEYWORD for one in parameters):
        given = {**given, "group": group}
    for name in _missing(declare, given):
        raise ConfigurationError(f"--{name} is missing: {title} needs it for a declaration.")
    return given


def _missing(declare: Any, given: Mapping[str, Any]) -> list[str]:
    """The required arguments of a declaration that were not given."""
    parameters = inspect.signature(declare).parameters.values()
    required = (one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty)
    return [name for name in required if name not in given]


def _declare(declare: Any, *arguments: Any, **given: Any) -> None:
    try:
        declared = declare(*arguments, **given)
        if inspect.isawaitable(declared):
            asyncio.run(_end(declared))
    except RetrysafeError:
        raise
    except Exception as error:  # the broker's client may raise anything
        raise BrokerUnavailable(f"{type(error).__name__}: {error}".partition("\n")[0]) from error


async def _end(declared: Any) -> None:
    await declared


def _topics(options: argparse.Namespace) -> list[str]:
    if not all(options.topic):
        raise ConfigurationError("--topic is empty: is a variable of the shell not set?")
    if options.topic:
        return list(dict.fromkeys(options.topic))
    if not (options.store or getattr(options, "default_store", None) or os.environ.get(STORE)):
        raise ConfigurationError("--topic is missing: name a topic, or give --store for those that wait in its outbox.")
    store = store_of(options)
    connect(store)
    with OutboxOperator(store, observers=()) as operator:
        waiting = [one.topic for one in operator.status().backlog]
    if not waiting:
        raise ConfigurationError("--topic is missing, and no message waits in the outbox of --store.")
    return list(dict.fromkeys(waiting))
