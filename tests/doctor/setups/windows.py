"""Inboxes that forget messages before their broker does, on each broker that tells for how long it keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.doctor.setups import application, kafka, nats, pubsub, servicebus, sqs
from tests.doctor.setups.form import ERROR, Arguments, Ground, Making, Setup


def _forgetful(where: str, made: str, making: Making, *beside: str) -> Setup:
    """An inbox that remembers messages for an hour, beside what keeps them for days."""

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        (ground.folder / "shop.py").write_text(application.CONSUMING, encoding="utf-8")
        with making(ground) as asked:
            yield [*asked, "--app", "shop:app"]

    broken = f"{where} hands messages out again that an inbox has forgotten."
    text = f'{made}, and `window="1h"` of the boundary of an inbox'
    return Setup(broken, text, "broker-window", ERROR, make, beside, f"broker-window on {where}")


def _made_by(broken: tuple[Setup, ...], finds: str) -> Making:
    (found,) = (setup.making for setup in broken if setup.finds == finds)
    return found


BROKEN = (
    _forgetful("Kafka", "`retention.ms` of a week", _made_by(kafka.BROKEN, "kafka-replicas"), "kafka-replicas"),
    _forgetful("NATS", "`--max-age 7d`", _made_by(nats.BROKEN, "nats-replicas"), "nats-replicas"),
    _forgetful("SQS", "`MessageRetentionPeriod` of 4 days", sqs.sound),
    _forgetful("Pub/Sub", "`message_retention_duration` of a week", pubsub.sound),
    _forgetful("Azure Service Bus", "`default_message_time_to_live` of days", servicebus.sound),
)
