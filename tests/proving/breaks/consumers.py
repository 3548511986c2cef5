"""Breaks of consumers: what keeps messages from being lost, overtaken, or taken by who no longer holds them."""

from __future__ import annotations

from tests.proving.breaks import Break

SHELF = "tests/core/test_shelf.py::"
SUITE = "tests/messaging/test_consumers.py::TestConsumers::test_consumer_conformance"
FAULTS = "tests/messaging/test_consumer_faults.py::"
FASTSTREAM = "tests/messaging/test_faststream.py::"
SUBSCRIPTION = "tests/messaging/test_subscription.py::"
NATS = "tests/messaging/test_nats.py::"
PUBLISHERS = "tests/messaging/test_publisher_suite.py::TestOurs::test_publisher"
UNDECODABLE = "tests/messaging/test_undecodable.py::test_a_message_that_cannot_be_decoded_stops_no_queue"

BREAKS = [
    Break(
        "what a NATS server forbids is told of what came long after",
        "messaging/brokers/nats/connecting.py",
        "if one is not None and one[1] >= began",
        "if one is not None",
        killed_by=(f"{NATS}test_what_the_server_forbids_is_known_by_subject_and_since_when",),
    ),
    Break(
        "a message with the headers of an answer is taken for one, and is never settled",
        "messaging/brokers/nats/pinned.py",
        "        if not message.reply:",
        '        if "Status" in headers and not message.data:',
        killed_by=(f"{NATS}test_a_message_is_no_answer_of_the_server_whatever_its_headers_say",),
        rows=(53,),
    ),
    Break(
        "a new owner of a NATS partition does not wait for what others have not settled",
        "messaging/brokers/nats/pinned.py",
        "        if self._others > 0:\n            return []\n",
        "",
        killed_by=(f"{NATS}test_a_new_owner_hands_out_nothing_before_all_that_is_unsettled_is_its_own",),
        rows=(52,),
    ),
    Break(
        "a former owner of a NATS partition settles what another one has",
        "messaging/brokers/nats/pinned.py",
        " or self._is_over(held, now):",
        ":",
        killed_by=(f"{NATS}test_what_may_have_been_handed_out_again_is_not_settled",),
        rows=(52,),
    ),
    Break(
        "what arrives while NATS is asked what is unsettled is counted with it",
        "messaging/brokers/nats/pinned.py",
        "self._others = unsettled - held",
        "self._others = unsettled - len(self.held)",
        killed_by=(f"{NATS}test_what_arrives_while_it_is_asked_what_is_unsettled_is_not_counted",),
        rows=(52,),
    ),
    Break(
        "a long handler loses its message to another consumer of NATS",
        "messaging/brokers/nats/consumer.py",
        'await connection.client.publish(reply, b"+WPI")',
        "pass",
        killed_by=(f"{NATS}test_a_message_that_is_handled_for_longer_than_the_lease_stays_with_its_consumer",),
        rows=(52,),
    ),
    Break(
        "a stream of NATS that is full is taken for a refusal of the message",
        "messaging/brokers/nats/confirms.py",
        'PublishStatus.RETRYABLE if error.get("code") == 400 else PublishStatus.STALLED',
        "PublishStatus.RETRYABLE",
        killed_by=(
            f"{NATS}test_what_a_stream_says[said4-stalled]",
            f"{PUBLISHERS}[nats-a_destination_that_takes_nothing_blames_no_message]",
        ),
    ),
    Break(
        "a message that NATS does not take ends the connection of all others",
        "messaging/brokers/nats/publisher.py",
        "if size_of(headers, payload) > limit:",
        "if len(payload) > limit:",
        killed_by=(f"{NATS}test_headers_count_for_the_size_of_a_message",),
    ),
    Break(
        "messages of a broker that keeps them for longer than the inbox are handled",
        "messaging/subscription/subscription.py",
        "                self._retention.check()  # before any of them is handled\n",
        "                pass\n",
        killed_by=(
            f"{SUBSCRIPTION}test_a_window_that_is_read_from_the_broker_is_checked_before_anything_is_handled[False-sqlite]",
        ),
        rows=(57,),
    ),
    Break(
        "a message that is delivered again is another one",
        "messaging/inbox/attempts.py",
        'keys.key_of(f"{len(source)}:{source}{message_id}")',
        "keys.key_of(f'{len(source)}:{source}{message_id}{random.random()}')",
        killed_by=(
            f"{FAULTS}test_a_storm_of_duplicates_is_applied_once[rabbitmq]",
            f"{FAULTS}test_a_storm_of_duplicates_is_applied_once[redis]",
            f"{FASTSTREAM}test_duplicates_are_applied_once_and_settled[rabbitmq-manual]",
        ),
        rows=(9, 50),
    ),
    Break(
        "a queue that does not answer keeps a consumer from all",
        "messaging/brokers/rabbitmq/consumer.py",
        "        if not done:\n            raise TimeoutError(",
        "        if len(done) < len(tasks):\n            raise TimeoutError(",
        killed_by=(f"{FAULTS}test_a_queue_that_does_not_answer_keeps_no_other_one_waiting[rabbitmq]",),
    ),
    Break(
        "what follows a message that was given back overtakes it",
        "messaging/brokers/lane_queue.py",
        "stays = kept.lane in self._resting or kept.delivery.partition in leaving",
        "stays = kept.delivery.partition in leaving",
        killed_by=(
            f"{SHELF}test_other_lanes_pass_by_one_that_rests",
            f"{SUITE}[rabbitmq-what_follows_a_message_that_was_given_back_stays_behind_it]",
            f"{SUITE}[redis-what_follows_a_message_that_was_given_back_stays_behind_it]",
        ),
        rows=(54,),
    ),
    Break(
        "a consumer that has lost its stream goes on taking entries",
        "messaging/brokers/redis_streams/consumer.py",
        "if owner and tonumber(owner) > tonumber(ARGV[1]) then return {'fenced'} end",
        "",
        killed_by=(f"{FAULTS}test_who_has_lost_a_stream_takes_nothing_from_it[redis]",),
        rows=(52,),
    ),
    Break(
        "entries whose answer was lost are passed by",
        "messaging/brokers/redis_streams/consumer.py",
        "if read ~= ARGV[6] then return {'missed'} end",
        "",
        killed_by=(f"{FAULTS}test_entries_whose_answer_was_lost_are_handed_out[redis]",),
        rows=(50,),
    ),
    Break(
        "a subscription that the broker has ended is not missed",
        "messaging/brokers/rabbitmq/consumer.py",
        "            and all(tag in self._wires[queue].consumers for queue, tag in self._tags.items())\n",
        "",
        killed_by=(f"{FAULTS}test_a_queue_that_is_deleted_and_made_again_is_consumed_again[rabbitmq]",),
    ),
    Break(
        "a caller that is cancelled takes the reading with it",
        "heeding.py",
        "return await asyncio.shield(task)",
        "return await task",
        killed_by=(f"{SUITE}[redis-a_receive_that_is_cancelled_loses_nothing]",),
    ),
    Break(
        "FastStream acks what is not committed",
        "messaging/brokers/faststream.py",
        "        token = _work.set(work)\n",
        "        token = _work.set(work)\n        await msg.ack()\n",
        killed_by=(
            f"{FASTSTREAM}test_what_was_not_committed_is_not_acked[rabbitmq]",
            f"{FASTSTREAM}test_what_was_not_committed_is_not_acked[redis]",
        ),
        rows=(50,),
    ),
    Break(
        "FastStream starts with an ack policy that loses messages",
        "messaging/brokers/faststream.py",
        "if subscriber.ack_policy not in _SAFE:",
        "if False:",
        killed_by=(
            f"{FASTSTREAM}test_a_broker_does_not_start_with_an_ack_policy_that_loses_messages[ack_first]",
            f"{FASTSTREAM}test_a_broker_does_not_start_with_an_ack_policy_that_loses_messages[None]",
        ),
    ),
    Break(
        "connections that end at once are made again at once",
        "messaging/brokers/rabbitmq/consumer.py",
        "        if self._failures > 1:\n",
        "        if self._failures > 1000:\n",
        killed_by=(f"{FAULTS}test_connections_that_end_at_once_are_made_ever_more_slowly[rabbitmq]",),
        rows=(54,),
    ),
    Break(
        "a message that cannot be decoded stops its queue",
        "messaging/brokers/rabbitmq/consumer.py",
        "kind = DecodingConnection if self._failures else aio_pika.Connection",
        "kind = aio_pika.Connection",
        killed_by=(f"{UNDECODABLE}[timestamp]", f"{UNDECODABLE}[app id]"),
        rows=(53,),
    ),
    Break(
        "a message whose routing key cannot be decoded stops its queue",
        "messaging/brokers/rabbitmq/undecodable.py",
        '        return body[: named + 9] + b"\\0\\0"\n',
        "        return body\n",
        killed_by=(f"{UNDECODABLE}[routing key]",),
        rows=(53,),
    ),
    Break(
        "a message without what an envelope is made of is handled",
        "messaging/brokers/rabbitmq/undecodable.py",
        "                if name in _NEEDED:\n                    raise\n",
        "",
        killed_by=(f"{UNDECODABLE}[app id]",),
        rows=(53,),
    ),
]
