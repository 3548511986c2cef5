"""Outbox, relay, inbox, change data capture, streams."""

from __future__ import annotations

from tests.proving.breaks import Break
from tests.proving.breaks.mutations import always, first, instead, never, reworded, skipping, unwrapped

BATCHING = "tests/core/test_batching.py"
CDC = "tests/messaging/test_cdc.py"
DESTINATIONS = "tests/messaging/test_destinations.py"
IDENTITIES = "tests/messaging/test_identities.py"
INBOX = "tests/messaging/test_inbox.py"
KAFKA_TRANSACTIONS = "tests/messaging/test_kafka_transactions.py"
LARGE_LETTERS = "tests/messaging/test_large_letters.py"
LEDGER = "tests/streams/test_ledger.py"
REDRIVE = "tests/messaging/test_redrive.py"
RELAY_FAULTS = "tests/messaging/test_relay_faults.py"
RELAY_POSTGRESQL = "tests/messaging/test_relay_postgresql.py"
SUBSCRIPTION = "tests/messaging/test_subscription.py"

BREAKS: list[Break] = [
    Break(
        "an attempt in a transaction leaves no trace when its process dies",
        "messaging.relay.bucket:Probation.notes",
        never("is_suspected", "number"),
        (f"{RELAY_FAULTS}::test_an_attempt_that_its_relay_outlives_is_no_suspicion[postgresql]",),
        rows=(7, 53),
    ),
    Break(
        "a message gets another id each time it is published",
        "messaging.relay.publish_calls:_envelopes",
        instead("envelope", "queued.envelope._replace(id=str(random.random()))"),
        (f"{RELAY_FAULTS}::test_published_and_not_marked_it_goes_out_again_under_the_same_id[sqlite-lease-False]",),
        rows=(7,),
    ),
    Break(
        "a message is marked as published before it is",
        "messaging.relay.bucket:_publish_leased",
        first(
            "gone = nothing_yet()._replace(gone=flow.wave)\n"
            "_transact(client, partial(_conclude, setting, lease.ownership, gone, last=False))",
            "judge",
        ),
        (f"{RELAY_FAULTS}::test_a_message_is_marked_after_it_was_published[sqlite-lease-False]",),
        rows=(8,),
    ),
    Break(
        "a message that is delivered again is another one",
        "messaging.inbox.attempts:key_of",
        instead("message_id", "str(random.random())"),
        (f"{SUBSCRIPTION}::test_a_storm_of_duplicates_is_applied_once_and_in_order",),
        rows=(9, 50),
    ),
    Break(
        "another payload under a used id counts as the end of a consumer",
        "messaging.inbox.procedures:conclude",
        never("record_key"),
        (f"{INBOX}::test_another_payload_under_a_used_id_is_no_attempt_at_its_message[sqlite]",),
        rows=(53,),
    ),
    Break(
        "messages are acknowledged when they are received",
        "messaging.subscription.working:SubscriptionRun.add",
        first("self._settled += deliveries\nself._acking.set()"),
        (
            f"{SUBSCRIPTION}::test_stop_lets_what_is_being_handled_end_and_gives_the_rest_back",
            f"{SUBSCRIPTION}::test_a_run_that_ends_early_gives_back_what_it_has_not_handled",
        ),
        rows=(9,),
    ),
    Break(
        "a consumer that has lost its partition commits state",
        "streams.positions:Positions.move",
        reworded(" AND epoch = ", " AND epoch >= "),
        (f"{KAFKA_TRANSACTIONS}::test_a_consumer_that_has_lost_a_partition_changes_nothing",),
        rows=(9,),
    ),
    Break(
        "the low-water mark passes over transactions that may still write below it",
        "messaging.relay.low_water:LowWater.steps",
        always("ended", "_begun"),
        (f"{RELAY_FAULTS}::test_a_row_that_commits_late_is_not_overtaken_by_the_next_one_of_its_key[postgresql]",),
        rows=(35,),
    ),
    Break(
        "an inbox does not look at the payload of a message it knows",
        "messaging.inbox.attempts:identify",
        never("digest"),
        (f"{INBOX}::test_one_id_with_another_payload_is_a_dead_letter_of_its_own[sqlite]",),
        rows=(50,),
    ),
    Break(
        "a message that a publisher refuses as wrong use holds up its bucket for ever",
        "messaging.relay.publish_calls:PublishCalls._in_parts",
        never("_MOST_REFUSED", "_topics"),
        (f"{DESTINATIONS}::test_a_message_that_a_publisher_refuses_as_wrong_use_holds_up_only_its_lane[1-Refusing]",),
        rows=(51,),
    ),
    Break(
        "an outage spends the attempts of messages",
        "messaging.inbox.attempts:InboxAttempt.outcome_of",
        never("is_unavailable"),
        (f"{INBOX}::test_services_of_a_handler_may_be_away_for_any_time[sqlite-handler-a connection that ended]",),
        rows=(53,),
    ),
    Break(
        "messages behind a failing one are applied before it, in its lane",
        "messaging.inbox.batch_plan:_select",
        instead("get()", "None"),
        (f"{BATCHING}::test_all_but_the_poison_and_what_follows_it_in_its_lane_is_applied_once_in_order[True]",),
        rows=(53,),
    ),
    Break(
        "a dead letter without its body is handled as an empty message",
        "messaging.inbox.message:data_of",
        never("is_without_body"),
        (f"{LARGE_LETTERS}::test_a_message_too_large_for_its_store_becomes_a_dead_letter_without_its_body[sqlite]",),
        rows=(53,),
    ),
    Break(
        "an outage of the database costs a large message its body",
        "messaging.inbox.procedures:bury",
        skipping("ask", "counts"),
        (f"{LARGE_LETTERS}::test_an_outage_costs_a_large_message_no_body[sqlite]",),
        rows=(53,),
    ),
    Break(
        "dead letters behind one that has to come again are handled before it",
        "messaging.inbox.dead_letters:_Round.conclude",
        skipping("_waiting"),
        (f"{REDRIVE}::test_letters_behind_one_that_has_to_come_again_wait_for_it[sqlite]",),
        rows=(55,),
    ),
    Break(
        "a redrive that has lost its lease goes on",
        "messaging.inbox.dead_letters:redrive",
        skipping("ensure_held"),
        (f"{REDRIVE}::test_a_consumer_that_has_lost_the_lease_handles_no_more_of_them[sqlite]",),
        rows=(55,),
    ),
    Break(
        "a window shorter than the broker redelivers is taken",
        "messaging.subscription.subscription:Subscription._check_window",
        instead("redelivery_window", "0", at=2),
        (f"{SUBSCRIPTION}::test_a_window_shorter_than_the_broker_redelivers_is_refused[sqlite]",),
        rows=(56,),
    ),
    Break(
        "messages of a broker that keeps them for longer than the inbox are handled",
        "messaging.subscription.subscription:Subscription._receive_into.receive",
        skipping("_check_window"),
        (f"{SUBSCRIPTION}::test_a_window_that_is_read_from_the_broker_is_checked_before_anything_is_handled",),
        rows=(57,),
    ),
    Break(
        "a message from before the window is not told to be late",
        "messaging.inbox.attempts:is_late",
        never("window", "written"),
        (f"{INBOX}::test_messages_after_the_window_are_told_to_be_late[sqlite]",),
        rows=(59,),
    ),
    Break(
        "a lane from the log goes on behind a message that waits",
        "messaging.cdc.batches:leaving",
        skipping("stopped", "add"),
        (f"{CDC}::test_a_lane_stops_at_what_waits_and_what_has_left_is_passed_by",),
    ),
    Break(
        "changes that the log has before they can be seen are passed by",
        "messaging.cdc.batches:take",
        never("any"),
        (f"{CDC}::test_commits_in_the_log_before_they_can_be_seen_are_waited_for",),
    ),
    Break(
        "the server forgets its log before the broker has it",
        "messaging.cdc.following:_follow",
        first("stream.confirm(batch.end)", "publish"),
        (f"{CDC}::test_the_server_may_forget_the_log_when_messages_have_left_and_not_before",),
    ),
    Break(
        "the slot of another database is dropped",
        "messaging.cdc.slot:_DROP",
        instead("_OURS", "'slot_name = %s'"),
        (f"{CDC}::test_a_slot_of_another_database_is_left_alone",),
    ),
    Break(
        "a relay reads a bucket with a snapshot from before it held it",
        "messaging.relay.procedures:take",
        skipping("prepare"),
        (f"{RELAY_POSTGRESQL}::test_a_bucket_that_comes_free_is_read_as_it_is_then",),
    ),
    Break(
        "a message is written with a header that will be read as an attribute",
        "messaging.validation:headers",
        never("startswith", "DATA"),
        (f"{IDENTITIES}::test_a_header_that_a_broker_keeps_for_itself_is_refused_when_it_is_added",),
    ),
    Break(
        "an exception leaves the position moved",
        "streams.ledger:SqlLedger._roll_back",
        instead("rollback", "connection.commit"),
        (f"{LEDGER}::test_an_exception_leaves_neither_and_goes_on[sqlite]",),
    ),
    Break(
        "the front of a batch that is written already is written again",
        "streams.ledger:first_to_write",
        unwrapped("max"),
        (f"{LEDGER}::test_a_span_is_written_once_and_what_overlaps_is_left_out[sqlite]",),
    ),
    Break(
        "a writer that was taken over from goes on writing",
        "streams.ledger:first_to_write",
        never("found", "epoch"),
        (f"{LEDGER}::test_a_replaced_owner_writes_nothing[sqlite]",),
    ),
]
