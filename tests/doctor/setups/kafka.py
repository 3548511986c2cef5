"""Kafka, set up wrongly: topics that lose messages. There is one broker here, so each topic has one replica."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from retrysafe.messaging.brokers import kafka
from retrysafe.messaging.brokers.kafka.properties import properties_of
from retrysafe.messaging.brokers.kafka.topics import admin
from retrysafe.protocol.checks import Severity
from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Setup, unique

ALWAYS = ("kafka-replicas",)


def _declared(finds: str, severity: Severity, broken: str, *settings: str) -> Setup:
    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        url, name = ground.service("kafka"), unique()
        kafka.declare(url, [name], partitions=1, settings=dict(one.split("=") for one in settings))
        service = admin(properties_of(url, {}))
        while name not in service.list_topics(timeout=30).topics:  # its brokers learn of it a little later
            pass
        try:
            yield ["--broker", url, "--topic", name]
        finally:
            for gone in service.delete_topics([name]).values():
                gone.result()

    beside = tuple(one for one in ALWAYS if one != finds)
    return Setup(broken, f"`{' '.join(settings)}`" if settings else "one broker", finds, severity, make, beside)


@contextmanager
def _missing(ground: Ground) -> Iterator[Arguments]:
    yield ["--broker", ground.service("kafka"), "--topic", unique()]


BROKEN = (
    Setup("There is no such topic.", "nothing declared", "kafka-topic", ERROR, _missing),
    _declared("kafka-replicas", WARNING, "A topic is on one broker alone."),
    _declared(
        "kafka-unclean-election",
        ERROR,
        "A broker that lacks confirmed messages may lead.",
        "unclean.leader.election.enable=true",
    ),
    _declared("kafka-retention", WARNING, "Messages outlive every window.", "retention.ms=-1"),
)
UNMADE = {
    "kafka-permission": {"unread": {"orders": "Topic authorization failed."}},
    "kafka-in-sync": {"settings": {"orders": {"min.insync.replicas": "1", "replicas": 3}}},
}
