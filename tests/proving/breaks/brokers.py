"""Brokers: publishers and consumers."""

from __future__ import annotations

from tests.proving.breaks import Break
from tests.proving.breaks.mutations import always, instead, never, reworded, skipping, without

CONSUMER_FAULTS = "tests/messaging/test_consumer_faults.py"
FASTSTREAM = "tests/messaging/test_faststream.py"
KAFKA = "tests/messaging/test_kafka.py"
KAFKA_PROGRESS = "tests/core/test_kafka_progress.py"
KAFKA_TRANSACTIONS = "tests/messaging/test_kafka_transactions.py"
LEDGER = "tests/streams/test_ledger.py"
MQTT = "tests/messaging/test_mqtt.py"
NATS = "tests/messaging/test_nats.py"
PUBLISHERS = "tests/messaging/test_publishers.py"
PUBSUB = "tests/messaging/test_pubsub.py"
SERVICEBUS = "tests/messaging/test_servicebus.py"
LANE_QUEUE = "tests/core/test_lane_queue.py"
SQLITE_BROKER = "tests/messaging/test_sqlite_broker.py"
SQS = "tests/messaging/test_sqs.py"
UNDECODABLE = "tests/messaging/test_undecodable.py"

BREAKS: list[Break] = [
    Break(
        "a commit whose answer was lost is taken for one that was not made",
        "messaging.brokers.kafka.offsets:KafkaState._resolve_doubt",
        skipping("_owned", at=3) & skipping("return_to"),
        (f"{KAFKA_TRANSACTIONS}::test_the_answer_to_a_commit_is_lost[True-True]",),
        rows=(7,),
    ),
    Break(
        "records of an aborted transaction are passed by",
        "messaging.brokers.kafka.transactions:KafkaTransactions._abort",
        skipping("return_to"),
        (f"{KAFKA_TRANSACTIONS}::test_an_exception_leaves_nothing_and_the_records_come_again",),
        rows=(7,),
    ),
    Break(
        "the last settled offset is committed, even if an earlier one is unsettled",
        "messaging.brokers.kafka.progress:Progress.low",
        instead("next()", "self._next"),
        (f"{KAFKA_PROGRESS}::test_the_commit_is_the_first_unsettled_message",),
        rows=(50,),
    ),
    Break(
        "a publication that Pub/Sub does not answer is a success",
        "messaging.brokers.pubsub.results:result_of",
        instead("_SILENT", "PublishResult(PublishStatus.ACKED)"),
        (f"{PUBSUB}::test_a_publication_without_an_answer_is_no_success",),
        rows=(51,),
    ),
    Break(
        "messages have no id of ours by which Service Bus recognises them",
        "messaging.brokers.servicebus.messages:message_of",
        instead("id_of()", "None"),
        (f"{SERVICEBUS}::test_a_message_whose_answer_is_lost_is_taken_once",),
        rows=(51,),
    ),
    Break(
        "a message that Service Bus does not answer is a success",
        "messaging.brokers.servicebus.publisher:_ServiceBusPublishing._send_some",
        instead("alone()", "ACKED if is_silence(error) else alone(await to.why(error), entries[0].content.session_id)"),
        (f"{SERVICEBUS}::test_a_message_without_an_answer_is_no_success",),
        rows=(51,),
    ),
    Break(
        "a long handler loses its message to another consumer of SQS",
        "messaging.brokers.leased:LeasedSession._keep",
        skipping("_prolong"),
        (f"{SQS}::test_a_message_that_is_handled_for_longer_than_the_lease_stays_with_its_consumer",),
        rows=(52,),
    ),
    Break(
        "consumers of MQTT take a session from each other",
        "messaging.brokers.mqtt.consumer:_MqttSessions._take",
        always("is_free", "take"),
        (f"{MQTT}::test_a_consumer_of_a_used_session_stands_by",),
        rows=(52,),
    ),
    Break(
        "a long handler loses its message to another consumer of NATS",
        "messaging.brokers.nats.consumer:_NatsSession._tend_partition",
        skipping("publish", at=0),
        (f"{NATS}::test_a_message_that_is_handled_for_longer_than_the_lease_stays_with_its_consumer",),
        rows=(52,),
    ),
    Break(
        "a former owner of a NATS partition settles a message of the new one",
        "messaging.brokers.nats.pinned:PinnedPartition.settle",
        never("_is_over"),
        (f"{NATS}::test_messages_that_may_have_been_handed_out_again_are_not_settled",),
        rows=(52,),
    ),
    Break(
        "a consumer that has lost its stream goes on taking entries",
        "messaging.brokers.redis_streams.consumer:_READ",
        reworded("return {'fenced'}", "owner = owner"),
        (f"{CONSUMER_FAULTS}::test_a_consumer_that_has_lost_a_stream_takes_nothing_from_it",),
        rows=(52,),
    ),
    Break(
        "a long handler loses its session of Service Bus to another consumer",
        "messaging.brokers.servicebus.locks:Lock.renew",
        always("_lost"),
        (f"{SERVICEBUS}::test_a_message_that_is_handled_for_longer_than_the_lock_stays_with_its_consumer[session]",),
        rows=(52,),
    ),
    Break(
        "a record with a header that is not UTF-8 ends its consumer",
        "messaging.brokers.kafka.consumer:_headers",
        without("SystemError"),
        (f"{KAFKA}::test_a_record_with_a_header_that_is_not_utf_8_is_no_event",),
        rows=(53,),
    ),
    Break(
        "a message of Pub/Sub that may have killed its consumer is handed out as a new one",
        "messaging.brokers.pubsub.consumer:_PubSubSession._delivery",
        never("_terms"),
        (f"{PUBSUB}::test_a_consumer_cut_off_until_the_deadline_hands_out_nothing_that_another_one_has",),
        rows=(53,),
    ),
    Break(
        "a message that cannot be decoded stops its queue",
        "messaging.brokers.rabbitmq.consumer:_RabbitMQSession.open",
        never("failures"),
        (f"{UNDECODABLE}::test_a_message_that_cannot_be_decoded_stops_no_queue[timestamp]",),
        rows=(53,),
    ),
    Break(
        "a message of Service Bus that may have killed its consumer is handed out as a new one",
        "messaging.brokers.servicebus.consumer:_ServiceBusSession._delivery",
        never("delivery_count", "old"),
        (f"{SERVICEBUS}::test_a_consumer_cut_off_until_the_lock_ended_settles_and_hands_out_nothing[session]",),
        rows=(53,),
    ),
    Break(
        "messages overtake one of their lane that was given back",
        "messaging.brokers.lane_queue:LaneQueue.take",
        never("_resting"),
        (f"{LANE_QUEUE}::test_other_lanes_pass_by_one_that_rests",),
        rows=(54,),
    ),
    Break(
        "a message that an MQTT broker refuses is taken for published",
        "messaging.brokers.mqtt.results:result_of",
        always("value", at=0),
        (f"{MQTT}::test_refusals_of_the_broker_are_no_success_and_no_messages_fault",),
        rows=(54,),
    ),
    Break(
        "a batch that SQS refuses as a whole blames all its messages",
        "messaging.brokers.publisher:BatchSession._send_divided",
        never("_blames_one"),
        (f"{SQS}::test_a_batch_that_is_refused_as_a_whole_is_sent_again_one_by_one",),
        rows=(54,),
    ),
    Break(
        "a publication that RabbitMQ has not confirmed in time may come after the next one",
        "messaging.brokers.rabbitmq.publisher:_RabbitMQPublishing._confirm",
        never("_UNCONFIRMED"),
        (f"{PUBLISHERS}::test_unconfirmed_messages_are_read_before_anything_else_is_published",),
        rows=(55,),
    ),
    Break(
        "a message that waits in a SQLite file is overtaken",
        "messaging.brokers.sqlite.broker:_TAKEN",
        reworded("e.not_before > :now OR ", ""),
        (f"{SQLITE_BROKER}::test_a_message_that_waits_holds_its_lane_and_no_other",),
        rows=(55,),
    ),
    Break(
        "FastStream starts with an ack policy that loses messages",
        "messaging.brokers.faststream:_check",
        never("ack_policy"),
        (f"{FASTSTREAM}::test_a_broker_does_not_start_with_an_ack_policy_that_loses_messages",),
    ),
    Break(
        "a position in Kafka counts although its transaction was aborted",
        "messaging.brokers.kafka.ledger:KafkaLedger._read",
        reworded("read_committed", "read_uncommitted"),
        (f"{LEDGER}::test_a_position_of_an_aborted_transaction_does_not_count",),
    ),
    Break(
        "a message that the script of Redis could not add is remembered as added",
        "messaging.brokers.redis_streams.publisher:_SCRIPT",
        reworded("pcall(add, at)", "true, add(at)"),
        (f"{PUBLISHERS}::test_entries_that_the_script_cannot_add_are_not_remembered_as_added",),
    ),
    Break(
        "a message that no queue takes counts as published",
        "messaging.brokers.sqlite.broker:SqlitePublisher._one",
        instead("STALLED", "PublishStatus.ACKED"),
        (f"{SQLITE_BROKER}::test_messages_without_a_queue_are_tried_again",),
    ),
]
