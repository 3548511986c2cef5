"""What the outbox and its relays rely on."""

from __future__ import annotations

from tests.proving.breaks import Break

FAULTS, OPERATING = "tests/messaging/test_relay_faults.py::", "tests/messaging/test_operating.py::"
PLANS = "tests/messaging/test_relay_plans.py::"
NOTIFYING = "tests/messaging/test_notifying.py::"
POSTGRESQL = "tests/messaging/test_relay_postgresql.py::"
DESTINATIONS = "tests/messaging/test_destinations.py::"
OVERDUE = "tests/messaging/test_overdue.py"
PUBLISHERS = "tests/messaging/test_publishers.py::"
BROKERS = "tests/messaging/test_broker_faults.py::"

BREAKS: list[Break] = [
    Break(
        "a message gets another id each time it is published",
        "messaging/relay/calling.py",
        "return [queued.envelope for queued in wave]",
        "return [queued.envelope._replace(id=str(random.random())) for queued in wave]",
        (f"{FAULTS}test_published_and_not_marked_it_goes_out_again_under_the_same_id[sqlite-lease-False]",),
        rows=(7,),
    ),
    Break(
        "an attempt in a transaction leaves no trace when its process dies",
        "messaging/relay/bucket.py",
        "return number not in self._over or suspected(queue)",
        "return False",
        (f"{FAULTS}test_an_attempt_that_its_relay_outlives_is_no_suspicion[postgresql]",),
        rows=(7, 53),
    ),
    Break(
        "an attempt that its relay outlives is taken for one that killed it",
        "messaging/relay/bucket.py",
        "                run(ask(setting.outbox.lived(noted)), client)",
        "                pass",
        (f"{FAULTS}test_an_attempt_that_its_relay_outlives_is_no_suspicion[postgresql]",),
        rows=(7, 53),
    ),
    Break(
        "a message is marked as published before it is",
        "messaging/relay/bucket.py",
        "            _conclude(setting, client, claim, flow.judge(wave, setting.dispatch.publish(wave)), total)",
        "            taken = [PublishResult('acked')] * len(wave)\n"
        "            _conclude(setting, client, claim, flow.judge(wave, taken), total)\n"
        "            setting.dispatch.publish(wave)",
        (
            f"{FAULTS}test_a_message_is_marked_after_it_was_published[sqlite-lease-False]",
            f"{FAULTS}test_published_and_not_marked_it_goes_out_again_under_the_same_id[sqlite-lease-False]",
        ),
        rows=(8,),
    ),
    Break(
        "a relay reads on from the highest number it has seen",
        "backends/sql/outbox.py",
        "return Ask(self._store.query(sql, {**params, **bounds}, writes=False), _stretch)",
        "seen: Any = globals().setdefault('_seen', [0])\n\n"
        "        def after(answer: Rows) -> Stretch:\n"
        "            found = _stretch(answer)\n"
        "            found = found._replace(queue=[one for one in found.queue if one.id > seen[0]])\n"
        "            seen[0] = max([seen[0], *(one.id for one in found.queue)])\n"
        "            return found\n\n"
        "        return Ask(self._store.query(sql, {**params, **bounds}, writes=False), after)",
        (f"{FAULTS}test_a_row_that_commits_late_is_not_passed_over[postgresql]",),
        rows=(35,),
    ),
    Break(
        "what is behind the part that a relay has passed over leaves whatever is left of its lane",
        "backends/sql/outbox.py",
        "        if span.start > span.low:",
        "        if span.start < span.low:",
        (f"{PLANS}test_what_was_committed_late_is_not_overtaken_by_what_is_behind_the_part_passed_over[sqlite]",),
        rows=(35,),
    ),
    Break(
        "a lane that was passed over never has its turn",
        "protocol/outbox_walk.py",
        "        self.lanes |= dict.fromkeys(released.lanes)",
        "        pass",
        (f"{PLANS}test_a_parked_lane_that_was_passed_over_goes_on_where_it_is[sqlite]",),
    ),
    Break(
        "a batch is as large as its messages are",
        "backends/sql/outbox.py",
        "j.upto <= {p('limit', 'span_bytes')} OR j.upto = j.size",
        "j.upto >= 0 OR {p('limit', 'span_bytes')} = 0",
        (f"{PLANS}test_a_batch_is_bounded_in_bytes[sqlite]",),
    ),
    Break(
        "a backlog that cannot be counted is not relayed",
        "messaging/relay/presence.py",
        "        except StoreUnavailable as error:",
        "        except ZeroDivisionError as error:",
        (f"{PLANS}test_messages_leave_although_nobody_can_count_them[sqlite]",),
    ),
    Break(
        "relays that hold buckets in different ways work together",
        "messaging/relay/procedures.py",
        "    _require_alike(name, relays)\n",
        "",
        (f"{OPERATING}test_relays_that_hold_buckets_in_different_ways_do_not_work_together[postgresql-lease]",),
    ),
    Break(
        "the server's setting decides how long a relay's transaction may be silent",
        "backends/sql/outbox.py",
        "more, locked = self._store.SILENCE, ",
        "more, locked = '', ",
        (f"{POSTGRESQL}test_a_server_that_ends_silent_transactions_soon_ends_none_that_publishes",),
    ),
    Break(
        "a message that nobody confirmed is taken for published",
        "protocol/publish_policy.py",
        "if status in (PublishStatus.ACKED, PublishStatus.DUPLICATE):",
        "if status in (PublishStatus.ACKED, PublishStatus.DUPLICATE, PublishStatus.UNKNOWN):",
        (f"{BROKERS}test_the_connection_is_cut_at_every_frame[rabbitmq-frame lost]",),
        rows=(51,),
    ),
    Break(
        "a broker that is away costs every message its attempts",
        "protocol/publish_policy.py",
        "if status is PublishStatus.UNAVAILABLE:",
        "if status is None:",
        (f"{OPERATING}test_a_broker_that_is_away_costs_no_attempt[sqlite-None]",),
        rows=(51,),
    ),
    Break(
        "a destination that takes nothing costs its messages their attempts",
        "protocol/publish_policy.py",
        "if status is PublishStatus.STALLED:",
        "if status is None:",
        (f"{DESTINATIONS}test_a_destination_that_takes_nothing_costs_no_attempt_and_keeps_the_order[stalled]",),
        rows=(51,),
    ),
    Break(
        "a lost connection costs whatever was under way its attempts",
        "protocol/publish_policy.py",
        "counted=status is not PublishStatus.UNKNOWN",
        "counted=True",
        (f"{DESTINATIONS}test_a_destination_that_takes_nothing_costs_no_attempt_and_keeps_the_order[unknown]",),
        rows=(51,),
    ),
    Break(
        "what a call under way may still publish leaves by another relay",
        "messaging/relay/dispatch.py",
        "        return dict.fromkeys(names, PublishResult(PublishStatus.POSTPONED, _UNDER_WAY, rest))\n",
        "        return {name: self._withheld(call.to) for name in names}\n",
        killed_by=(f"{OVERDUE}::test_no_other_relay_publishes_what_a_call_under_way_may_still_publish[sqlite]",),
        rows=(55,),
    ),
    Break(
        "a lane rests although the call that held it has ended",
        "messaging/relay/relay.py",
        "        if ended := self._dispatch.ended():\n",
        "        if (ended := self._dispatch.ended()) and not ended:\n",
        killed_by=(f"{OVERDUE}::test_a_call_that_is_given_up_holds_its_lane_no_longer[sqlite]",),
        rows=(55,),
    ),
    Break(
        "what RabbitMQ has not confirmed in time may come after what is published next",
        "messaging/brokers/rabbitmq/publisher.py",
        "                del self._wires[place]\n                await self._closed(wire)",
        "                self._drop(place)",
        killed_by=(f"{PUBLISHERS}test_what_is_not_confirmed_in_time_is_read_before_anything_else_is_published",),
        rows=(55,),
    ),
    Break(
        "a relay ends when a client library cancels what it waits for",
        "messaging/relay/calling.py",
        "await self._publisher.publish(_envelopes(wave)))\n"
        "        except BaseException as error:\n            if not is_failure(error):\n",
        "await self._publisher.publish(_envelopes(wave)))\n"
        "        except BaseException as error:\n            if not isinstance(error, Exception):\n",
        killed_by=(f"{OPERATING}test_a_publisher_that_is_cancelled_within_ends_no_relay[sqlite]",),
        rows=(51,),
    ),
    Break(
        "a relay ends when the driver of its database cancels what it waits for",
        "messaging/relay/relay.py",
        "                    if not is_failure(error):\n",
        "                    if not isinstance(error, Exception):\n",
        killed_by=(f"{OPERATING}test_a_database_that_is_cancelled_within_ends_no_relay[sqlite]",),
        rows=(51,),
    ),
    Break(
        "buckets in which nothing is new are looked at again and again",
        "backends/sql/outbox.py",
        "        if passed.after:\n",
        "        if False:\n",
        killed_by=(f"{PLANS}test_buckets_in_which_nothing_is_new_are_not_looked_at[sqlite]",),
    ),
    Break(
        "a relay publishes nothing while its outbox cannot be counted",
        "messaging/relay/presence.py",
        "        except StoreUnavailable as error:\n",
        "        except ZeroDivisionError as error:\n",
        killed_by=(f"{PLANS}test_messages_leave_although_nobody_can_count_them[sqlite]",),
    ),
    Break(
        "the headers of messages take no room in a batch",
        "protocol/outbox_walk.py",
        "taken = sum(one.envelope.size for one in found)",
        "taken = sum(len(one.envelope.payload) for one in found)",
        killed_by=("tests/messaging/test_identities.py::test_headers_count_in_what_a_batch_and_a_consumer_may_have",),
    ),
    Break(
        "a backlog of a destination that takes nothing fills every batch",
        "messaging/relay/dispatch.py",
        "return tuple(sorted(topics)[:MOST_SHUT])",
        "return ()",
        (f"{DESTINATIONS}test_a_backlog_of_a_destination_that_takes_nothing_fills_no_batch",),
    ),
    Break(
        "a relay that was stalled writes down what it has read long ago",
        "messaging/relay/procedures.py",
        "        return None\n    yield from each(outbox.begun(queue))",
        "        pass\n    yield from each(outbox.begun(queue))",
        (f"{OPERATING}test_a_relay_that_was_stalled_begins_nothing[postgresql]",),
    ),
    Break(
        "a relay takes a publisher of the other colour",
        "messaging/relay/relay.py",
        "if not iscoroutinefunction(self._publisher.publish):",
        "if False:",
        (f"{OPERATING}test_a_publisher_of_the_other_colour_is_refused[sqlite]",),
    ),
    Break(
        "a message that nobody takes is tried for ever",
        "protocol/publish_policy.py",
        "queued.finished + 1 >= rules.max_attempts",
        "queued.finished + 1 >= 1 << 60",
        (f"{OPERATING}test_a_poisoned_head_is_given_up_and_burns_no_others_attempts[sqlite-None]",),
        rows=(53,),
    ),
    Break(
        "SIGTERM ends a relay in the middle of its batch",
        "stop_signal.py",
        "signal.signal(number, _tell)",
        "signal.signal(number, signal.SIG_DFL)",
        (f"{FAULTS}test_a_relay_that_is_told_to_stop_finishes_its_batch[sqlite-15]",),
        rows=(86,),
    ),
    Break(
        "of loops that overlap, SIGTERM stops the first one",
        "stop_signal.py",
        "    for one in hearing:",
        "    for one in hearing[:1]:",
        ("tests/core/test_stop_signal.py::test_loops_that_overlap_are_all_stopped[one]",),
        rows=(86,),
    ),
    Break(
        "a child hears the signals of its parent's loops",
        "stop_signal.py",
        "return self.process == os.getpid() and not",
        "return not",
        ("tests/core/test_stop_signal.py::test_a_child_is_ended_by_a_signal_that_its_parent_heeds",),
        rows=(86, 87),
    ),
    Break(
        "a signal that is given back to us too late is heard by nobody",
        "stop_signal.py",
        "    if not hearing:  # a child",
        "    if False:  # a child",
        (
            "tests/core/test_stop_signal.py::test_a_handler_of_ours_that_is_given_back_to_us_too_late_does_what_was_before",
        ),
        rows=(86,),
    ),
    Break(
        "a stop after a run ends the next one",
        "stop_signal.py",
        "self._is_early = not (self._running or self._ended_well)",
        "self._is_early = not self._running",
        (
            "tests/core/test_stop_signal.py::test_a_stop_is_for_the_runs_that_there_are",
            f"{OPERATING}test_a_stop_between_two_runs_is_for_neither[sqlite]",
        ),
        rows=(86,),
    ),
    Break(
        "a run whose event loop was closed over it is under way for ever",
        "stop_signal.py",
        "            if one.is_closed_over:",
        "            if False:",
        ("tests/core/test_stop_signal.py::test_a_run_whose_event_loop_was_closed_is_over",),
    ),
    Break(
        "a stop while a run that has failed waits for its next try is lost",
        "stop_signal.py",
        "            self._ended_well = well",
        "            self._ended_well = True",
        ("tests/core/test_stop_signal.py::test_a_stop_after_a_run_that_failed_is_for_the_next_try",),
        rows=(86,),
    ),
    Break(
        "a stop that comes before its run is lost",
        "stop_signal.py",
        "            self._is_early = False\n            stop.ring()\n",
        "            self._is_early = False\n",
        ("tests/core/test_stop_signal.py::test_a_stop_before_the_first_run_is_for_that_one",),
        rows=(86,),
    ),
    Break(
        "a relay or a subscription runs twice at a time",
        "stop_signal.py",
        "        if self._alone and self._running[0] is not stop:",
        "        if False:",
        ("tests/core/test_stop_signal.py::test_who_runs_alone_refuses_a_second_run_but_not_its_parents",),
    ),
    Break(
        "one run of a relay is not stopped while a destination is silent",
        "messaging/relay/dispatch.py",
        "asyncio.ensure_future(stop.await_for(self._timeout))",
        "asyncio.ensure_future(asyncio.sleep(self._timeout))",
        (f"{OPERATING}test_one_run_of_a_relay_is_stopped_while_its_destination_is_silent[sqlite]",),
        rows=(86,),
    ),
    Break(
        "a server that is silent when it is asked for a pooler keeps a relay from stopping",
        "messaging/relay/listener.py",
        "            await answered(partial(refuse_pooler, url), stop)",
        "            await asyncio.to_thread(refuse_pooler, url)",
        (f"{NOTIFYING}test_a_relay_stops_while_the_server_that_it_would_listen_to_is_silent",),
        rows=(86,),
    ),
    Break(
        "a server that is silent when it is asked for a pooler is waited for without end",
        "messaging/relay/listener.py",
        "        with timely(connection, ANSWER):\n            found",
        "        if True:\n            found",
        (f"{NOTIFYING}test_a_server_that_is_asked_for_a_pooler_and_is_silent_is_waited_for_no_longer",),
    ),
    Break(
        "a relay that runs again does not look who has come since",
        "messaging/relay/relay.py",
        "        self._presence.reset()\n        try:\n            with woken(self._backend, self._stop_signal), ",
        "        try:\n            with woken(self._backend, self._stop_signal), ",
        (f"{FAULTS}test_a_relay_that_runs_again_looks_who_is_there[postgresql]",),
    ),
    Break(
        "a publisher that says too little is believed",
        "protocol/publish_policy.py",
        "    if len(published) == len(wave):",
        "    if True:",
        (f"{OPERATING}test_a_publisher_that_says_too_little_has_said_nothing[sqlite-None]",),
    ),
    Break(
        "buckets that were removed with all rows stay away",
        "messaging/relay/procedures.py",
        "    if len(there) < BUCKETS:",
        "    if len(there) < 0:",
        (f"{OPERATING}test_a_relay_makes_the_buckets_that_somebody_has_removed[sqlite]",),
    ),
    Break(
        "who redrives dead letters locks none",
        "backends/sql/outbox_operating.py",
        'sql = f"SELECT id FROM {TABLE}_dead WHERE {where}{locked}"',
        'sql = f"SELECT id FROM {TABLE}_dead WHERE {where}"',
        (f"{OPERATING}test_who_redrives_waits_for_another_who_is_at_it[postgresql]",),
    ),
    Break(
        "the low-water mark passes over those who may still write below it",
        "messaging/relay/low_water.py",
        "if self._begun and look.ended >= self._begun:",
        "if self._begun:",
        (f"{FAULTS}test_a_row_that_commits_late_is_not_overtaken_by_the_next_one_of_its_key[postgresql-None]",),
        rows=(35,),
    ),
    Break(
        "the low-water mark passes over a number whose transaction had none yet",
        "messaging/relay/low_water.py",
        "        elif not self._begun:\n            self._begun = look.begun",
        "        if not self._begun:\n            self._begun = look.begun",
        (f"{POSTGRESQL}test_a_number_that_was_drawn_before_its_transaction_had_one_is_not_passed_over[None]",),
        rows=(35,),
    ),
    Break(
        "the low-water mark stays where it was when numbers begin anew",
        "messaging/relay/low_water.py",
        "self.reset()  # numbers",
        "self.mark = look.oldest  # numbers",
        (f"{POSTGRESQL}test_the_mark_goes_back_when_numbers_begin_anew",),
    ),
    Break(
        "a relay reads a bucket with a snapshot from before it held it",
        "messaging/relay/procedures.py",
        "yield from each(outbox.prepared(silence))",
        "pass",
        (f"{POSTGRESQL}test_a_bucket_that_comes_free_is_read_as_it_is_then[repeatable read]",),
    ),
    Break(
        "a message that the script of Redis could not add is remembered as added",
        "messaging/brokers/redis_streams/publisher.py",
        "local came, answer = pcall(add, at)",
        "local came, answer = true, add(at)",
        ("tests/messaging/test_publishers.py::test_what_the_script_cannot_add_is_not_remembered_as_added",),
    ),
    Break(
        "the low-water mark is above what waits",
        "messaging/relay/low_water.py",
        "oldest = above if look.oldest is None else look.oldest\n"
        "        if self._begun and look.ended >= self._begun:\n"
        "            self.mark, self._oldest, self._begun = self._oldest, 0, 0\n"
        "        if not self._oldest:\n"
        "            self._oldest = oldest\n"
        "        elif not self._begun:\n"
        "            self._begun = look.begun\n"
        "        if look.oldest is not None and look.oldest < self.mark:",
        "oldest = above\n"
        "        if self._begun and look.ended >= self._begun:\n"
        "            self.mark, self._oldest, self._begun = self._oldest, 0, 0\n"
        "        if not self._oldest:\n"
        "            self._oldest = oldest\n"
        "        elif not self._begun:\n"
        "            self._begun = look.begun\n"
        "        if False:",
        (f"{FAULTS}test_what_waits_is_never_below_the_mark[postgresql-None]",),
        rows=(35,),
    ),
    Break(
        "a relay that listens hears nothing",
        "messaging/relay/listener.py",
        "while connection.pgconn.notifies() is not None:\n                    self._stop.nudge()",
        "while connection.pgconn.notifies() is not None:\n                    pass",
        (f"{NOTIFYING}test_a_relay_in_a_thread_hears_of_another_process",),
    ),
    Break(
        "a relay that listens again does not look at what it missed",
        "messaging/relay/listener.py",
        'connection.execute(f"LISTEN {CHANNEL}")\n        self._stop.nudge()',
        'connection.execute(f"LISTEN {CHANNEL}")',
        (f"{NOTIFYING}test_a_listener_that_is_cut_off_comes_back_and_looks",),
    ),
    Break(
        "writing wakes no relay",
        "messaging/notifications.py",
        "        bell.nudge()",
        "        bell",
        (f"{OPERATING}test_who_writes_wakes_the_relay_in_a_thread[sqlite]",),
    ),
]
