"""Breaks of Pub/Sub: what keeps messages from being blamed for their topic, lost for their form, held too short."""

from __future__ import annotations

from tests.proving.breaks import Break

FOLDER = "messaging/brokers/pubsub/"
OWN = "tests/messaging/test_pubsub.py::"
REFUSED = f"{OWN}test_what_a_publisher_makes_of_a_refusal"
PUBLISHING = "tests/messaging/test_publisher_suite.py::TestOurs::test_publisher"
CONSUMING = "tests/messaging/test_consumers.py::TestConsumers::test_consumer_conformance"

BREAKS = [
    Break(
        "messages are blamed when a quota of Pub/Sub is used up",
        f"{FOLDER}judging.py",
        'return PublishResult(PublishStatus.STALLED, "a quota',
        'return PublishResult(PublishStatus.RETRYABLE, "a quota',
        killed_by=(
            f"{OWN}test_a_request_that_fails_blames_no_message_for_the_topic[error2-stalled]",
            f"{REFUSED}[StatusCode.RESOURCE_EXHAUSTED-stalled-quota]",
        ),
        rows=(54,),
    ),
    Break(
        "messages are blamed for a topic of Pub/Sub that is missing",
        f"{FOLDER}judging.py",
        "MISSING = PublishResult(PublishStatus.STALLED,",
        "MISSING = PublishResult(PublishStatus.RETRYABLE,",
        killed_by=(f"{PUBLISHING}[pubsub-a_destination_that_takes_nothing_blames_no_message]",),
        rows=(54,),
    ),
    Break(
        "messages are blamed that we may not publish to Pub/Sub",
        f"{FOLDER}judging.py",
        "    if isinstance(error, PermissionDenied):\n        return _FORBIDDEN\n",
        "    if isinstance(error, PermissionDenied):\n        return PublishResult(PublishStatus.RETRYABLE)\n",
        killed_by=(f"{REFUSED}[StatusCode.PERMISSION_DENIED-stalled-roles/pubsub.publisher]",),
        rows=(54,),
    ),
    Break(
        "a publication that Pub/Sub does not answer is a success",
        f"{FOLDER}judging.py",
        "    if isinstance(error, DeadlineExceeded):\n        return _SILENT\n",
        "    if isinstance(error, DeadlineExceeded):\n        return PublishResult(PublishStatus.ACKED)\n",
        killed_by=(f"{OWN}test_a_publication_without_an_answer_is_no_success",),
        rows=(51,),
    ),
    Break(
        "the client of Pub/Sub repeats what it publishes by itself",
        f"{FOLDER}publisher.py",
        "publish(request, retry=None, ",
        "publish(request, ",
        killed_by=(f"{REFUSED}[StatusCode.UNAVAILABLE-unavailable-said so]",),
    ),
    Break(
        "a request that Pub/Sub refuses as a whole blames all its messages",
        f"{FOLDER}publisher.py",
        "if len(entries) > 1 and blames_one(error):",
        "if False:",
        killed_by=(f"{OWN}test_a_message_that_is_refused_alone_leaves_the_others_of_its_request",),
        rows=(54,),
    ),
    Break(
        "a request to Pub/Sub has messages of several keys, so that it is refused and divided",
        f"{FOLDER}publisher.py",
        "entries.setdefault((path, entry.message.ordering_key), [])",
        'entries.setdefault((path, ""), [])',
        killed_by=(f"{OWN}test_the_order_of_a_key_is_that_of_calls_and_within_a_call",),
    ),
    Break(
        "a message is sent that is larger than a request to Pub/Sub",
        f"{FOLDER}publisher.py",
        "if entry.size + len(path.encode()) + _FRAME > _LARGEST:",
        "if False:",
        killed_by=(f"{OWN}test_the_largest_message_is_taken[binary]",),
    ),
    Break(
        "a request to Pub/Sub has more than 1000 messages, so that it is refused and divided",
        f"{FOLDER}publisher.py",
        "if request and (len(request) == _MOST or size + entry.size > _LARGEST):",
        "if request and size + entry.size > _LARGEST:",
        killed_by=(f"{OWN}test_requests_have_the_limits_of_the_service",),
    ),
    Break(
        "messages of a key have no ordering key",
        f"{FOLDER}messages.py",
        "        return envelope.key\n    return f",
        '        return ""\n    return f',
        killed_by=(
            f"{OWN}test_keys_are_ordering_keys",
            f"{OWN}test_a_message_that_is_handled_for_longer_than_the_deadline_stays_with_its_consumer",
        ),
    ),
    Break(
        "an event whose attributes are too long for Pub/Sub is sent as it is",
        f"{FOLDER}messages.py",
        "return told if all(_fits(name, value) for name, value in told.items()) else None",
        "return told",
        killed_by=(f"{OWN}test_what_exceeds_the_limits_of_attributes_is_all_in_the_payload[other8-True]",),
    ),
    Break(
        "the ordering keys of others give no order",
        f"{FOLDER}messages.py",
        "if envelope.key is None and key:",
        "if False:",
        killed_by=(f"{OWN}test_a_message_of_a_stranger_is_an_event_without_an_id",),
    ),
    Break(
        "two groups share a subscription of Pub/Sub",
        f"{FOLDER}messages.py",
        '_encoded(group).replace(".", "%2E")',
        "_encoded(group)",
        killed_by=(f"{OWN}test_no_two_topics_or_subscriptions_have_one_name",),
    ),
    Break(
        "an acknowledgement that Pub/Sub could not take for a while is forgotten",
        f"{FOLDER}judging.py",
        "return fate.startswith(_TRANSIENT)",
        "return False",
        killed_by=(f"{OWN}test_acknowledgements_that_fail_for_a_while_are_repeated",),
    ),
    Break(
        "an account without a role asks Pub/Sub for ever",
        f"{FOLDER}judging.py",
        "    if isinstance(error, PermissionDenied | Unauthenticated):\n        return Conf",
        "    if False:\n        return Conf",
        killed_by=(f"{OWN}test_a_consumer_that_may_not_consume_is_set_up_wrongly[StatusCode.PERMISSION_DENIED-Pull]",),
    ),
    Break(
        "who seeks back in a topic of Pub/Sub is handed what the inbox has forgotten",
        f"{FOLDER}topology.py",
        "max(settings.message_retention_duration.seconds, settings.topic_message_retention_duration.seconds)",
        "settings.message_retention_duration.seconds",
        killed_by=(f"{OWN}test_a_subscription_that_is_missing_is_told_until_it_is_made",),
        rows=(56,),
    ),
    Break(
        "a message of Pub/Sub that may have killed its consumer is handed out as a new one",
        f"{FOLDER}consumer.py",
        "else age >= self._terms[queue].lease / 2",
        "else False",
        killed_by=(
            f"{OWN}test_who_was_cut_off_until_the_deadline_hands_out_nothing_that_another_one_has",
            f"{CONSUMING}[pubsub-what_a_dead_consumer_left_is_handed_out_again_in_its_order]",
        ),
        rows=(53,),
    ),
    Break(
        "a long handler loses its message to another consumer of Pub/Sub",
        f"{FOLDER}consumer.py",
        'lost = await self._told("modify_ack_deadline", queue, handles, ack_deadline_seconds=seconds)',
        "lost: dict[str, str] = {}",
        killed_by=(f"{OWN}test_a_message_that_is_handled_for_longer_than_the_deadline_stays_with_its_consumer",),
        rows=(52,),
    ),
]
