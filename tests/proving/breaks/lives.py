"""Forks and closed event loops: what is made before them is somebody else's afterwards, and what ran is over."""

from __future__ import annotations

from tests.proving.breaks import Break

LOCKED = "tests/faults/test_locked_files.py::"
CANCELLATION = "tests/faults/test_cancellation.py"
STOPS = "tests/core/test_stop_signal.py::"
SQLITE = "tests/messaging/test_sqlite_broker.py::"
HOME = "tests/messaging/test_home.py::"
AFTER, AGAIN, BEFORE, IN_CHILD = (
    f"{HOME}test_loops_after_one_another",
    f"{HOME}test_what_was_closed_begins_anew_on_the_same_event_loop_and_on_the_next",
    f"{HOME}test_what_was_received_before_a_consumer_was_closed_settles_no_other_message",
    f"{HOME}test_a_child_neither_hands_out_nor_publishes_by_what_its_parent_uses",
)
DESTINATIONS = "tests/messaging/test_destinations.py::"
REFUSED = f"{DESTINATIONS}test_a_message_that_a_publisher_refuses_as_wrong_use_holds_up_only_its_lane"
NOTIFYING = "tests/messaging/test_notifying.py::"
REDRIVEN = (
    "tests/messaging/test_subscription.py::"
    "test_a_stop_waits_for_a_dead_letter_that_is_handled_again_and_begins_no_other"
)

BREAKS = [
    Break(
        "a consumer of the SQLite broker is the same one in a child",
        "messaging/brokers/sqlite/broker.py",
        "        if self._process != os.getpid():\n            self._begin()\n        loop = ",
        "        loop = ",
        killed_by=(f"{SQLITE}test_a_consumer_that_was_made_before_a_fork_is_another_one_in_the_child",),
        rows=(87,),
    ),
    Break(
        "a child that closes a consumer of the SQLite broker gives back what its parent has",
        "messaging/brokers/sqlite/broker.py",
        "        if self._process != os.getpid():\n            self._begin()\n        renewing",
        "        renewing",
        killed_by=(f"{SQLITE}test_a_child_that_closes_a_consumer_gives_back_nothing_of_its_parents",),
        rows=(87,),
    ),
    Break(
        "what an event loop was closed over is overtaken at the SQLite broker",
        "messaging/brokers/sqlite/broker.py",
        "                self._earlier.append(self._name)\n                self._name = self._new_name()\n",
        "                pass\n",
        killed_by=(f"{SQLITE}test_what_an_event_loop_was_closed_over_comes_again_before_what_is_behind_it[False]",),
        rows=(52,),
    ),
    Break(
        "what waits since an event loop before waits on when its consumer of the SQLite broker closes",
        "messaging/brokers/sqlite/broker.py",
        "giver = iif(giver = :name, :me, giver)",
        "giver = giver",
        killed_by=(f"{SQLITE}test_what_an_event_loop_was_closed_over_comes_again_before_what_is_behind_it[True]",),
    ),
    Break(
        "a child that lives on keeps a relay that listens",
        "messaging/relay/listener.py",
        "                self._other_end.shutdown(socket.SHUT_RDWR)\n",
        "                pass\n",
        killed_by=(f"{NOTIFYING}test_a_child_that_lives_on_does_not_keep_a_relay_that_listens",),
        rows=(86, 87),
    ),
    Break(
        "a child that hangs up wakes its parent's listener for ever",
        "messaging/relay/listener.py",
        "        if self._process == os.getpid():\n            with suppress",
        "        if True:\n            with suppress",
        killed_by=(f"{NOTIFYING}test_a_child_that_hangs_up_leaves_its_parent_listening",),
        rows=(87,),
    ),
    Break(
        "a relay whose event loop was closed over it listens for ever",
        "messaging/relay/listener.py",
        "(self._closed.is_set() or self._stop.is_closed_over)",
        "self._closed.is_set()",
        killed_by=(f"{NOTIFYING}test_an_event_loop_that_is_closed_over_a_relay_leaves_no_listener[kept]",),
    ),
    Break(
        "who listens hangs up only where it can be awaited",
        "messaging/relay/listener.py",
        "        made.hang_up()\n    await asyncio.to_thread(made.close)\n",
        "        await asyncio.to_thread(made.close)\n",
        killed_by=(f"{NOTIFYING}test_an_event_loop_that_is_closed_over_a_relay_leaves_no_listener[given up]",),
    ),
    Break(
        "what an event loop was closed over is under way for ever in a relay",
        "messaging/relay/dispatch.py",
        "        self._tasks, self._under_way, self._withheld_for, self._ended = set(), set(), [], False\n",
        "",
        killed_by=(
            "tests/messaging/test_destinations.py::test_what_an_event_loop_was_closed_over_is_under_way_no_more",
        ),
    ),
    Break(
        "a run does not end with the event loop that is closed over it",
        "stop_signal.py",
        "stop = self.begin(_running_loop())",
        "stop = self.begin()",
        killed_by=(f"{STOPS}test_a_run_whose_event_loop_was_closed_over_it_is_over_and_hears_no_signal",),
    ),
    Break(
        "a stop is for a run whose event loop was closed over it",
        "stop_signal.py",
        "        self._forget_the_dead()\n        self._is_early",
        "        self._is_early",
        killed_by=(f"{STOPS}test_a_stop_after_an_event_loop_was_closed_over_a_run_is_for_the_next",),
        rows=(86,),
    ),
    Break(
        "a run whose event loop was closed over it has ended by itself",
        "stop_signal.py",
        "                self._end(one, well=False)\n",
        "                self._end(one, well=True)\n",
        killed_by=(f"{STOPS}test_a_stop_after_an_event_loop_was_closed_over_a_run_is_for_the_next",),
        rows=(86,),
    ),
    Break(
        "a run is over as soon as an event loop that it waited on is closed",
        "stop_signal.py",
        "return self._run_loop is not None and self._run_loop.is_closed()",
        "return self._loop is not None and self._loop.is_closed()",
        killed_by=(f"{STOPS}test_a_run_that_outlives_the_event_loop_that_it_waited_on_has_not_ended_by_an_error",),
    ),
    Break(
        "a signal is heard by a run whose event loop was closed over it",
        "stop_signal.py",
        " and not (self.loop is not None and self.loop.is_closed())",
        "",
        killed_by=(f"{STOPS}test_a_run_whose_event_loop_was_closed_over_it_is_over_and_hears_no_signal",),
        rows=(86,),
    ),
    Break(
        "a child heeds what its parent was told, and how its parent's run ended",
        "stop_signal.py",
        "self._running, self._ended_well, self._is_early = [], False, False",
        "self._running = []",
        killed_by=(
            f"{STOPS}test_a_child_has_runs_and_stops_of_its_own[has run]",
            f"{STOPS}test_a_child_has_runs_and_stops_of_its_own[was told early]",
        ),
        rows=(86, 87),
    ),
    Break(
        "a stop cuts off a dead letter that is handled again",
        "messaging/subscription/working.py",
        "            await asyncio.gather(*beside)\n",
        "",
        killed_by=(f"{REDRIVEN}[forever-async-sqlite]",),
        rows=(86,),
    ),
    Break(
        "a stop waits for all dead letters that are marked",
        "messaging/inbox/dead_letters.py",
        " or self._stopped()",
        "",
        killed_by=(f"{REDRIVEN}[forever-async-sqlite]", f"{REDRIVEN}[once-sync-sqlite]"),
        rows=(86,),
    ),
    Break(
        "a participant that was made before a fork has one name in every process",
        "process_name.py",
        "        if self._process != os.getpid():\n",
        "        if not self._name:\n",
        killed_by=("tests/core/test_process_name.py::test_a_name_lasts_and_is_nobody_elses_nor_that_of_a_child",),
        rows=(87,),
    ),
    Break(
        "a consumer or publisher is used where it does not belong",
        "messaging/brokers/home.py",
        "            self.require()\n            self._process",
        "            self._process",
        killed_by=(f"{AFTER}[redis]", f"{AFTER}[rabbitmq]", f"{IN_CHILD}[redis]", f"{IN_CHILD}[nats]"),
        rows=(87,),
    ),
    Break(
        "a child settles what its parent was handed, over its connection",
        "messaging/brokers/home.py",
        "            self._home.require()\n            await method",
        "            await method",
        killed_by=(f"{IN_CHILD}[rabbitmq]", f"{IN_CHILD}[mqtt]"),
        rows=(87,),
    ),
    Break(
        "a child that closes what its parent uses writes to its parent's connection, or hangs",
        "messaging/brokers/home.py",
        "                if not (self._moves and self._may_come()):\n",
        "                if False:\n",
        killed_by=(f"{IN_CHILD}[rabbitmq]", f"{IN_CHILD}[servicebus]"),
        rows=(87,),
    ),
    Break(
        "what begins anew on another event loop has the connections of before",
        "messaging/brokers/home.py",
        "            self._begin()\n",
        "            pass\n",
        killed_by=(f"{AFTER}[mqtt]", f"{AFTER}[sns]", f"{HOME}test_what_begins_anew_has_nothing_of_before"),
    ),
    Break(
        "a consumer that was closed falls silent on the same event loop",
        "messaging/brokers/home.py",
        "(self.is_closed and not self._is_being_closed())",
        "(self.is_closed and not self._is_here())",
        killed_by=(f"{AGAIN}[sns]", f"{AGAIN}[pubsub]", f"{AGAIN}[redis]"),
    ),
    Break(
        "who asks a closed consumer for its lag opens it again",
        "messaging/brokers/home.py",
        "        if self._home.is_closed:\n            return {}\n",
        "",
        killed_by=(f"{AGAIN}[nats]", f"{AGAIN}[redis]"),
    ),
    Break(
        "a receive that is under way opens a closed consumer again, or waits on",
        "messaging/brokers/home.py",
        "self._home.until_closed(method(self, limit, wait), list)",
        "method(self, limit, wait)",
        killed_by=(f"{AGAIN}[rabbitmq]", f"{AGAIN}[kafka]", f"{AGAIN}[sqlite]"),
    ),
    Break(
        "a delivery from before a consumer of RabbitMQ was closed settles another message",
        "messaging/brokers/rabbitmq/consumer.py",
        "        self._outstanding: defaultdict",
        "        global _connections; _connections = itertools.count()\n        self._outstanding: defaultdict",
        killed_by=(f"{BEFORE}[rabbitmq]",),
    ),
    Break(
        "a delivery from before a consumer of MQTT was closed settles another message",
        "messaging/brokers/mqtt/consumer.py",
        "        self._open: dict",
        "        global _numbers; _numbers = itertools.count()\n        self._open: dict",
        killed_by=(f"{BEFORE}[mqtt]",),
    ),
    Break(
        "a receive from memory takes part again when its consumer was closed",
        "messaging/brokers/memory/broker.py",
        "            if self._closed > closed:\n",
        "            if False:\n",
        killed_by=(f"{HOME}test_a_receive_from_memory_ends_when_its_consumer_is_closed",),
    ),
    Break(
        "a receive that comes while a consumer is closed does not wait for the end of that",
        "messaging/brokers/home.py",
        "            await asyncio.wait([closing])\n        with",
        "            break\n        with",
        killed_by=(f"{HOME}test_who_comes_while_a_consumer_is_closed_waits_for_the_end_of_that",),
    ),
    Break(
        "a consumer of the SQLite broker hands out on two event loops at once",
        "messaging/brokers/sqlite/broker.py",
        "@of_one_loop(moves=True)\n",
        "",
        killed_by=(f"{HOME}test_a_consumer_of_sqlite_is_refused_on_a_second_event_loop_that_is_open",),
    ),
    Break(
        "a publisher of Redis begins anew with the connections of a closed event loop",
        "messaging/brokers/redis_streams/client.py",
        "    pool.reset()\n",
        "",
        killed_by=(f"{AFTER}[redis]",),
    ),
    Break(
        "a consumer of Kafka keeps its partitions for ever when its event loop was closed over it",
        "messaging/brokers/kafka/consumer.py",
        "self._is_closing or self._loop.is_closed()",
        "self._is_closing",
        killed_by=(
            f"{AFTER}[kafka]",
            "tests/messaging/test_kafka.py::test_a_consumer_leaves_its_partitions_when_its_event_loop_is_closed_over_it",
        ),
    ),
    Break(
        "an event loop that was closed over a webhook cancels who asks for it on the next",
        "messaging/brokers/webhook.py",
        "@of_one_loop(follows=True)\n",
        "",
        killed_by=(f"{HOME}test_what_an_event_loop_has_cancelled_does_not_cancel_a_webhook_on_the_next",),
    ),
    Break(
        "a child waits for threads of its parent that send webhooks",
        "messaging/brokers/webhook.py",
        "{os.getpid(): self._begin()}\n            return self._by_process[os.getpid()]",
        "{**self._by_process, os.getpid(): [*self._by_process.values()][0]}\n"
        "            return self._by_process[os.getpid()]",
        killed_by=(f"{HOME}test_a_publisher_of_webhooks_that_was_used_before_a_fork_publishes_in_the_child",),
        rows=(87,),
    ),
    Break(
        "a child waits for threads of its parent in which claims are entered",
        "entrypoint.py",
        " or process != os.getpid()",
        "",
        killed_by=(
            "tests/boundary/test_entering.py::test_claims_of_an_event_loop_are_entered_in_a_child_of_its_process",
        ),
        rows=(87,),
    ),
    Break(
        "asyncio.run never ends over a consumer of Service Bus",
        "messaging/brokers/servicebus/holdings.py",
        "found = await heeding(self._receiver.receive_messages(max_message_count=most, max_wait_time=wait))",
        "found = await self._receiver.receive_messages(max_message_count=most, max_wait_time=wait)",
        killed_by=("tests/messaging/test_servicebus.py::test_a_cancellation_that_the_library_loses_is_heeded",),
    ),
    Break(
        "what a publisher refuses to do is unknown to a relay",
        "messaging/relay/calling.py",
        "    if every(error, ConfigurationError):\n",
        "    if False:\n",
        killed_by=(f"{HOME}test_a_relay_whose_publisher_belongs_elsewhere_publishes_nothing_and_spends_no_attempt",),
    ),
    Break(
        "a message that a publisher refuses as wrong use holds up its bucket for ever",
        "messaging/relay/calling.py",
        "            elif len(part) > 1 and (",
        "            elif len(part) < 1 and (",
        killed_by=(f"{REFUSED}[1-Refusing]", f"{REFUSED}[1-AsyncRefusing]", f"{REFUSED}[90-Refusing]"),
        rows=(51,),
    ),
    Break(
        "many messages that a publisher refuses as wrong use hold up other topics",
        "messaging/relay/calling.py",
        "    return {wave[at].envelope.topic for at in part}\n",
        '    return {""}\n',
        killed_by=(f"{REFUSED}[90-Refusing]", f"{REFUSED}[90-AsyncRefusing]"),
        rows=(51,),
    ),
    Break(
        "a publisher that refuses everything is told of each message",
        "messaging/relay/dispatch.py",
        "        if self.works:\n",
        "        if True:\n",
        killed_by=(
            f"{DESTINATIONS}test_a_publisher_that_refuses_everything_takes_nothing_from_anybody[Refusing]",
            f"{HOME}test_a_relay_whose_publisher_belongs_elsewhere_publishes_nothing_and_spends_no_attempt",
        ),
    ),
    Break(
        "a message that is refused before anything has left ends its run",
        "messaging/relay/relay.py",
        "if self._dispatch.refused and not self._dispatch.works:",
        "if self._dispatch.refused:",
        killed_by=tuple(
            f"{DESTINATIONS}test_a_message_that_is_refused_before_anything_has_left_ends_no_run[{kind}]"
            for kind in ("Refusing", "AsyncRefusing")
        ),
        rows=(51,),
    ),
    Break(
        "a group of errors that say wrong use is an unknown outcome",
        "messaging/relay/calling.py",
        "    if every(error, ConfigurationError):",
        "    if isinstance(error, ConfigurationError):",
        killed_by=(f"{REFUSED}[1-GroupRefusing]",),
        rows=(51,),
    ),
    Break(
        "an interrupted relay that holds buckets by leases counts as one that its messages killed",
        "messaging/relay/bucket.py",
        "            _fenced(client, partial(outlive_fenced,",
        "            pass\n            0 and _fenced(client, partial(outlive_fenced,",
        killed_by=(
            "tests/messaging/test_relay_faults.py::test_who_interrupts_a_relay_makes_no_dead_letter[sqlite-None]",
        ),
        rows=(7,),
    ),
    Break(
        "a cancelled relay that holds buckets by leases counts as one that its messages killed",
        "messaging/relay/bucket.py",
        "            await run_to_completion(_afenced(client, steps))",
        "            pass",
        killed_by=("tests/messaging/test_relay_faults.py::test_who_cancels_a_relay_makes_no_dead_letter[sqlite-None]",),
        rows=(7,),
    ),
    Break(
        "who cancels the closing of a consumer leaves it open",
        "messaging/brokers/home.py",
        "        await asyncio.shield(closing)",
        "        await closing",
        killed_by=(f"{HOME}test_what_has_begun_to_be_closed_is_closed_although_who_closes_it_is_cancelled",),
    ),
    Break(
        "a publisher is closed under what it is publishing",
        "messaging/brokers/home.py",
        "            await call.ended.wait()",
        "            pass",
        killed_by=(
            f"{HOME}test_a_publish_that_is_under_way_when_its_publisher_is_closed_has_an_answer[True]",
            f"{HOME}test_a_publish_that_is_under_way_when_its_publisher_is_closed_has_an_answer[False]",
        ),
    ),
    Break(
        "what was made from an iterator begins anew with nothing",
        "messaging/brokers/home.py",
        "    return tuple(argument) if isinstance(argument, Iterator) else argument",
        "    return argument",
        killed_by=(f"{HOME}test_what_was_made_from_an_iterator_begins_anew_with_the_same",),
    ),
    Break(
        "a child destroys the clients that it has inherited",
        "messaging/brokers/home.py",
        "    forks.keep_for_ever([home for home in _everywhere if home.has_connections])",
        "    pass",
        killed_by=(f"{HOME}test_a_child_that_drops_what_it_inherited_disturbs_its_parent_in_nothing",),
        rows=(87,),
    ),
    Break(
        "a child settles in a SQLite file what its parent has in hand",
        "messaging/brokers/sqlite/broker.py",
        '    return str(name).startswith(f"{os.getpid()} ")',
        "    return bool(name)",
        killed_by=(f"{SQLITE}test_a_child_settles_nothing_that_its_parent_has_in_hand",),
        rows=(87,),
    ),
    Break(
        "a call of a thread of one's own gets lost beside its end",
        "threads.py",
        "        with self._turn.mine:\n            self._begun()",
        "        if True:\n            self._begun()",
        killed_by=("tests/core/test_threads.py::test_a_call_beside_its_end_is_done",),
    ),
    Break(
        "who is cancelled gives back what a thread of one's own uses",
        "threads.py",
        "        done, cancelled = await run_to_completion(self.submit(work))",
        "        return await self.submit(work)\n        done, cancelled = await run_to_completion(self.submit(work))",
        killed_by=(
            "tests/core/test_threads.py::test_whoever_is_cancelled_waits_for_what_has_begun",
            f"{CANCELLATION}::test_the_end_of_asyncio_run_waits_for_what_a_thread_uses[of one's own]",
        ),
        rows=(89,),
    ),
    Break(
        "the end of asyncio.run cancels the wait for a thread",
        "cancellation.py",
        "    done = loop.run_in_executor(threads, copy_context().run, partial(returned, work))",
        """    async def running() -> R:
        return await loop.run_in_executor(threads, copy_context().run, partial(returned, work))

    done = running()""",
        killed_by=(
            f"{CANCELLATION}::test_the_end_of_asyncio_run_waits_for_what_a_thread_uses[of a handler]",
            f"{CANCELLATION}::test_the_end_of_asyncio_run_waits_for_what_a_thread_uses[of a claim]",
        ),
        rows=(89,),
    ),
    Break(
        "a thread of one's own keeps what was to end those before it",
        "threads.py",
        "            if self._end is not None:\n                self._end()\n                self._end = None\n",
        "            self._calls.put(None)\n            self._end = None\n",
        killed_by=("tests/core/test_threads.py::test_used_and_ended_many_times_it_keeps_nothing_of_those_before",),
    ),
    Break(
        "work is given to a thread of one's own while the one before is at work",
        "threads.py",
        "        before.join()\n",
        "",
        killed_by=("tests/core/test_threads.py::test_a_call_behind_its_end_waits_for_what_was_to_be_done_before",),
    ),
    Break(
        "the end of asyncio.run cancels what is to come to its end",
        "cancellation.py",
        "    asyncio.tasks._unregister_task(task)\n",
        "",
        killed_by=(
            f"{HOME}test_what_has_begun_to_be_closed_is_closed_although_asyncio_run_ends",
            f"{CANCELLATION}::test_asyncio_run_that_ends_while_a_boundary_is_closed_closes_all_of_it[sqlite]",
            f"{CANCELLATION}::test_asyncio_run_that_ends_while_an_outcome_is_stored_lets_it_be_stored[sqlite]",
        ),
        rows=(89,),
    ),
    Break(
        "a connection of SQLite comes back while a thread works on it",
        "backends/sql/drivers/sqlite_async.py",
        "        with self.handle.in_use:\n",
        "        if True:\n",
        killed_by=(f"{CANCELLATION}::test_a_connection_comes_back_when_the_thread_has_ended_that_works_on_it",),
        rows=(31,),
    ),
    *(
        Break(
            f"{colour} transaction on SQLite waits for the file as if it had not waited for its turn",
            f"backends/sql/drivers/{file}",
            "connection.wait_for_writers(until - time.monotonic())",
            "pass",
            killed_by=(f"{LOCKED}{test}",),
            rows=(31,),
        )
        for colour, file, test in (
            ("a sync", "sqlite.py", "test_a_sync_transaction_too"),
            (
                "an async",
                "sqlite_async.py",
                "test_a_transaction_waits_for_the_file_as_long_as_is_left_of_its_turn",
            ),
        )
    ),
    Break(
        "a connection of SQLite that comes back waits as short as its last use did",
        "backends/sql/drivers/sqlite_kept.py",
        "                self.wait_for_writers(self._busy)\n",
        "",
        killed_by=(f"{LOCKED}test_a_connection_that_comes_back_waits_as_long_as_ever",),
        rows=(31,),
    ),
    Break(
        "a group of writes waits for a locked file as if it had not waited for the group before",
        "backends/sql/drivers/sqlite_async.py",
        "min(write.until for write in group) - time.monotonic()",
        "self._busy",
        killed_by=(f"{LOCKED}test_what_waits_behind_others_does_not_wait_again",),
        rows=(31,),
    ),
    Break(
        "all of a group of writes fail with the one that has waited longest",
        "backends/sql/drivers/sqlite_async.py",
        "            if late and is_busy(error):\n",
        "            if False:\n",
        killed_by=(f"{LOCKED}test_of_a_group_those_fail_that_have_waited_long_enough_and_the_rest_waits_on",),
        rows=(31,),
    ),
]
