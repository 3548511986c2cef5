"""Breaks of Service Bus: what keeps messages from being blamed for their topic, and sessions from two consumers."""

from __future__ import annotations

from tests.proving.breaks import Break

FOLDER = "messaging/brokers/servicebus/"
OWN = "tests/messaging/test_servicebus.py::"
LOST = f"{OWN}test_a_message_whose_answer_is_lost_is_taken_once"
JUDGED = f"{OWN}test_what_an_error_says_of_messages"
MISSING = f"{OWN}test_a_subscription_that_is_missing_is_told_until_it_is_made"
PUBLISHING = "tests/messaging/test_publisher_suite.py::TestOurs::test_publisher"
CONSUMING = "tests/messaging/test_consumers.py::TestConsumers::test_consumer_conformance"
STALLS = f"{PUBLISHING}[servicebus-a_destination_that_takes_nothing_blames_no_message]"

BREAKS = [
    Break(
        "messages are blamed for a topic of Service Bus that is full",
        f"{FOLDER}judging.py",
        "    (ServiceBusQuotaExceededError,",
        "    (KeyError,",
        killed_by=(f"{JUDGED}[error2-stalled]", f"{OWN}test_a_topic_that_is_full_blames_no_message"),
        rows=(54,),
    ),
    Break(
        "messages are blamed for a topic of Service Bus that is disabled",
        f"{FOLDER}judging.py",
        "    (MessagingEntityDisabledError,",
        "    (KeyError,",
        killed_by=(f"{JUDGED}[error1-stalled]", STALLS),
        rows=(54,),
    ),
    Break(
        "messages are blamed for the end of a link of which the library has lost the reason",
        f"{FOLDER}publisher.py",
        "return refused if failed(refused, sent=False).status is PublishStatus.STALLED else error",
        "return error",
        killed_by=(f"{OWN}test_a_new_link_is_asked_why_the_last_one_was_ended_if_nothing_said_so",),
        rows=(54,),
    ),
    Break(
        "messages are blamed that we may not send to Service Bus",
        f"{FOLDER}judging.py",
        "    (ServiceBusAuthorizationError, ",
        "    (KeyError, ",
        killed_by=(f"{OWN}test_a_publisher_without_the_right_to_send_waits",),
        rows=(54,),
    ),
    Break(
        "a message that Service Bus does not answer is a success",
        f"{FOLDER}publisher.py",
        "why = alone(await to.why(error), entries[0].session)",
        "why = _ACKED if is_silence(error) else alone(await to.why(error), entries[0].session)",
        killed_by=(f"{OWN}test_a_message_without_an_answer_is_no_success",),
        rows=(51,),
    ),
    Break(
        "the client of Service Bus repeats what it sends by itself",
        f"{FOLDER}client.py",
        '            "retry_total": 0,\n            "try_timeout"',
        '            "retry_total": 3,\n            "try_timeout"',
        killed_by=(LOST,),
    ),
    Break(
        "messages have no id of ours by which Service Bus recognises them",
        f"{FOLDER}messages.py",
        "message_id=id_of(envelope),",
        "message_id=None,",
        killed_by=(LOST,),
        rows=(51,),
    ),
    Break(
        "Service Bus takes messages of two sources for one",
        f"{FOLDER}messages.py",
        'known = f"{len(envelope.source)}:{envelope.source}{envelope.id}"',
        "known = envelope.id",
        killed_by=(f"{OWN}test_a_message_is_recognised_by_its_source_and_its_id",),
    ),
    Break(
        "keys that are no ids of sessions share one",
        f"{FOLDER}messages.py",
        'else f"{_OURS}{number & (1 << 64) - 1:016x}"',
        "else _OURS",
        killed_by=(f"{OWN}test_keys_are_sessions",),
    ),
    Break(
        "the sessions of others give no order",
        f"{FOLDER}messages.py",
        "if envelope.key is None and session and not session.startswith(_OURS):",
        "if False:",
        killed_by=(f"{OWN}test_a_message_of_a_stranger_is_an_event_without_an_id",),
    ),
    Break(
        "a batch that Service Bus refuses blames all its messages",
        f"{FOLDER}publisher.py",
        "if len(entries) > 1 and blames_one(error):",
        "if False:",
        killed_by=(f"{OWN}test_a_batch_that_is_refused_is_divided",),
        rows=(54,),
    ),
    Break(
        "a long handler loses its session of Service Bus to another consumer",
        f"{FOLDER}holdings.py",
        "due = [] if self._receipts is None or self._lost else self._receipts.due(now)",
        "due: list[str] = []",
        killed_by=(
            f"{OWN}test_a_message_that_is_handled_for_longer_than_the_lock_stays_with_its_consumer[session]",
            f"{OWN}test_a_message_that_is_handled_for_longer_than_the_lock_stays_with_its_consumer[message]",
        ),
        rows=(52,),
    ),
    Break(
        "a message of Service Bus that may have killed its consumer is handed out as a new one",
        f"{FOLDER}consumer.py",
        "redelivered = bool(message.delivery_count) or old",
        "redelivered = False",
        killed_by=(
            f"{OWN}test_who_was_cut_off_until_the_lock_ended_settles_and_hands_out_nothing[session]",
            f"{CONSUMING}[servicebus-what_a_dead_consumer_left_is_handed_out_again_in_its_order]",
        ),
        rows=(53,),
    ),
    Break(
        "a consumer that closes leaves messages without sessions locked",
        f"{FOLDER}holdings.py",
        "        for message in messages:\n            try:",
        "        for message in messages[:0]:\n            try:",
        killed_by=(f"{OWN}test_messages_without_sessions_are_given_up_by_a_consumer_that_closes",),
    ),
    Break(
        "sessions wait for one of which a message was given back",
        f"{FOLDER}consumer.py",
        "if not replaced and self._rests(holding, now):",
        "if False:",
        killed_by=(f"{OWN}test_a_session_whose_message_was_given_back_keeps_no_other_waiting",),
        rows=(54,),
    ),
    Break(
        "a consumer of Service Bus fails where there is no session to be had",
        f"{FOLDER}client.py",
        "for one in (error, error.__cause__):",
        "for one in (error,):",
        killed_by=(f"{OWN}test_no_session_to_be_had_is_no_failure",),
    ),
    Break(
        "Service Bus gives messages up beside the inbox",
        f"{FOLDER}topology.py",
        "_DELIVERIES = 2000",
        "_DELIVERIES = 10",
        killed_by=(MISSING,),
        rows=(53,),
    ),
]
