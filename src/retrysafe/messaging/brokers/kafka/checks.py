"""The checks of Kafka's topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from retrysafe.messaging.brokers.checks import BrokerExamination, checks_of, error, warning
from retrysafe.messaging.brokers.kafka.properties import properties_of
from retrysafe.messaging.brokers.kafka.topics import admin, seconds_kept
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.protocol.checks import Check, Facts, Severity

_WITHIN = 4.0


def _gather(url: str, topics: tuple[str, ...]) -> Facts:
    client = admin(properties_of(url, {}))
    known = client.list_topics(timeout=_WITHIN).topics
    found = [name for name in topics if name in known]
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in found]
    answers = client.describe_configs(asked, request_timeout=_WITHIN) if asked else {}
    settings: dict[str, dict[str, Any]] = {}
    unread = _find_hidden(client, sorted(set(topics) - set(found)))
    missing = sorted(set(topics) - set(found) - unread.keys())
    for resource, answer in answers.items():
        try:
            told = {name: entry.value for name, entry in answer.result().items()}
        except KafkaException as error:
            unread[resource.name] = error.args[0].str()
            continue
        if told:
            partitions = known[resource.name].partitions.values()
            settings[resource.name] = {**told, "replicas": min((len(one.replicas) for one in partitions), default=0)}
    return {"missing": missing, "settings": settings, "unread": unread}


def _find_hidden(client: AdminClient, names: list[str]) -> dict[str, str]:
    """Those that are left out of the list of topics because this user may not see them, and what the broker says."""
    answers = client.describe_topics(TopicCollection(names), request_timeout=_WITHIN) if names else {}
    told = {name: answer.exception() for name, answer in answers.items()}
    return {
        name: error.args[0].str()
        for name, error in told.items()
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    }


def _unreadable_settings(facts: Facts) -> str | None:
    unread = facts.get("unread", {})
    told = "; ".join(f"{name}: {why.rstrip('.')}" for name, why in sorted(unread.items()))
    return f"The settings of topics could not be read: {told}." if unread else None


CHECKS = (
    Check(
        "kafka-permission",
        "May the settings of the topics be read?",
        Severity.NOTE,
        "kafka-acls.sh --add --allow-principal User:… --operation Describe --operation DescribeConfigs --topic …",
        "how-to/kafka.md",
        _unreadable_settings,
    ),
    *checks_of(
        "how-to/kafka.md",
        error(
            "kafka-topic",
            "missing",
            bool,
            "Are the topics there?",
            "No topic {}.",
            f"Make them with  {declaring()}",
        ),
        warning(
            "kafka-replicas",
            "settings",
            lambda set_: set_["replicas"] < 2,
            "Do messages survive the loss of a broker?",
            "One replica: {}.",
            "Give the topics three replicas (kafka-reassign-partitions.sh), and min.insync.replicas=2",
        ),
        warning(
            "kafka-in-sync",
            "settings",
            lambda set_: set_["replicas"] > 1 and int(set_.get("min.insync.replicas") or 2) < 2,
            "Is a confirmed message on two brokers?",
            "min.insync.replicas 1: {}.",
            "kafka-configs.sh --alter --entity-type topics --entity-name … --add-config min.insync.replicas=2",
        ),
        error(
            "kafka-unclean-election",
            "settings",
            lambda set_: set_.get("unclean.leader.election.enable") == "true",
            "Are confirmed messages kept when a leader is lost?",
            "A replica that lags may lead: {}.",
            "kafka-configs.sh --alter --entity-type topics --entity-name … "
            "--add-config unclean.leader.election.enable=false",
        ),
        warning(
            "kafka-retention",
            "settings",
            lambda set_: bool(set_.get("retention.ms")) and seconds_kept(set_) is None,
            "Do messages end, so that a window can outlive them?",
            "Messages are kept for ever, and can be handed out again after any window: {}.",
            "kafka-configs.sh --alter --entity-type topics --entity-name … --add-config retention.ms=604800000, and "
            "window= longer than that",
        ),
    ),
)


def _retention(facts: Facts) -> Mapping[str, float]:
    found = {name: seconds_kept(settings) for name, settings in facts["settings"].items()}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


EXAMINATION = BrokerExamination(CHECKS, _gather, _retention)
