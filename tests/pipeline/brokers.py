"""The brokers that the pipeline is run on: each by its URL, with a look at what it has; and those that are killed."""

from __future__ import annotations

from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.registry import broker_at
from tests.messaging.harnesses import HARNESSES
from tests.messaging.harnesses.base import Place

PARTITIONS = 6
GROUP = "inventory"
KINDS = {name: harness for name, harness in HARNESSES.items() if harness.left is not None}


def place(url: str, topic: str) -> Place:
    """Return the place of the messages; all of ours at the broker has the topic's name, which is of this run."""
    return Place(url, topic, topic, GROUP, PARTITIONS)


def broker(url: str, topic: str) -> Broker:
    """The broker at a URL. It is made anew in every process."""
    return broker_at(url, name=topic, partitions=PARTITIONS, lease="2s")


KILLED = {name: killed for harness in HARNESSES.values() for name, killed in harness.killed.items()}
