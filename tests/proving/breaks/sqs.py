"""Breaks of SQS and SNS: what keeps messages from being blamed for their queue, lost for their form, held too short."""

from __future__ import annotations

from tests.proving.breaks import Break

FOLDER = "messaging/brokers/sqs/"
OWN = "tests/messaging/test_sqs.py::"
PUBSUB = "tests/messaging/test_pubsub.py::"
PUBLISHING = "tests/messaging/test_publisher_suite.py::TestOurs::test_publisher"

BREAKS = [
    Break(
        "a message is blamed when its queue of SQS is throttled within a batch",
        f"{FOLDER}judging.py",
        'if not answer.get("SenderFault") or code.removeprefix("Request").startswith(_BLAMES):',
        'if not answer.get("SenderFault"):',
        killed_by=(
            f"{OWN}test_what_is_said_of_one_message_of_a_batch[RequestThrottled-True-stalled]",
            f"{OWN}test_what_is_said_of_one_message_of_a_batch[AccessDenied-True-stalled]",
        ),
        rows=(54,),
    ),
    Break(
        "messages are blamed when SQS throttles, or lets nobody in",
        f"{FOLDER}judging.py",
        "return PublishResult(PublishStatus.STALLED, code)  # the queue",
        "return PublishResult(PublishStatus.RETRYABLE, code)  # the queue",
        killed_by=(
            f"{OWN}test_a_call_that_fails_blames_no_message_for_the_queue[error0-stalled-stalled]",
            f"{OWN}test_a_call_that_fails_blames_no_message_for_the_queue[error5-stalled-stalled]",
        ),
        rows=(54,),
    ),
    Break(
        "messages are blamed for a queue of SQS that is missing",
        f"{FOLDER}judging.py",
        "return PublishResult(PublishStatus.STALLED, _MISSING)",
        "return PublishResult(PublishStatus.RETRYABLE, _MISSING)",
        killed_by=(
            f"{PUBLISHING}[sqs-a_destination_that_takes_nothing_blames_no_message]",
            f"{PUBLISHING}[sns-a_destination_that_takes_nothing_blames_no_message]",
        ),
        rows=(54,),
    ),
    Break(
        "a batch that SQS refuses as a whole blames all its messages",
        f"{FOLDER}publisher.py",
        "if len(batch) > 1 and blames_one(error):",
        "if False:",
        killed_by=(f"{OWN}test_a_batch_that_is_refused_as_a_whole_is_sent_again_one_by_one",),
        rows=(54,),
    ),
    Break(
        "a message is sent that is larger than its queue of SQS takes",
        f"{FOLDER}publisher.py",
        "large for entry in entries if entry.size > address.largest}",
        "large for entry in entries if False}",
        killed_by=(f"{OWN}test_a_message_larger_than_its_queue_takes_is_given_up_before_it_is_sent",),
    ),
    Break(
        "messages of a key are in different groups of a FIFO queue",
        f"{FOLDER}messages.py",
        "lane(envelope.topic, envelope.key, envelope.id) & ",
        "lane(envelope.topic, None, envelope.id) & ",
        killed_by=(
            f"{OWN}test_keys_are_groups_and_ids_of_sources_are_recognised",
            f"{OWN}test_a_message_that_is_handled_for_longer_than_the_lease_stays_with_its_consumer",
        ),
    ),
    Break(
        "SQS takes a message for another one whose id another source gave",
        f"{FOLDER}messages.py",
        'known = f"{len(envelope.source)}:{envelope.source}{envelope.id}"',
        'known = f"{envelope.id}"',
        killed_by=(
            f"{PUBLISHING}[sqs-another_source_may_use_the_same_id]",
            f"{PUBLISHING}[sns-another_source_may_use_the_same_id]",
        ),
    ),
    Break(
        "an event with more than ten attributes is sent as it is",
        f"{FOLDER}messages.py",
        "if len(told) > _MOST_ATTRIBUTES or not all",
        "if not all",
        killed_by=(f"{OWN}test_what_does_not_fit_is_all_in_the_body[other2-True]",),
    ),
    Break(
        "a body is sent that is no text of SQS",
        f"{FOLDER}messages.py",
        "return (body, told) if _is_text(body) else None",
        "return (body, told)",
        killed_by=(
            f"{OWN}test_what_does_not_fit_is_all_in_the_body[other5-True]",
            f"{OWN}test_what_does_not_fit_is_all_in_the_body[other7-True]",
            f"{PUBLISHING}[sqs-what_arrives_is_whole]",
        ),
    ),
    Break(
        "the message groups of others give no order",
        f"{FOLDER}messages.py",
        "if envelope.key is None and group not in",
        "if False and group not in",
        killed_by=(f"{OWN}test_an_event_of_others_without_a_subject_is_ordered_by_its_group",),
    ),
    Break(
        "a long handler loses its message to another consumer of SQS",
        "messaging/brokers/leased.py",
        "await asyncio.gather(*(self._prolong(queue, some) for queue, some in due.items() if some))",
        "pass",
        killed_by=(
            f"{OWN}test_a_message_that_is_handled_for_longer_than_the_lease_stays_with_its_consumer",
            f"{PUBSUB}test_a_message_that_is_handled_for_longer_than_the_deadline_stays_with_its_consumer",
        ),
        rows=(52,),
    ),
    Break(
        "a consumer of SQS that was cut off hands out what another one has",
        "messaging/brokers/polling.py",
        "            self._forget_lapsed(now)\n",
        "",
        killed_by=(f"{OWN}test_who_was_cut_off_for_the_lease_hands_out_nothing_that_another_one_has",),
        rows=(52,),
    ),
    Break(
        "a consumer of SQS that is closed leaves a poll behind, which takes messages from others",
        "messaging/brokers/leased.py",
        "        await asyncio.gather(*tasks, return_exceptions=True)\n",
        "        for task in tasks:\n            task.cancel()\n",
        killed_by=(f"{OWN}test_a_consumer_that_has_gone_takes_no_message_from_others",),
    ),
    Break(
        "a queue of SQS loses the policy that others gave it",
        f"{FOLDER}topology.py",
        '"Statement": [*statements, ours]',
        '"Statement": [ours]',
        killed_by=(f"{OWN}test_the_policy_of_a_queue_keeps_what_others_wrote",),
    ),
]
