"""The command line has an option for every parameter of what it runs, with the same default."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from retrysafe.admin.sweeper import Sweeper
from retrysafe.cli import inbox, outbox, relay, sweep
from retrysafe.messaging.brokers import registry
from retrysafe.messaging.brokers.kafka.consumer import KafkaConsumer
from retrysafe.messaging.brokers.kafka.publisher import AsyncKafkaPublisher, KafkaPublisher
from retrysafe.messaging.brokers.mqtt.consumer import MqttConsumer
from retrysafe.messaging.brokers.mqtt.publisher import MqttPublisher
from retrysafe.messaging.brokers.nats.consumer import NatsConsumer
from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
from retrysafe.messaging.brokers.pubsub.consumer import PubSubConsumer
from retrysafe.messaging.brokers.pubsub.publisher import PubSubPublisher
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer
from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher
from retrysafe.messaging.brokers.servicebus.consumer import ServiceBusConsumer
from retrysafe.messaging.brokers.servicebus.publisher import ServiceBusPublisher
from retrysafe.messaging.brokers.spec import BrokerSpec
from retrysafe.messaging.brokers.sqs.consumer import SqsConsumer
from retrysafe.messaging.brokers.sqs.publisher import SnsPublisher, SqsPublisher
from retrysafe.messaging.relay.operator import OutboxSweeper
from retrysafe.messaging.relay.relay import Relay
from retrysafe.messaging.subscription.subscription import Subscription
from tests.tables import each_row

EXCEPTIONS = {
    "observers": "the command tells by its log and its output",
    "properties": "are the query of --broker",
    "client": "is made of --broker",
    "url": "is --broker",
    "project": "is in --broker",
    "region": "is in --broker",
    "endpoint": "is in --broker",
}
NAMED = {
    (made, "timeout"): "broker_timeout"
    for made in (
        *(MqttPublisher, NatsPublisher, PubSubPublisher, RabbitMQPublisher, ServiceBusPublisher, SqsPublisher),
        SnsPublisher,
    )
}
NAMED |= {(Relay, "sources"): "source", (Relay, "topics"): "topic"}
PUBLISHERS = (
    *(KafkaPublisher, AsyncKafkaPublisher, MqttPublisher, NatsPublisher, SqsPublisher, SnsPublisher),
    *(PubSubPublisher, RabbitMQPublisher, RedisStreamsPublisher, AsyncRedisStreamsPublisher, ServiceBusPublisher),
)
CONSUMERS = (
    *(KafkaConsumer, MqttConsumer, NatsConsumer, PubSubConsumer, RabbitMQConsumer, RedisStreamsConsumer),
    *(ServiceBusConsumer, SqsConsumer),
)
NEEDED = {"outbox sweep": ("--older-than", "7d"), "inbox run": ("module:handler",)}
OTHER_DEFAULTS = {
    "every": "without it, the command ends when nothing is left",
    "keep": "a flag",
    "rotate": "a flag",
    "ordered": "a word",
    "sources": "a list, empty: all",
    "topics": "a list, empty: all",
}


@each_row(
    ("verb", "made"),
    [
        *(("relay", made) for made in (Relay, *PUBLISHERS)),
        ("sweep", Sweeper),
        ("outbox sweep", OutboxSweeper),
    ],
)
def test_every_parameter_has_an_option(verb: str, made: Any) -> None:
    parser = argparse.ArgumentParser()
    {"relay": relay, "sweep": sweep, "outbox": outbox}[verb.split()[0]].add_to(parser.add_subparsers())
    options = vars(parser.parse_args([*verb.split(), *NEEDED.get(verb, ())]))
    wanted = {n: p for n, p in inspect.signature(made).parameters.items() if n not in EXCEPTIONS}
    assert wanted
    for name, parameter in wanted.items():
        option = NAMED.get((made, name), name)
        assert option in options, f"retrysafe {verb} has no --{option.replace('_', '-')}"
        if parameter.default is not inspect.Parameter.empty and name not in OTHER_DEFAULTS:
            assert options[option] == parameter.default, name


@each_row("made", [Subscription, *CONSUMERS])
def test_every_parameter_of_a_consumer_has_an_option(made: Any) -> None:
    """An option that nobody gives is none of the consumer's: each has defaults of its own."""
    parser = argparse.ArgumentParser()
    inbox.add_to(parser.add_subparsers())
    options = vars(parser.parse_args(["inbox", "run", *NEEDED["inbox run"]]))
    named = {"topics": "topic", "timeout": "broker_timeout"}
    wanted = [name for name in inspect.signature(made).parameters if name not in {*EXCEPTIONS, "consumer"}]
    assert wanted
    for name in wanted:
        assert named.get(name, name) in options, f"retrysafe inbox run has no --{name.replace('_', '-')}"


@each_row("spec", list(registry.specs()), ids=lambda spec: spec.name)
def test_the_options_of_a_consumer_are_its_parameters(spec: BrokerSpec) -> None:
    consumer = spec.load(spec.consumer)
    assert {"url", "topics", "group"} <= inspect.signature(consumer).parameters.keys()
    (made,) = [one for one in CONSUMERS if one.__module__.startswith(f"{spec.package}.")] or [consumer]
    taken = inspect.signature(made).parameters
    for option in spec.consumer_options:
        name = "timeout" if option.name == "broker_timeout" else option.name
        assert name in taken, f"{made} has no {name}"
        assert option.default in (None, taken[name].default, "yes"), name
