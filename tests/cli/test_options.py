"""The command line has an option for every parameter of what it runs, with the same default."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import pytest

from retrysafe.admin.sweeper import Sweeper
from retrysafe.cli import outbox, relay, sweep
from retrysafe.messaging.brokers.kafka.publisher import AsyncKafkaPublisher, KafkaPublisher
from retrysafe.messaging.brokers.mqtt.publisher import MqttPublisher
from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
from retrysafe.messaging.brokers.pubsub.publisher import PubSubPublisher
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher
from retrysafe.messaging.brokers.servicebus.publisher import ServiceBusPublisher
from retrysafe.messaging.brokers.sqs.publisher import SnsPublisher, SqsPublisher
from retrysafe.messaging.relay.operator import OutboxSweeper
from retrysafe.messaging.relay.relay import Relay

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
PUBLISHERS = (
    *(KafkaPublisher, AsyncKafkaPublisher, MqttPublisher, NatsPublisher, SqsPublisher, SnsPublisher),
    *(PubSubPublisher, RabbitMQPublisher, RedisStreamsPublisher, AsyncRedisStreamsPublisher, ServiceBusPublisher),
)
NEEDED = {"outbox sweep": ("--older-than", "7d")}
OTHER_DEFAULTS = {
    "every": "without it, the command ends when nothing is left",
    "keep": "a flag",
    "rotate": "a flag",
    "ordered": "a word",
}


@pytest.mark.parametrize(
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
