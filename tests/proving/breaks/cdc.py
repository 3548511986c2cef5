"""Breaks of relays that read PostgreSQL's log: no message is passed by, and the log is not kept."""

from __future__ import annotations

from tests.proving.breaks import Break

FOLDER = "messaging/cdc/"
OWN = "tests/messaging/test_cdc.py::"

BREAKS = [
    Break(
        "payloads are read as the database happens to write them",
        f"{FOLDER}stream.py",
        "        for setting in _SETTINGS:\n",
        "        for setting in ():\n",
        killed_by=(f"{OWN}test_the_log_is_read_as_it_was_written_whatever_the_database_is_set_to",),
    ),
    Break(
        "all that the network has is taken for each message that is read",
        f"{FOLDER}stream.py",
        'libpq keeps whatever it takes."""\n',
        'libpq keeps whatever it takes."""\n        self._guarded(self._connection.consume_input)\n',
        killed_by=(f"{OWN}test_no_more_of_a_large_transaction_is_taken_than_is_read",),
    ),
    Break(
        "no message leaves while a slot is being made",
        "messaging/relay/answers.py",
        "        while not (await asyncio.wait({calling}, timeout=0 if found else EVERY))[0]:\n",
        "        while not (await asyncio.wait({calling}))[0]:\n",
        killed_by=(f"{OWN}test_messages_leave_while_a_slot_cannot_be_made",),
    ),
    Break(
        "what the log has and nobody sees keeps everything waiting",
        f"{FOLDER}following.py",
        "        if time.monotonic() >= next_round:\n            await work_round()\n            next_round",
        "        if time.monotonic() >= next_round:\n            next_round",
        killed_by=(f"{OWN}test_what_others_see_leaves_while_the_log_has_what_nobody_sees",),
    ),
    Break(
        "the slot of another database is dropped",
        f"{FOLDER}slot.py",
        'FROM pg_replication_slots WHERE {_OURS}"',
        'FROM pg_replication_slots WHERE slot_name = %s"',
        killed_by=(f"{OWN}test_a_slot_of_another_database_is_left_alone",),
    ),
    Break(
        "the server forgets its log before the broker has what is in it",
        f"{FOLDER}following.py",
        "        batch = stream.read(most)\n",
        "        batch = stream.read(most)\n        stream.confirm(batch.end)\n",
        killed_by=(f"{OWN}test_the_server_may_forget_the_log_when_messages_have_left_and_not_before",),
    ),
    Break(
        "what is in the log before it can be seen is passed by",
        f"{FOLDER}batches.py",
        "    if any(one.queued.id not in look.waiting and not look.shows(one.xid) for one in batch):\n",
        "    if False:\n",
        killed_by=(f"{OWN}test_what_is_in_the_log_before_it_can_be_seen_is_waited_for",),
    ),
    Break(
        "a relay that reads the log does not wait for one that polls",
        f"{FOLDER}batches.py",
        "    yield from ask(log.hold(sorted({bucket(one.queued.lane) for one in batch}), silence))\n",
        "",
        killed_by=(f"{OWN}test_what_a_relay_that_polls_has_under_way_is_waited_for",),
    ),
    Break(
        "a message from the log overtakes one of its lane that is in the table",
        "backends/sql/outbox_log.py",
        '            f"EXISTS (SELECT 1 FROM {TABLE} AS o WHERE {older})",\n',
        "",
        killed_by=(f"{OWN}test_what_follows_a_message_that_the_log_does_not_tell_of_stays",),
    ),
    Break(
        "a lane from the log goes on behind a message that waits",
        f"{FOLDER}batches.py",
        "            stopped.add(queued.lane)\n",
        "",
        killed_by=(f"{OWN}test_a_lane_stops_at_what_waits_and_what_has_left_is_passed_by",),
    ),
    Break(
        "the log is kept for a database in which nothing happens",
        f"{FOLDER}stream.py",
        "            return change.end if self._xid is None else 0\n",
        "            return 0\n",
        killed_by=(f"{OWN}test_the_log_of_an_idle_database_is_not_kept",),
    ),
    Break(
        "a slot whose log the server has removed stays as it is",
        f"{FOLDER}slot.py",
        'if state and state[0] != "lost":',
        "if state:",
        killed_by=(f"{OWN}test_a_slot_whose_log_the_server_has_removed_is_made_anew",),
    ),
    Break(
        "a slot that looks for a publication which is gone is read for ever",
        f"{FOLDER}following.py",
        "            if isinstance(error, LogGone):\n",
        "            if False:\n",
        killed_by=(f"{OWN}test_a_publication_that_was_dropped_is_made_anew",),
    ),
    Break(
        "a slot for which the log may fill the disk is no problem",
        f"{FOLDER}slot.py",
        "        if self.limit_bytes is None:\n",
        "        if False:\n",
        killed_by=(f"{OWN}test_a_slot_is_made_and_dropped_once",),
    ),
]
