"""The checks of Kafka's topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from retrysafe.messaging.brokers.checks import BrokerExamination
from retrysafe.messaging.brokers.kafka.properties import properties_of
from retrysafe.messaging.brokers.kafka.topics import admin, seconds_kept
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.protocol.checks import Check, Facts, Judge, Severity

_GUIDE = "how-to/kafka.md"
_WITHIN = 4.0


def _gather(url: str, topics: tuple[str, ...]) -> Mapping[str, Any]:
    client = admin(properties_of(url, {}))
    known = client.list_topics(timeout=_WITHIN).topics
    found = [name for name in topics if name in known]
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in found]
    answers = client.describe_configs(asked, request_timeout=_WITHIN) if asked else {}
    answered = {resource.name: _settings(answer) for resource, answer in answers.items()}
    hidden = _find_hidden(client, sorted(set(topics) - set(found)))
    return {
        "missing": sorted(set(topics) - set(found) - hidden.keys()),
        "settings": {name: set_ for name, set_ in answered.items() if not isinstance(set_, str)},
        "unread": {name: why for name, why in answered.items() if isinstance(why, str)} | hidden,
        "replicas": {
            name: min((len(one.replicas) for one in known[name].partitions.values()), default=0) for name in found
        },
    }


def _find_hidden(client: AdminClient, names: list[str]) -> dict[str, str]:
    """Those that are left out of the list of topics because this user may not see them, and what the broker says."""
    answers = client.describe_topics(TopicCollection(names), request_timeout=_WITHIN) if names else {}
    told = {name: answer.exception() for name, answer in answers.items()}
    return {
        name: error.args[0].str()
        for name, error in told.items()
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    }


def _settings(answer: Any) -> dict[str, str] | str:
    """The settings of a topic, or why the broker does not tell them."""
    try:
        return {name: entry.value for name, entry in answer.result().items()}
    except KafkaException as error:
        return str(error.args[0].str())


def _unreadable_settings(facts: Facts) -> str | None:
    unread = facts.get("unread", {})
    told = "; ".join(f"{name}: {why.rstrip('.')}" for name, why in sorted(unread.items()))
    return f"The settings of topics could not be read: {told}." if unread else None


def _topics(says: Callable[[int, Mapping[str, str]], bool], text: str) -> Judge:
    """The evidence is the topics of which ``says`` is true, by their replicas and settings."""

    def judge(facts: Facts) -> str | None:
        found = [name for name, set_ in facts["settings"].items() if set_ and says(facts["replicas"][name], set_)]
        return f"{text}: {', '.join(sorted(found))}." if found else None

    return judge


CHECKS = (
    Check(
        "kafka-permission",
        "May the settings of the topics be read?",
        Severity.NOTE,
        "kafka-acls.sh --add --allow-principal User:… --operation Describe --operation DescribeConfigs --topic …",
        _GUIDE,
        _unreadable_settings,
    ),
    Check(
        "kafka-topic",
        "Are the topics there?",
        Severity.ERROR,
        f"Make them with  {declaring()}",
        _GUIDE,
        lambda facts: f"No topic {', '.join(facts['missing'])}." if facts["missing"] else None,
    ),
    Check(
        "kafka-replicas",
        "Do messages survive the loss of a broker?",
        Severity.WARNING,
        "Give the topics three replicas (kafka-reassign-partitions.sh), and min.insync.replicas=2",
        _GUIDE,
        _topics(lambda replicas, _: replicas < 2, "One replica"),
    ),
    Check(
        "kafka-in-sync",
        "Is a confirmed message on two brokers?",
        Severity.WARNING,
        "kafka-configs.sh --alter --entity-type topics --entity-name … --add-config min.insync.replicas=2",
        _GUIDE,
        _topics(
            lambda replicas, set_: replicas > 1 and int(set_.get("min.insync.replicas") or 2) < 2,
            "min.insync.replicas 1",
        ),
    ),
    Check(
        "kafka-unclean-election",
        "Are confirmed messages kept when a leader is lost?",
        Severity.ERROR,
        "kafka-configs.sh --alter --entity-type topics --entity-name … "
        "--add-config unclean.leader.election.enable=false",
        _GUIDE,
        _topics(lambda _, set_: set_.get("unclean.leader.election.enable") == "true", "A replica that lags may lead"),
    ),
    Check(
        "kafka-retention",
        "Do messages end, so that a window can outlive them?",
        Severity.WARNING,
        "kafka-configs.sh --alter --entity-type topics --entity-name … --add-config retention.ms=604800000, and "
        "window= longer than that",
        _GUIDE,
        _topics(
            lambda _, set_: bool(set_.get("retention.ms")) and seconds_kept(set_) is None,
            "Messages are kept for ever, and can be handed out again after any window",
        ),
    ),
)


def _retention(facts: Facts) -> Mapping[str, float]:
    found = {name: seconds_kept(settings) for name, settings in facts["settings"].items() if settings}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


EXAMINATION = BrokerExamination(CHECKS, _gather, _retention)
