"""Breaks of the inbox: handlers, batches, subscriptions, sequences."""

from __future__ import annotations

from tests.proving.breaks import Break

INBOX = "tests/messaging/test_inbox.py"
UNKEEPABLE = "test_what_no_database_can_keep_as_it_is_ends_as_a_dead_letter"
PARKED = "test_what_follows_a_poison_message_is_parked_after_one_attempt_and_redriven_after_it_is_skipped"
LETTERS = "tests/messaging/test_inbox_operating.py"
BATCHES = "tests/messaging/test_batches.py"
PLAN = "tests/core/test_batching.py"
SUBSCRIPTION = "tests/messaging/test_subscription.py"
IDENTITIES = "tests/messaging/test_identities.py"
LARGE = "tests/messaging/test_large_letters.py"
REDRIVE = "tests/messaging/test_redrive.py"
CUT_OFF = "test_a_letter_whose_taking_is_cut_off_is_handled_before_what_follows_it"
KILLS = "tests/messaging/test_inbox_kills.py"

BREAKS = [
    Break(
        "a duplicate whose stored answer cannot be read comes again for ever",
        "messaging/inbox/attempts.py",
        "        if isinstance(error, ResultUnreadable):",
        "        if isinstance(error, ()):",
        killed_by=(
            "tests/messaging/test_inbox.py::test_a_duplicate_is_one_also_when_its_stored_answer_cannot_be_read",
        ),
    ),
    Break(
        "an inbox does not look at the payload of a message it knows",
        "messaging/inbox/attempts.py",
        "_digest(envelope) if setting.digest else UNCHECKED)",
        "UNCHECKED)",
        killed_by=(f"{INBOX}::test_one_id_with_another_payload_is_a_dead_letter_of_its_own[sqlite]",),
        rows=(50,),
    ),
    Break(
        "the sources of messages are no part of their keys",
        "messaging/inbox/attempts.py",
        'keys.key_of(f"{len(source)}:{source}{message_id}")',
        "keys.key_of(source + message_id)",
        killed_by=(f"{INBOX}::test_messages_of_two_sources_may_have_one_id[sqlite]",),
        rows=(50,),
    ),
    Break(
        "a failing message is tried for ever",
        "protocol/redelivery_policy.py",
        "    if counts.finished >= most:\n        return None\n",
        "",
        killed_by=(
            f"{INBOX}::test_a_failing_message_is_tried_so_often_and_then_kept_with_its_last_error[sqlite]",
            f"{INBOX}::test_strict_sequences_wait_for_what_is_missing_and_are_parked_if_it_does_not_come[sqlite]",
        ),
        rows=(53,),
    ),
    Break(
        "a message that kills its consumers is tried for ever",
        "protocol/redelivery_policy.py",
        "    if counts.started - counts.finished < trials.max_crashes:\n",
        "    if counts.started >= 0:\n",
        killed_by=(
            f"{INBOX}::test_a_message_whose_every_attempt_ended_with_its_process_is_given_up_untried[sqlite]",
            f"{KILLS}::test_a_message_that_kills_its_consumers_ends_alone_in_the_dead_letters[sqlite-batch_handler]",
        ),
        rows=(53,),
    ),
    Break(
        "what is handled beside a message that kills its consumers is given up with it",
        "messaging/subscription/working.py",
        "deliveries, alone=False)",
        "deliveries, alone=True)",
        killed_by=(f"{KILLS}::test_what_is_handled_beside_a_message_that_kills_is_not_given_up_with_it[postgresql]",),
        rows=(53,),
    ),
    Break(
        "deliveries of one message that come together are taken for crashes",
        "protocol/redelivery_policy.py",
        "    return max(0.0, trials.grace - counts.age)\n",
        "    return 0.0\n",
        killed_by=(f"{INBOX}::test_duplicates_that_come_together_are_not_taken_for_crashes[sqlite]",),
        rows=(50,),
    ),
    Break(
        "a delivery that finds its message being handled counts as a crash",
        "messaging/inbox/procedures.py",
        "inbox.withdrawn(arrival) if end.became in UNCOUNTED else inbox.cleared(arrival)",
        "inbox.begun(arrival) if end.became in UNCOUNTED else inbox.cleared(arrival)",
        killed_by=(
            f"{INBOX}::test_a_message_that_another_consumer_handles_comes_again_and_counts_no_attempt[postgresql]",
            f"{INBOX}::test_what_is_interrupted_is_no_crash[sqlite]",
        ),
        rows=(50, 53),
    ),
    Break(
        "an outage spends the attempts of messages",
        "messaging/inbox/attempts.py",
        "if is_unavailable(error, self._setting.unavailable):",
        "if False:",
        killed_by=(
            f"{INBOX}::test_what_a_handler_needs_may_be_away_for_however_long[sqlite-handler-a connection that ended]",
        ),
        rows=(53,),
    ),
    Break(
        "a duplicate of a dead message overwrites why it died",
        "messaging/inbox/procedures.py",
        "        if end.before and counts.dead:\n",
        "        if end.before and not counts.dead:\n",
        killed_by=(f"{INBOX}::test_a_duplicate_of_a_dead_message_does_not_change_its_letter[sqlite]",),
        rows=(53,),
    ),
    Break(
        "the key of a dead letter stays failed when it is redriven",
        "messaging/inbox/procedures.py",
        "    if record is not None and record.state is State.FAILED:\n",
        "    if record is None:\n",
        killed_by=(f"{INBOX}::test_a_dead_letter_is_handled_again_once_and_stays_when_it_fails[sqlite]",),
        rows=(59,),
    ),
    Break(
        "a message from before the window is not told to be late",
        "messaging/inbox/attempts.py",
        "    return written is not None and time.time() - written / 1000 > window\n",
        "    return False\n",
        killed_by=(f"{INBOX}::test_what_comes_after_the_window_is_told_to_be_late[sqlite]",),
        rows=(59,),
    ),
    Break(
        "a strict sequence goes over a gap",
        "backends/sql/inbox.py",
        "fits = f\"sequence = {p('token', 'sequence')} - 1\" if strict else f\"sequence < {p('token', 'sequence')}\"",
        "fits = f\"sequence < {p('token', 'sequence')}\"",
        killed_by=(
            f"{INBOX}::test_strict_sequences_wait_for_what_is_missing_and_are_parked_if_it_does_not_come[sqlite]",
        ),
        rows=(55,),
    ),
    Break(
        "an older sequence is applied over a newer one",
        "backends/sql/inbox.py",
        "else f\"sequence < {p('token', 'sequence')}\"",
        "else f\"sequence <> {p('token', 'sequence')}\"",
        killed_by=(f"{INBOX}::test_the_latest_wins[sqlite]",),
        rows=(55,),
    ),
    Break(
        "what follows a failing message in its lane is applied before it",
        "messaging/inbox/batch_plan.py",
        "        pause = waiting.get(lanes[place])\n",
        "        pause = None\n",
        killed_by=(
            f"{PLAN}::test_all_but_the_poison_and_what_follows_it_in_its_lane_is_applied_once_in_order[True]",
            f"{BATCHES}::test_poison_ends_alone_in_the_dead_letters_and_holds_its_own_lane_only[sqlite-batch_handler]",
        ),
        rows=(53,),
    ),
    Break(
        "a batch waits for whoever handles one of its messages",
        "backends/sql/postgresql.py",
        'before, "gate, t WHERE gate.open")',
        'before, "gate, t WHERE true OR gate.open")',
        killed_by=(f"{BATCHES}::test_a_batch_waits_for_nobody_who_handles_one_of_its_messages[postgresql]",),
        rows=(50,),
    ),
    Break(
        "a batch that its handler has committed in the middle is completed",
        "backends/sql/store.py",
        'first, stamp = held[0], f" AND r.xact = {self.STAMP}" if self.STAMP else ""',
        'first, stamp = held[0], ""',
        killed_by=(f"{BATCHES}::test_a_handler_that_commits_by_itself_loses_no_message_silently[postgresql]",),
        rows=(4,),
    ),
    Break(
        "a window shorter than the broker redelivers is taken",
        "messaging/subscription/subscription.py",
        "    elif boundary.window < redelivery_window:\n",
        "    elif boundary.window < 0:\n",
        killed_by=(f"{SUBSCRIPTION}::test_a_window_shorter_than_the_broker_redelivers_is_refused[sqlite]",),
        rows=(56,),
    ),
    Break(
        "a batch is not bounded in bytes",
        "messaging/subscription/lanes.py",
        "            room -= delivery.envelope.size\n",
        "",
        (
            "tests/messaging/test_subscription.py::test_a_batch_is_bounded_in_bytes[sqlite]",
            "tests/messaging/test_lanes.py::test_ends_with_the_message_that_makes_so_many_bytes[101-ids2-2]",
        ),
    ),
    Break(
        "a lane is asked for of which nothing can be taken",
        "messaging/subscription/lanes.py",
        "while room > 0 and len(portion.deliveries) < most and (lane := next(lanes, None)) is not None:",
        "while (lane := next(lanes, None)) is not None:",
        ("tests/messaging/test_lanes.py::test_takes_up_to_a_number_and_asks_for_no_lane_in_vain",),
    ),
    Break(
        "a lane goes on while its first message waits to be tried again",
        "messaging/subscription/lanes.py",
        "            if lane in stopped:\n                continue\n            if one.again is None:\n",
        "            if True:\n",
        killed_by=(f"{SUBSCRIPTION}::test_a_failing_message_holds_its_own_lane_and_no_other[sqlite]",),
        rows=(53,),
    ),
    Break(
        "a stop does not wait for what is being handled to be acked",
        "messaging/subscription/working.py",
        "            if self._handled_all and not self._settled:\n",
        "            if self._finishing and not self._settled:\n",
        killed_by=(f"{SUBSCRIPTION}::test_stop_lets_what_is_being_handled_end_and_gives_the_rest_back[sqlite]",),
        rows=(86,),
    ),
    Break(
        "a message whose error a database refuses is tried for ever",
        "protocol/messages.py",
        '    if "\\0" in text:\n',
        "    return text\n    if text:\n",
        killed_by=(
            f"{INBOX}::{UNKEEPABLE}[sqlite-half a character in the error]",
            f"{INBOX}::{UNKEEPABLE}[postgresql-a NUL in the error]",
        ),
        rows=(53,),
    ),
    Break(
        "a message with an attribute that a database refuses is tried for ever",
        "protocol/messages.py",
        '    if text.isascii() and "\\0" not in text:\n',
        "    if text:\n",
        killed_by=(
            f"{INBOX}::{UNKEEPABLE}[sqlite-half a character in its id]",
            f"{INBOX}::{UNKEEPABLE}[postgresql-a NUL in its key]",
        ),
        rows=(53,),
    ),
    Break(
        "a run that is stopped keeps what it has not handled",
        "messaging/subscription/working.py",
        "        self.refuse(self._lanes.rest())\n",
        "",
        killed_by=(f"{SUBSCRIPTION}::test_a_run_that_ends_early_gives_back_what_it_has_not_handled[stop-sqlite]",),
    ),
    Break(
        "what a run was giving back when it was cancelled stays with its consumer",
        "messaging/subscription/working.py",
        "            await heeding(self._consumer.give_back(*self._returning[number]))\n",
        "            await heeding(self._consumer.give_back(*self._returning.pop(number)))\n            return\n",
        killed_by=(f"{SUBSCRIPTION}::test_a_lane_that_is_given_back_is_whole_although_its_run_is_cancelled[sqlite]",),
    ),
    Break(
        "a run leaves while messages are still being received",
        "messaging/subscription/working.py",
        "            _, cancelled = await run_to_completion(self._end(tasks))",
        "            _, cancelled = await run_to_completion(self._end(tasks[1:]))",
        killed_by=(f"{SUBSCRIPTION}::test_a_run_leaves_when_its_receive_has_ended[sqlite]",),
    ),
    Break(
        "a message that is not taken back keeps the others",
        "messaging/subscription/working.py",
        "            await telling\n        except BaseException as error:",
        "            await telling\n        except GeneratorExit as error:",
        killed_by=(
            f"{SUBSCRIPTION}::test_a_run_ends_whatever_the_broker_does_not_take_back[fails-1-sqlite]",
            f"{SUBSCRIPTION}::test_a_run_ends_whatever_the_broker_does_not_take_back[cancels itself-4-sqlite]",
        ),
    ),
    Break(
        "a silent ack keeps what is to be given back",
        "messaging/subscription/working.py",
        "                await asyncio.gather(*map(self._tried, (*given, *acked)))",
        "                for one in (*acked, *given):\n                    await self._tried(one)",
        killed_by=(f"{SUBSCRIPTION}::test_a_silent_ack_keeps_nothing_that_is_given_back[sqlite]",),
    ),
    Break(
        "an ack that the broker's client cancels ends its consumer",
        "messaging/subscription/working.py",
        "                    raise\n                self.failed(error)  # delivered again, and recognised",
        "                    raise\n                raise",
        killed_by=(f"{SUBSCRIPTION}::test_a_client_that_cancels_its_own_call_ends_no_consumer[ack-sqlite]",),
    ),
    Break(
        "a broker that takes nothing back holds a run's end up for ever",
        "messaging/subscription/working.py",
        "            async with asyncio.timeout(LEAVING):",
        "            async with asyncio.timeout(LEAVING * 150):",
        killed_by=(f"{SUBSCRIPTION}::test_a_run_ends_whatever_the_broker_does_not_take_back[silent-4-sqlite]",),
    ),
    Break(
        "a handler that is cancelled by itself ends its consumer",
        "entrypoint.py",
        "            if is_cancelled() or not _is_cancellation(error):\n                raise\n",
        "            raise\n",
        killed_by=(f"{INBOX}::test_a_handler_that_is_cancelled_by_itself_has_failed[sqlite-handler]",),
        rows=(53,),
    ),
    Break(
        "ids that differ only in what no database keeps are one",
        "messaging/inbox/attempts.py",
        "(kept := distinct(text)) != text}",
        "(kept := legible(text)) != text}",
        killed_by=(f"{IDENTITIES}::test_ids_that_differ_only_in_what_no_database_keeps_are_two",),
        rows=(50,),
    ),
    Break(
        "late messages of a batch are not told",
        "messaging/inbox/batches.py",
        "            self._tell_late(attempt, one.became)\n",
        "            pass\n",
        killed_by=(f"{IDENTITIES}::test_late_messages_of_a_batch_are_told[sqlite-batch_handler]",),
        rows=(59,),
    ),
    Break(
        "a header passes for an attribute",
        "messaging/brokers/amqp_binding.py",
        '    return next(((prefix,) for prefix in BINDINGS if f"{prefix}specversion" in names), BINDINGS)\n',
        "    return BINDINGS\n",
        killed_by=tuple(
            f"{IDENTITIES}::test_nor_is_it_published_or_read_from_another_binding[{case}]"
            for case in (
                "ce-subject-amqp",
                "cloudEvents:subject-rabbitmq",
                "cloudEvents_subject-amqp",
                "cloudEvents_subject-rabbitmq",
            )
        ),
    ),
    Break(
        "Redis takes a message for another one whose source and id read alike",
        "messaging/brokers/redis_streams/publisher.py",
        "{len(envelope.source)}:{envelope.source}{envelope.id}",
        "{envelope.source}:{envelope.id}",
        killed_by=(f"{IDENTITIES}::test_redis_takes_no_message_for_another_one_whose_source_and_id_read_alike",),
        rows=(50,),
    ),
    Break(
        "a failing message that its database has no room for is tried for ever",
        "messaging/inbox/message.py",
        "    return envelope.size + texts > LARGE\n",
        "    return False\n",
        killed_by=(f"{LARGE}::test_a_message_too_large_for_its_store_becomes_a_dead_letter_without_its_body[mysql]",),
        rows=(53,),
    ),
    Break(
        "several consumers handle the dead letters of a key at once",
        "messaging/inbox/dead_letters.py",
        "with leases.claim(setting.consumer, scope=setting.entry.name)",
        "with leases.claim(setting.consumer, scope=str(id(leases)))",
        killed_by=(f"{REDRIVE}::test_while_one_consumer_handles_them_another_one_leaves_them_alone[sqlite]",),
        rows=(55,),
    ),
    Break(
        "what follows a dead letter that has to come again is handled before it",
        "messaging/inbox/dead_letters.py",
        "self._waiting.add(self._lane(letter))",
        "pass",
        killed_by=(f"{REDRIVE}::test_what_follows_a_letter_that_has_to_come_again_waits_for_it[sqlite]",),
        rows=(55,),
    ),
    Break(
        "a dead letter that meets a gap is dead again although what fills it is marked",
        "messaging/inbox/procedures.py",
        "    return (yield from ask(inbox.waits(arrival)))",
        "    return (yield from ask(inbox.waits(arrival))) is None",
        killed_by=(
            f"{REDRIVE}::test_a_letter_that_meets_a_gap_stays_marked_while_what_it_waits_for_is_marked_too[sqlite]",
        ),
        rows=(55,),
    ),
    Break(
        "who has lost the lease on the dead letters goes on with them",
        "messaging/inbox/dead_letters.py",
        "                claim.ensure_held()\n                going.concluded(letter, _redriven",
        "                going.concluded(letter, _redriven",
        killed_by=(f"{REDRIVE}::test_who_has_lost_the_lease_handles_no_more_of_them[sqlite-sync]",),
        rows=(55,),
    ),
    Break(
        "who has lost the lease on the dead letters goes on with them on an event loop",
        "messaging/inbox/dead_letters.py",
        "                    claim.ensure_held()\n",
        "",
        killed_by=(f"{REDRIVE}::test_who_has_lost_the_lease_handles_no_more_of_them[sqlite-async]",),
        rows=(55,),
    ),
    Break(
        "dead letters are handled again in the order in which they died",
        "backends/sql/inbox.py",
        'return self._page(where, params, limit, [_NUMBER, "d.dead_at", "d.key_hash"])',
        'return self._page(where, params, limit, ["d.dead_at", "d.key_hash"])',
        killed_by=(
            f"{REDRIVE}::test_a_letter_that_meets_a_gap_stays_marked_while_what_it_waits_for_is_marked_too[sqlite]",
        ),
        rows=(55,),
    ),
    Break(
        "some of the dead letters that a person marks are marked when others cannot be",
        "messaging/inbox/procedures.py",
        "        marked += yield from ask(inbox.mark(*identities[start : start + AT_ONCE]))\n",
        "        marked += yield from ask(inbox.mark(*identities[start : start + AT_ONCE]))\n"
        "        yield from ask(store.commit())\n"
        "        yield from ask(store.begin())\n",
        killed_by=(f"{REDRIVE}::test_all_letters_that_a_person_chose_are_marked_or_none[sqlite]",),
        rows=(55,),
    ),
    Break(
        "dead letters are looked up by rows, however large they are",
        "backends/sql/envelopes.py",
        "fits = f\"d.upto <= {store.p('limit', 'span_bytes')} OR d.upto = d.size\"",
        "fits = f\"d.upto <= {store.p('limit', 'span_bytes')} OR d.upto > 0\"",
        killed_by=(f"{LETTERS}::test_large_dead_letters_are_looked_up_by_bytes_not_by_rows[sqlite]",),
    ),
    Break(
        "what follows a message that was given up waits for it in vain",
        "messaging/inbox/procedures.py",
        "    return counts.finished > 0\n",
        "    return counts.finished < 0\n",
        killed_by=(
            f"{INBOX}::{PARKED}[sqlite]",
            f"{INBOX}::test_a_gap_that_was_waited_for_in_vain_parks_what_follows_at_once[sqlite]",
        ),
        rows=(55,),
    ),
    Break(
        "what is no sequence is taken for an old one",
        "messaging/inbox/inbox.py",
        "        if isinstance(given, bool) or not isinstance(given, int) or abs(given) > LARGEST_SEQUENCE:\n",
        "        if False:\n",
        killed_by=tuple(
            f"{INBOX}::test_what_is_no_sequence_is_refused_and_never_taken_for_an_old_one[{case}]"
            for case in ("sqlite-None-False", "sqlite-True-False", "mysql-None-False")
        ),
        rows=(55,),
    ),
    Break(
        "a look for dead letters that fails ends its subscription",
        "messaging/subscription/subscription.py",
        "except Exception as error:  # noqa: BLE001 - tried again after any error of the database",
        "except ZeroDivisionError as error:",
        killed_by=(f"{SUBSCRIPTION}::test_a_subscription_outlives_a_look_for_dead_letters_that_fails[sqlite]",),
    ),
    Break(
        "a dead letter without its body is handled as an empty message",
        "messaging/inbox/message.py",
        "    if is_without_body(envelope):\n",
        "    if False:\n",
        killed_by=(f"{LARGE}::test_a_message_too_large_for_its_store_becomes_a_dead_letter_without_its_body[sqlite]",),
        rows=(53,),
    ),
    Break(
        "an outage of the database costs a large message its body",
        "messaging/inbox/procedures.py",
        "may end the connection, or be any error of a driver\n            yield from ask(inbox.counts(arrival))\n",
        "may end the connection, or be any error of a driver\n            pass\n",
        killed_by=(f"{LARGE}::test_an_outage_costs_a_large_message_no_body[sqlite]",),
        rows=(53,),
    ),
    Break(
        "the headers of messages take no room in a consumer",
        "messaging/brokers/lane_queue.py",
        "        self._bytes[delivery.partition] += envelope.size\n",
        "        self._bytes[delivery.partition] += len(envelope.payload)\n",
        killed_by=(f"{IDENTITIES}::test_headers_count_in_what_a_batch_and_a_consumer_may_have",),
    ),
    Break(
        "octets that are not UTF-8 are all alike",
        "messaging/cloudevents.py",
        'ESCAPED = "backslashreplace"',
        'ESCAPED = "replace"',
        killed_by=(f"{IDENTITIES}::test_octets_that_are_not_utf8_stay_different",),
        rows=(50,),
    ),
    Break(
        "a message is written with a header that will be read as an attribute",
        "messaging/validation.py",
        "        if name.lower().startswith(BINDINGS) or name.lower() in DATA:\n",
        "        if False:\n",
        killed_by=tuple(
            f"{IDENTITIES}::test_a_header_that_would_be_read_as_an_attribute_is_refused[{name}]"
            for name in ("ce-subject", "CE-Sequence", "cloudEvents:id", "cloudevents_subject", "data", "data_base64")
        ),
    ),
    Break(
        "a claim inside a handler has sequences of its own",
        "messaging/inbox/attempts.py",
        "    return _consumer.get()\n",
        "    from retrysafe.claims.context import enclosing\n\n    return getattr(enclosing(), 'operation', None)\n",
        killed_by=(f"{INBOX}::test_a_claim_inside_a_handler_keeps_no_sequences_of_its_own[sqlite]",),
        rows=(55,),
    ),
    Break(
        "a handler that ends its own transaction is tried for ever",
        "messaging/inbox/attempts.py",
        "and isinstance(error, _ENDED_WITHIN):",
        "and False:",
        killed_by=(
            f"{INBOX}::test_a_handler_that_rolls_back_by_itself_spends_an_attempt[sqlite-handler]",
            f"{INBOX}::test_a_handler_that_hides_an_error_of_its_transaction_spends_an_attempt[postgresql-handler]",
        ),
        rows=(53,),
    ),
    Break(
        "a subscription ends when a client library cancels what it waits for",
        "messaging/subscription/subscription.py",
        "if not is_failure(error) or isinstance(error, ConfigurationError):",
        "if not isinstance(error, Exception) or isinstance(error, ConfigurationError):",
        killed_by=(f"{SUBSCRIPTION}::test_a_consumer_that_is_cancelled_within_is_asked_again[sqlite]",),
        rows=(54,),
    ),
    Break(
        "a message that is handled after a failure leaves the note of it",
        "messaging/subscription/lanes.py",
        "                if one.became in _NOTED:",
        "                if False:",
        killed_by=(f"{SUBSCRIPTION}::test_a_message_that_is_handled_after_a_failure_leaves_no_note[sqlite]",),
        rows=(53,),
    ),
    Break(
        "a message whose key is no text stops its consumer",
        "protocol/ordering.py",
        'part.encode("utf-8", "surrogatepass")',
        "part.encode()",
        killed_by=("tests/core/test_shelf.py::test_a_key_that_is_no_text_has_a_lane_too",),
        rows=(53,),
    ),
    Break(
        "a sequence is carried that no database has room for",
        "messaging/cloudevents.py",
        " or abs(int(number)) > LARGEST_SEQUENCE:",
        ":",
        killed_by=(
            "tests/messaging/test_cloudevents.py::test_a_sequence_of_63_bits_is_carried[9223372036854775808-None]",
        ),
        rows=(53,),
    ),
    Break(
        "a redrive that is cut short is forgotten",
        "messaging/inbox/dead_letters.py",
        "await run_to_completion(letters.arun(ask(letters.inbox.mark(letter.arrival.identity))), at_exit=True)",
        "pass",
        killed_by=(f"{SUBSCRIPTION}::test_a_redrive_that_is_cut_short_stays_marked[sqlite]",),
        rows=(59,),
    ),
    Break(
        "a dead letter whose taking is cut off is forgotten, and overtaken",
        "messaging/inbox/dead_letters.py",
        """    try:
        taken = letters.run(ask(letters.inbox.take(letter.arrival.identity)))
""",
        """    taken = letters.run(ask(letters.inbox.take(letter.arrival.identity)))
    try:
""",
        killed_by=(f"{REDRIVE}::{CUT_OFF}[sqlite-sync-lost]",),
        rows=(55,),
    ),
    Break(
        "a dead letter whose taking is cut off on an event loop is forgotten, and overtaken",
        "messaging/inbox/dead_letters.py",
        """    try:
        taken, cancelled = await run_to_completion(letters.arun(ask(letters.inbox.take(letter.arrival.identity))))
        if cancelled is not None:
            raise cancelled
""",
        """    taking = ask(letters.inbox.take(letter.arrival.identity))
    taken, cancelled = await run_to_completion(letters.arun(taking))
    if cancelled is not None:
        raise cancelled
    try:
""",
        killed_by=(f"{REDRIVE}::{CUT_OFF}[sqlite-async-lost]", f"{REDRIVE}::{CUT_OFF}[sqlite-async-cancelled]"),
        rows=(55,),
    ),
    Break(
        "a dead letter is marked again while its cancelled taking may still be performed",
        "messaging/inbox/dead_letters.py",
        "await run_to_completion(letters.arun(ask(letters.inbox.take(letter.arrival.identity))))",
        "await letters.arun(ask(letters.inbox.take(letter.arrival.identity))), None",
        killed_by=(f"{REDRIVE}::{CUT_OFF}[sqlite-async-cancelled]",),
        rows=(55,),
    ),
    Break(
        "who is cancelled waits until a plain function has handled all dead letters that are marked",
        "messaging/inbox/handler.py",
        "lambda: is_cancelled() or is_stopped()",
        "is_stopped",
        killed_by=(f"{REDRIVE}::test_who_is_cancelled_while_a_plain_function_handles_one_begins_no_other[sqlite]",),
        rows=(86,),
    ),
    Break(
        "a set whose handler runs into a wrong setting is tried for ever",
        "messaging/inbox/batches.py",
        "        ours = isinstance(error, RetrysafeError) and not isinstance(error, OutcomeUnknown)\n",
        "        ours = isinstance(error, RetrysafeError)\n        self.working = self.at is not None\n",
        killed_by=(
            f"{BATCHES}::test_an_error_of_a_setting_that_a_message_runs_into_is_that_messages[sqlite-set_handler]",
        ),
        rows=(53,),
    ),
]
