"""Breaks of MQTT: what keeps refused messages from being taken for published, and sessions with one consumer."""

from __future__ import annotations

from tests.proving.breaks import Break

FOLDER = "messaging/brokers/mqtt/"
OWN = "tests/messaging/test_mqtt.py::"
PUBLISHING = "tests/messaging/test_publisher_suite.py::TestOurs::test_publisher"
CONSUMING = "tests/messaging/test_consumers.py::TestConsumers::test_consumer_conformance"

BREAKS = [
    Break(
        "a message that an MQTT broker refuses is taken for published",
        f"{FOLDER}judging.py",
        "if code.value == 0:",
        "if True:",
        killed_by=(f"{OWN}test_what_the_broker_refuses_is_no_success_and_nobodys_fault",),
        rows=(54,),
    ),
    Break(
        "a message that no session of MQTT gets is taken for published",
        f"{FOLDER}judging.py",
        "    if code.value == _NOBODY:\n        return _NO_SUBSCRIBER",
        "    if code.value == _NOBODY:\n        return ACKED",
        killed_by=(f"{PUBLISHING}[mqtt-a_destination_that_takes_nothing_blames_no_message]",),
        rows=(54,),
    ),
    Break(
        "an MQTT broker that is busy blames messages",
        f"{FOLDER}judging.py",
        "PublishStatus.UNAVAILABLE if why.code in _BUSY else PublishStatus.UNKNOWN",
        "PublishStatus.UNKNOWN",
        killed_by=(f"{OWN}test_a_broker_that_is_busy_blames_no_message[137-unavailable]",),
        rows=(54,),
    ),
    Break(
        "a message is sent that is larger than an MQTT broker takes",
        f"{FOLDER}publisher.py",
        "if size_of(topic, content) > largest:",
        "if False:",
        killed_by=(f"{PUBLISHING}[mqtt-what_is_too_large_is_refused_alone]",),
    ),
    Break(
        "more messages of MQTT are in flight than the broker receives",
        f"{FOLDER}connecting.py",
        'asyncio.Semaphore(self.told.get("ReceiveMaximum", MOST_IN_FLIGHT))',
        "asyncio.Semaphore(MOST_IN_FLIGHT)",
        killed_by=(f"{OWN}test_without_an_acknowledgement_nobody_knows",),
    ),
    Break(
        "an event with control characters ends the connection of MQTT",
        f"{FOLDER}messages.py",
        "return not _NO_TEXT.search(text) and",
        "return",
        killed_by=(f"{OWN}test_what_does_not_fit_is_all_in_the_payload[binary-other3-False]",),
    ),
    Break(
        "consumers of MQTT take a session from each other",
        f"{FOLDER}consumer.py",
        "if owners.is_free(session.name) and await owners.take(session.name):",
        "if True:",
        killed_by=(f"{OWN}test_who_wants_a_session_that_is_used_stands_by",),
        rows=(52,),
    ),
    Break(
        "a session of MQTT that expired is made anew in silence",
        f"{FOLDER}sessions.py",
        "if not connection.session_present:",
        "if False:",
        killed_by=(f"{OWN}test_a_session_that_is_gone_is_told_and_publishers_wait",),
    ),
    Break(
        "what is settled is lost on its way to an MQTT broker when the consumer ends",
        f"{FOLDER}connecting.py",
        "            await self.unsubscribe(_NOTHING)\n",
        "            pass\n",
        killed_by=(f"{CONSUMING}[mqtt-what_a_dead_consumer_left_is_handed_out_again_in_its_order]",),
        rows=(53,),
    ),
    Break(
        "whoever has given up connecting to MQTT takes a session later",
        f"{FOLDER}connecting.py",
        "        if self._dropped:\n            raise",
        "        if False:\n            raise",
        killed_by=(f"{OWN}test_who_has_given_up_connecting_takes_no_session_later",),
    ),
]
