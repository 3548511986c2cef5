"""Breaks of Kafka: what keeps records from being lost, blamed for others, or settled by who no longer has them."""

from __future__ import annotations

from tests.proving.breaks import Break

FOLDER = "messaging/brokers/kafka/"
OWN = "tests/messaging/test_kafka.py::"
PROGRESS = "tests/core/test_kafka_progress.py::"
PUBLISHING = "tests/messaging/test_publisher_suite.py::TestOurs::test_publisher"
CONSUMING = "tests/messaging/test_consumers.py::TestConsumers::test_consumer_conformance"
RIGHTS = "tests/messaging/test_kafka_rights.py::"
TRANSACTIONS = "tests/messaging/test_kafka_transactions.py::"

BREAKS = [
    Break(
        "of an error that ends a publisher's client nobody is told",
        f"{FOLDER}delivery.py",
        "            self._failed(error.args[0])\n",
        "            raise\n",
        killed_by=(f"{RIGHTS}test_who_may_write_nowhere_is_told_and_publishes_when_it_may",),
    ),
    Break(
        "records that wait for a number of their producer are told as postponed, whatever it is that keeps them",
        f"{FOLDER}publisher.py",
        "cause = sender.failure if code == KafkaError._PURGE_QUEUE else sender.cause",
        "cause = sender.cause",
        killed_by=(f"{RIGHTS}test_who_may_write_nowhere_is_told_and_publishes_when_it_may",),
    ),
    Break(
        "a header of a message is read as all of its headers",
        f"{FOLDER}envelope.py",
        "_READ = (_PREFIX, _MEDIA_TYPE, _ROW_HEADERS, _ROW_SEQUENCE)\n",
        "_READ = (_PREFIX, _MEDIA_TYPE)\n",
        killed_by=tuple(f"{OWN}test_what_has_no_place_in_a_record_is_given_up_alone[poison{n}]" for n in (5, 6)),
    ),
    Break(
        "a record with a header that is not UTF-8 ends its consumer",
        f"{FOLDER}consumer.py",
        "    except (SystemError, UnicodeError):\n",
        "    except UnicodeError:\n",
        killed_by=(f"{OWN}test_a_record_with_a_header_that_is_not_utf_8_is_no_event",),
        rows=(53,),
    ),
    Break(
        "a consumer is not closed before its brokers answer",
        f"{FOLDER}consumer.py",
        "thread.join, 2 * _WITHIN)",
        "thread.join, 60.0)",
        killed_by=(f"{OWN}test_a_consumer_is_closed_although_the_brokers_do_not_answer",),
        rows=(86,),
    ),
    Break(
        "a group that is ahead of a topic passes by what the topic has",
        f"{FOLDER}consumer.py",
        "if is_another := held.progress.next > end:",
        "if is_another := False:",
        killed_by=(f"{OWN}test_a_group_that_is_ahead_of_the_topic_begins_with_the_oldest_message",),
        rows=(50,),
    ),
    Break(
        "a partition that has lost its end is transformed again from the beginning",
        f"{FOLDER}batches.py",
        "        reached = self.reached(place)\n",
        "        reached = -1\n",
        killed_by=(
            f"{TRANSACTIONS}test_a_group_that_is_ahead_of_the_topic_repeats_nothing",
            f"{TRANSACTIONS}test_a_state_that_is_ahead_of_the_topic_is_not_changed",
        ),
        rows=(50,),
    ),
    Break(
        "a stream whose producer could not be replaced stays without one",
        f"{FOLDER}transactions.py",
        "        self._mend()\n        read = ",
        "        read = ",
        killed_by=(f"{TRANSACTIONS}test_a_stream_goes_on_when_brokers_are_back_that_did_not_answer_in_time",),
    ),
    Break(
        "a commit whose text is too long is tried for ever",
        f"{FOLDER}progress.py",
        "        self._most //= 2\n",
        "",
        killed_by=(f"{OWN}test_the_text_of_a_commit_is_as_long_as_the_brokers_take",),
    ),
    Break(
        "bytes that may not be handed out yet are not counted",
        f"{FOLDER}consumer.py",
        "self._shelf.held_bytes(partition) + held.withheld_bytes <",
        "self._shelf.held_bytes(partition) <",
        killed_by=(f"{OWN}test_bytes_are_counted_that_may_not_be_handed_out_yet",),
    ),
    Break(
        "a partition that has room again is left alone for up to a second",
        f"{FOLDER}consumer.py",
        "                client.seek(one)",
        "                pass",
        killed_by=(f"{OWN}test_a_partition_that_has_room_again_goes_on_at_once",),
    ),
    Break(
        "what is sent by a sender that was closed is never reported",
        f"{FOLDER}delivery.py",
        "            if self._closing:\n                for at",
        "            if False:\n                for at",
        killed_by=(f"{OWN}test_a_sender_that_was_closed_reports_what_it_does_not_send",),
    ),
    Break(
        "who publishes while a sender is closed ends the waves of others",
        f"{FOLDER}delivery.py",
        "                for at in range(len(records)):\n",
        "                self._give_up()\n                for at in range(len(records)):\n",
        killed_by=(f"{OWN}test_who_publishes_while_the_client_is_closed_ends_nobody_elses_wave",),
    ),
    Break(
        "a child uses the client of its parent, which has no threads there",
        f"{FOLDER}publisher.py",
        "if self._sender is None or not self._sender.is_ours:",
        "if self._sender is None:",
        killed_by=(f"{OWN}test_a_publisher_that_was_used_before_a_fork_publishes_in_the_child",),
        rows=(87,),
    ),
    Break(
        "messages are given up that were in a batch with one that is too large",
        f"{FOLDER}publisher.py",
        "if len(records) > 1 and report is not None and report.code() in _REFUSED:",
        "if False:",
        killed_by=(f"{PUBLISHING}[kafka-what_is_too_large_is_refused_alone]",),
        rows=(54,),
    ),
    Break(
        "a header's name that is not UTF-8 reaches the client, which ends the process",
        f"{FOLDER}envelope.py",
        "        name.encode()\n",
        "        pass\n",
        killed_by=(f"{OWN}test_what_has_no_place_in_a_record_is_given_up_alone[poison0]",),
    ),
    Break(
        "what was settled last is committed, whatever is unsettled before it",
        f"{FOLDER}progress.py",
        "return next(iter(self._settled), self._next)",
        "return self._next",
        killed_by=(
            f"{PROGRESS}test_what_is_committed_is_the_first_unsettled_message",
            f"{CONSUMING}[kafka-what_is_not_settled_is_handed_out_again_in_its_order]",
            f"{CONSUMING}[kafka-what_a_dead_consumer_left_is_handed_out_again_in_its_order]",
        ),
        rows=(50,),
    ),
    Break(
        "messages are handed out before their group is told so",
        f"{FOLDER}consumer.py",
        "if offset < held.progress.granted:",
        "if True:",
        killed_by=(f"{OWN}test_what_was_handed_out_and_never_settled_is_told_to_be_redelivered",),
        rows=(50,),
    ),
    Break(
        "work of a partition that has gone is settled",
        f"{FOLDER}consumer.py",
        "                self._held.pop((one.topic, one.partition), None)\n"
        '                self._shelf.forget(f"{one.topic}-{one.partition}")\n',
        "                pass\n",
        killed_by=(f"{OWN}test_what_is_settled_after_a_partition_has_gone_is_not_committed",),
        rows=(52,),
    ),
    Break(
        "records of an aborted transaction are passed by",
        f"{FOLDER}transactions.py",
        "        self._batches.return_to(begins)\n        return Aborted",
        "        return Aborted",
        killed_by=(f"{TRANSACTIONS}test_an_exception_leaves_nothing_and_the_records_come_again",),
        rows=(7,),
    ),
    Break(
        "a consumer that has lost its partition commits state",
        "streams/positions.py",
        "AND position = {self._mark} AND epoch = {self._mark}",
        "AND position = {self._mark} AND epoch >= {self._mark}",
        killed_by=(f"{TRANSACTIONS}test_who_has_lost_a_partition_changes_nothing",),
        rows=(9,),
    ),
    Break(
        "a commit whose answer was lost is taken for one that was not made",
        f"{FOLDER}offsets.py",
        "                self._owned[place] = found\n                self.return_to({place: found.next})",
        "                pass",
        killed_by=(
            f"{TRANSACTIONS}test_the_answer_to_a_commit_is_lost[True-True]",
            f"{TRANSACTIONS}test_the_answer_to_a_commit_is_lost[True-False]",
        ),
        rows=(7,),
    ),
]
