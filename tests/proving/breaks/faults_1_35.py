"""Rows 1 to 35 of the fault catalogue: processes, the network, SQL."""

from __future__ import annotations

from tests.proving.breaks import Break

CRASHES, MESSAGES = "tests/faults/test_crashes.py::", "tests/faults/test_messages.py::"
CANCELLATION = "tests/faults/test_cancellation.py::"
SQL, POINTS = "tests/faults/test_sql_faults.py::", "tests/faults/test_crash_points.py::"
DEFERRED = "tests/faults/test_deferred.py::"
BEATS, MYSQL = "tests/faults/test_heartbeat.py::", "tests/faults/test_mysql.py::"
REPLICAS, PGBOUNCER = "tests/faults/test_replicas.py::", "tests/faults/test_pgbouncer.py::"
GROUPS = "tests/faults/test_group_commit.py::"
ASGI, WSGI = "tests/http/test_asgi.py::", "tests/http/test_wsgi.py::"

_SERIALIZATION = (
    f"{SQL}TestSerialization::test_once_runs_the_whole_own_transaction_again",
    f"{SQL}TestSerialization::test_once_runs_the_whole_own_transaction_again_async[psycopg]",
    f"{SQL}TestSerialization::test_once_runs_the_whole_own_transaction_again_async[asyncpg]",
)
_LOST_REQUESTS = (
    f"{MESSAGES}test_a_request_that_is_lost_is_put_again[claim]",
    f"{MESSAGES}test_a_request_that_is_lost_is_put_again[completion]",
)

BREAKS: list[Break] = [
    # ---------------------------------------------------------------- processes
    Break(
        "a key is claimed before its attempt has begun",
        "claims/claim.py",
        "        if settings.observers.present:\n",
        "        self._mode_inside(request.key).claim(request)\n        if settings.observers.present:\n",
        (
            f"{CRASHES}test_dead_before_its_claim_it_is_in_nobodys_way[sqlite-keyed]",
            f"{CRASHES}test_dead_before_its_claim_it_is_in_nobodys_way[postgresql-keyed]",
        ),
        rows=(1,),
    ),
    Break(
        "an attempt does not know its own record",
        "protocol/procedures.py",
        "    if met.attempt == request.attempt and met.state is State.RUNNING:",
        "    if False:",
        (f"{MESSAGES}test_a_claim_whose_reply_is_lost_is_recognised",),
        rows=(2,),
    ),
    Break(
        "a lapsed lease is never taken over",
        "protocol/decisions.py",
        '_LAPSED = {"keyed": Decision.TAKE,',
        '_LAPSED = {"keyed": Decision.BUSY,',
        (
            f"{CRASHES}test_dead_before_its_effect_it_is_taken_over_under_a_higher_token[sqlite]",
            f"{CRASHES}test_dead_before_its_effect_it_is_taken_over_under_a_higher_token[postgresql]",
        ),
        rows=(3,),
    ),
    Break(
        "a takeover keeps the token",
        "backends/sql/statements.py",
        "token = {self.GREATEST}(r.token + 1, t.now), ",
        "token = r.token, ",
        (
            f"{CRASHES}test_dead_before_its_effect_it_is_taken_over_under_a_higher_token[sqlite]",
            f"{CRASHES}test_dead_before_its_effect_it_is_taken_over_under_a_higher_token[postgresql]",
        ),
        rows=(3,),
    ),
    Break(
        "the claim is committed before the effect",
        "protocol/procedures.py",
        "        yield from ask(store.savepoint())\n    else:",
        "        yield from ask(store.commit())\n        yield from ask(store.begin())\n"
        "        yield from ask(store.savepoint())\n    else:",
        (
            f"{CRASHES}test_dead_in_its_transaction_it_leaves_neither_effect_nor_record[sqlite]",
            f"{CRASHES}test_dead_in_its_transaction_it_leaves_neither_effect_nor_record[postgresql]",
            "tests/faults/test_process.py::test_a_crash_in_a_transaction_leaves_nothing[mysql]",
        ),
        rows=(4,),
    ),
    Break(
        "an external attempt that died is taken over",
        "protocol/decisions.py",
        '"external": Decision.SUSPECT,',
        '"external": Decision.TAKE,',
        (
            f"{CRASHES}test_dead_with_an_external_effect_in_doubt_it_is_run_by_nobody[sqlite-charged]",
            f"{CRASHES}test_dead_with_an_external_effect_in_doubt_it_is_run_by_nobody[postgresql-started]",
            f"{CRASHES}test_a_probe_settles_what_is_in_doubt[sqlite-charged]",
        ),
        rows=(3, 5),
    ),
    Break(
        "derived keys depend on the attempt",
        "claims/claim.py",
        "return keys.derive(self._settings.secret, self._required_request().key, name)",
        "return keys.derive(self._settings.secret, self._required_request().attempt.encode(), name)",
        (
            f"{CRASHES}test_dead_after_its_effect_the_derived_key_is_the_same[sqlite]",
            f"{CRASHES}test_dead_after_its_effect_the_derived_key_is_the_same[postgresql]",
        ),
        rows=(5,),
    ),
    Break(
        "a completed key is busy for ever",
        "protocol/decisions.py",
        "EffectiveState.COMPLETED: Decision.REPLAY,",
        "EffectiveState.COMPLETED: Decision.BUSY,",
        (
            f"{CRASHES}test_dead_before_it_could_answer_its_answer_is_replayed[sqlite-keyed]",
            f"{CRASHES}test_dead_before_it_could_answer_its_answer_is_replayed[postgresql-transactional]",
        ),
        rows=(6,),
    ),
    Break(
        "a replayed response is made of its text, not of its bytes",
        "http/messages.py",
        "return Response(int(status), headers, stored[end:])",
        'return Response(int(status), headers, stored[end:].decode("utf-8", "replace").encode())',
        (f"{ASGI}test_r17_a_client_that_left_before_it_saw_any_of_it_gets_the_same_bytes[sqlite]",),
        rows=(6,),
    ),
    Break(
        "a renewal keeps a lease for the whole window",
        "backends/sql/statements.py",
        "SET lease_until = t.now + lease, updated",
        "SET lease_until = t.now + kept, updated",
        (f"{CRASHES}test_dead_while_its_lease_was_renewed_it_is_taken_over_a_lease_later",),
        rows=(12,),
    ),
    # ---------------------------------------------------------------- the network
    Break(
        "a request without an answer is not put again",
        "protocol/requests.py",
        "if not again or error.unsent:",
        "if True:",
        (*_LOST_REQUESTS, f"{MESSAGES}test_a_claim_whose_reply_is_lost_is_recognised"),
        rows=(13, 14),
    ),
    Break(
        "a completion that is there already is not read back",
        "protocol/procedures.py",
        "        and (record.attempt, record.token) == (held.attempt, held.token)",
        "        and False",
        (f"{MESSAGES}test_a_completion_whose_reply_is_lost_is_read_back",),
        rows=(14,),
    ),
    Break(
        "a late completion is not fenced, in SQL",
        "backends/sql/statements.py",
        """f"r.key_hash = {self.p('key')} AND r.attempt = {self.p('attempt')} "
            f"AND r.token = {self.p('token')} AND {allowed(event)}{stamp}",""",
        """f"r.key_hash = {self.p('key')} AND (1 = 1 OR r.attempt = {self.p('attempt')} "
            f"OR r.token = {self.p('token')}) AND {allowed(event)}{stamp}",""",
        (
            f"{MESSAGES}test_a_completion_that_is_delayed_beyond_its_lease_changes_nothing[result]",
            f"{MESSAGES}test_a_completion_that_is_delayed_beyond_its_lease_changes_nothing[error]",
            f"{BEATS}test_sync_work_that_never_asks_is_fenced_all_the_same[sqlite]",
            f"{BEATS}test_sync_work_that_never_asks_is_fenced_all_the_same[postgresql]",
            f"{BEATS}test_sync_work_that_never_asks_is_fenced_all_the_same[mysql]",
        ),
        rows=(15, 17),
    ),
    Break(
        "a claim does not mind that the key is taken",
        "backends/sql/statements.py",
        'f"ON CONFLICT (key_hash) DO NOTHING RETURNING {columns()}, updated"',
        'f"ON CONFLICT (key_hash) DO UPDATE SET attempt = excluded.attempt, state = excluded.state "\n'
        """            f"RETURNING {columns(TABLE + '.')}, {TABLE}.updated\"""",
        (f"{SQL}test_losing_the_race_for_the_unique_key_reads_the_winner",),
        rows=(16, 25),
    ),
    Break(
        "sync code waits for a silent server for ever",
        "backends/sql/drivers/deadline.py",
        "give_up_at = time.monotonic() + seconds",
        'give_up_at = float("inf")',
        (
            f"{MESSAGES}test_a_server_that_falls_silent_does_not_hang_a_claim[claim-keyed]",
            f"{MESSAGES}test_a_server_that_falls_silent_does_not_hang_a_claim[completion-transactional]",
        ),
        rows=(18,),
    ),
    Break(
        "a command on a wire that was cut before waits for ever",
        "backends/redis/async_client.py",
        "if not self.is_open:  # hung up on since it was laid: nobody would ever answer",
        "if False:",
        ("tests/faults/test_redis.py::test_a_wire_that_was_cut_before_its_first_command_answers",),
        rows=(13, 18),
    ),
    Break(
        "async code waits for a silent server for ever",
        "backends/sql/drivers/psycopg.py",
        "self._timer = asyncio.get_running_loop().call_later(DEADLINE, self._hang_up)",
        "self._timer = asyncio.get_running_loop().call_later(3600, self._hang_up)",
        (
            f"{MESSAGES}test_a_server_that_falls_silent_does_not_hang_a_task[claim-keyed-psycopg]",
            f"{MESSAGES}test_a_server_that_falls_silent_does_not_hang_a_task[completion-transactional-psycopg]",
        ),
        rows=(18,),
    ),
    Break(
        "asyncpg waits for a silent server to confirm a cancellation",
        "backends/sql/drivers/asyncpg.py",
        "    if isinstance(error, TimeoutError):\n        connection.terminate()",
        "    return",
        (f"{CANCELLATION}test_a_connection_of_asyncpg_that_did_not_answer_in_time_is_not_lent_again",),
        rows=(18,),
    ),
    Break(
        "a body that breaks off counts as whole, in ASGI",
        "http/asgi.py",
        'if message["type"] == _DISCONNECT:\n            return False',
        'if message["type"] == _DISCONNECT:\n            return True',
        (
            f"{ASGI}test_r17_a_client_that_left_before_the_end_of_its_body[sqlite]",
            f"{ASGI}test_r17_a_client_that_left_before_the_end_of_its_body[postgresql-transactional]",
        ),
        rows=(19,),
    ),
    Break(
        "a body that breaks off counts as whole, in WSGI",
        "http/wsgi.py",
        "        if not chunk and self._left:\n",
        "        if False:\n",
        (f"{WSGI}test_f19_a_body_that_breaks_off_claims_nothing[4]",),
        rows=(19,),
    ),
    Break(
        "async work goes on without its lease",
        "claims/lease.py",
        '            self._task.cancel("retrysafe: the lease was lost")',
        "            pass",
        (
            f"{BEATS}test_async_work_is_stopped_when_its_lease_is_lost[sqlite]",
            f"{BEATS}test_async_work_is_stopped_before_expiry_when_the_server_falls_silent[psycopg]",
        ),
        rows=(20,),
    ),
    Break(
        "async work is not stopped before its lease has ended",
        "claims/lease.py",
        "if lease.until - clock() <= lease.seconds / 3:",
        "if lease.until - clock() <= 0:",
        (f"{BEATS}test_async_work_is_stopped_before_expiry_when_the_server_falls_silent[psycopg]",),
        rows=(20,),
    ),
    Break(
        "a lease is believed in until somebody takes it away",
        "claims/lease.py",
        "return not self.lost and clock() < self.until",
        "return not self.lost",
        (f"{BEATS}test_a_lease_that_could_not_be_renewed_is_not_held_when_its_time_is_over",),
        rows=(20,),
    ),
    # ---------------------------------------------------------------- SQL
    Break(
        "nobody is told that a failover may lose commits",
        "backends/sql/postgresql.py",
        'standbys or "none: a failover may lose the last commits"',
        "standbys",
        (f"{REPLICAS}test_an_operator_is_told_whether_a_failover_may_lose_commits",),
        rows=(21,),
    ),
    Break(
        "a wait for a replica that was ended counts as over",
        "backends/sql/drivers/base.py",
        'if source != "SyncRepWaitForLSN":',
        "if True:",
        (
            f"{REPLICAS}test_a_commit_whose_wait_for_a_replica_was_ended_is_told[psycopg-keyed-claim]",
            f"{REPLICAS}test_a_commit_whose_wait_for_a_replica_was_ended_is_told[psycopg-transactional-completion]",
            f"{REPLICAS}test_a_commit_whose_wait_for_a_replica_was_ended_is_told[psycopg async-keyed-completion]",
            f"{REPLICAS}test_a_commit_whose_wait_for_a_replica_was_ended_is_told[asyncpg-transactional-completion]",
        ),
        rows=(22,),
    ),
    Break(
        "a serialization failure is an error like any other",
        "backends/sql/drivers/base.py",
        'RESTART = frozenset({RESTART_ALL, "40P01"})',
        'RESTART = frozenset({"40P01"})',
        (
            *_SERIALIZATION,
            f"{SQL}TestSerialization::test_a_block_is_told_to_run_again",
            f"{SQL}TestSerialization::test_the_callers_transaction_is_told_to_run_again_when_our_statement_meets_it",
            f"{ASGI}test_the_application_is_run_again_when_the_database_wants_it[postgresql-transactional]",
        ),
        rows=(23,),
    ),
    Break(
        "a serialization failure of a statement of our own is not met by a pause and another try",
        "backends/sql/drivers/base.py",
        "transient=alone and state in RESTART",
        "transient=False",
        (
            f"{DEFERRED}test_statements_of_our_own_are_put_again_while_the_database_asks_for_it[psycopg]",
            f"{DEFERRED}test_statements_of_our_own_are_put_again_while_the_database_asks_for_it[asyncpg]",
            f"{DEFERRED}test_and_by_sync_code_on_every_kind_of_connection[True]",
        ),
        rows=(23,),
    ),
    Break(
        "an outcome that the store did not take at once is given up",
        "claims/held.py",
        "            self.heartbeat.carry(self._deferred(signals, outcome, error))\n",
        "            pass\n",
        (
            f"{DEFERRED}test_in_a_thread_it_is_recorded_too[sqlite]",
            f"{DEFERRED}test_a_result_is_recorded_when_the_trouble_is_over[sqlite]",
        ),
        rows=(18,),
    ),
    Break(
        "once() does not run a transaction again",
        "claims/claim.py",
        "MOST_RESTARTS = 5",
        "MOST_RESTARTS = 0",
        _SERIALIZATION,
        rows=(23,),
    ),
    Break(
        "a deadlock is an error like any other",
        "backends/sql/drivers/base.py",
        'RESTART = frozenset({RESTART_ALL, "40P01"})',
        "RESTART = frozenset({RESTART_ALL})",
        (f"{SQL}test_a_deadlock_is_run_again",),
        rows=(24,),
    ),
    Break(
        "a transaction is run again without a bound",
        "claims/claim.py",
        "MOST_RESTARTS = 5",
        "MOST_RESTARTS = 12",
        (f"{ASGI}test_restarts_are_bounded[postgresql-transactional]",),
        rows=(24,),
    ),
    Break(
        "who loses the race for a key does not read the winner",
        "backends/sql/postgresql.py",
        "return Query(self._claim_sql, params, read, merged=self._claims_sql)",
        "return Query(self._claim_sql, params, merged=self._claims_sql)",
        (f"{SQL}test_losing_the_race_for_the_unique_key_reads_the_winner",),
        rows=(25,),
    ),
    Break(
        "work that raised in its own transaction is committed",
        "protocol/outcomes.py",
        "Ending.TRANSIENT: (_ROLLED_BACK,",
        "Ending.TRANSIENT: (_COMPLETE,",
        (f"{SQL}test_work_that_timed_out_is_rolled_back_although_its_transaction_is_not_aborted",),
        rows=(26,),
    ),
    Break(
        "a lock timeout is an error of the handler",
        "backends/sql/drivers/base.py",
        '_STORE_CLASSES = frozenset({"08", "25", "53", "54", "55",',
        '_STORE_CLASSES = frozenset({"08", "25", "53", "54",',
        (f"{SQL}test_a_lock_timeout_is_a_503_that_says_when_to_come_back[transactional]",),
        rows=(27,),
    ),
    Break(
        "an unavailable store does not say when to come back",
        "http/problems.py",
        '"If the request was carried out, a retry with the same key gets its response; if not, it runs then.",\n'
        "        safe_new_key=False,\n        retry_after=1,",
        '"If the request was carried out, a retry with the same key gets its response; if not, it runs then.",\n'
        "        safe_new_key=False,",
        (
            f"{SQL}test_a_lock_timeout_is_a_503_that_says_when_to_come_back[keyed]",
            f"{SQL}test_a_lock_timeout_is_a_503_that_says_when_to_come_back[transactional]",
        ),
        rows=(27,),
    ),
    Break(
        "a claim in the caller's transaction sets its lock timeout",
        "backends/sql/postgresql.py",
        'f"gate AS MATERIALIZED (SELECT {lock} AS open WHERE',
        "f\"gate AS MATERIALIZED (SELECT {lock} AND set_config('lock_timeout', '1s', true) = '1s' AS open WHERE",
        (f"{SQL}test_no_timeout_is_set_in_the_callers_transaction[absent]",),
        rows=(27,),
    ),
    Break(
        "a commit without an answer is not read back",
        "claims/modes.py",
        "    if record is not None and mine and settlement.event",
        "    if False and record is not None and mine and settlement.event",
        (
            f"{POINTS}test_a_commit_whose_reply_is_lost_is_read_back[]",
            f"{POINTS}test_a_commit_whose_reply_is_lost_is_read_back[psycopg]",
            f"{POINTS}test_a_commit_whose_reply_is_lost_is_read_back[asyncpg]",
        ),
        rows=(28,),
    ),
    Break(
        "anybody's record is taken for the own one, whose commit was lost",
        "claims/modes.py",
        "mine = record is not None and (record.attempt, record.token) == (held.attempt, held.token)",
        "mine = record is not None",
        (f"{POINTS}test_a_record_of_another_attempt_is_not_taken_for_the_own_one",),
        rows=(28,),
    ),
    Break(
        "a replica of PostgreSQL is not recognised",
        "backends/sql/postgresql.py",
        'if standby == "true":',
        "if False:",
        (f"{REPLICAS}test_claims_and_replays_on_a_replica_are_refused",),
        rows=(29,),
    ),
    Break(
        "a replica of MariaDB is not recognised",
        "backends/sql/mysql.py",
        "if int(read_only):",
        "if False:",
        (f"{MYSQL}test_a_replica_is_refused",),
        rows=(29,),
    ),
    Break(
        "the gate of a key is the session's",
        "backends/sql/postgresql.py",
        '"pg_try_advisory_xact_lock(',
        '"pg_try_advisory_lock(',
        (
            f"{PGBOUNCER}test_a_rolled_back_claim_leaves_nothing_in_the_session",
            f"{SQL}test_no_statement_touches_the_session[transactional]",
        ),
        rows=(30,),
    ),
    Break(
        "a pooler is taken for PostgreSQL itself",
        "backends/sql/drivers/base.py",
        "    return bool(direct)",
        "    return True",
        (f"{PGBOUNCER}test_nobody_is_listened_to_through_it",),
        rows=(30,),
    ),
    Break(
        "asyncpg may prepare by name behind a pooler",
        "backends/sql/drivers/base.py",
        "if not direct and str(name).startswith(_COUNTED_NAMES):",
        "if False:",
        (f"{PGBOUNCER}TestNamesOfAsyncpg::test_of_a_pool[keyed]",),
        rows=(30,),
    ),
    Break(
        "a writer does not wait for another",
        "backends/sql/drivers/sqlite.py",
        "timeout=self.busy,\n",
        "timeout=0,\n",
        (
            f"{SQL}TestBusySqlite::test_within_the_bound[keyed]",
            f"{SQL}TestBusySqlite::test_within_the_bound[transactional]",
        ),
        rows=(31,),
    ),
    Break(
        "a writer waits for another as long as it takes",
        "backends/sql/drivers/sqlite.py",
        "timeout=self.busy,\n",
        "timeout=20,\n",
        (
            f"{SQL}TestBusySqlite::test_beyond_the_bound[keyed]",
            f"{SQL}TestBusySqlite::test_beyond_the_bound[transactional]",
        ),
        rows=(31,),
    ),
    Break(
        "each write of async code is committed by itself",
        "backends/sql/drivers/sqlite_async.py",
        "MOST_AT_ONCE = 64\n",
        "MOST_AT_ONCE = 1\n",
        (
            f"{GROUPS}test_writes_at_once_share_a_commit",
            f"{GROUPS}test_writes_while_a_group_is_committed_gather_for_the_next",
        ),
    ),
    Break(
        "writes of a group are answered although its commit failed",
        "backends/sql/drivers/sqlite_async.py",
        "            connection.rollback()\n        raise\n    return results\n",
        "            connection.rollback()\n    return results\n",
        (f"{GROUPS}test_a_commit_that_fails_fails_all_of_its_group",),
    ),
    Break(
        "what follows the end of a group's transaction is committed by itself",
        "backends/sql/drivers/sqlite_async.py",
        "if not connection.in_transaction:  # what follows would be committed by itself",
        "if False:",
        (f"{GROUPS}test_what_ends_the_transaction_ends_its_group",),
    ),
    Break(
        "a group that is left when its loop ends is not written",
        "backends/sql/drivers/sqlite_async.py",
        "        while self._gathering:\n",
        "        while False:\n",
        (f"{GROUPS}test_what_is_left_when_the_loop_ends_is_written",),
    ),
    Break(
        "a transaction is not opened for writing",
        "backends/sql/sqlite.py",
        'BEGIN = "BEGIN IMMEDIATE"',
        'BEGIN = "BEGIN"',
        (f"{SQL}TestBusySqlite::test_a_transaction_is_open_for_writing_before_it_reads",),
        rows=(31,),
    ),
    Break(
        "the caller's transaction is not opened for writing",
        "backends/sql/drivers/sqlite.py",
        'connection.execute("BEGIN IMMEDIATE")',
        'connection.execute("BEGIN")',
        (f"{SQL}TestBusySqlite::test_the_callers_transaction_is_open_for_writing_before_it_reads",),
        rows=(31,),
    ),
    Break(
        "a connection is lent again with its transaction open",
        "backends/sql/drivers/psycopg.py",
        "    return connection.pgconn.transaction_status == TransactionStatus.IDLE",
        "    return not connection.closed",
        (
            f"{SQL}TestCancelledTransaction::test_a_connection_with_an_open_transaction_is_discarded",
            f"{SQL}TestCancelledTransaction::test_a_connection_of_tasks_with_an_open_transaction_is_discarded",
        ),
        rows=(32,),
    ),
    Break(
        "SQLite lends a connection again with its transaction open",
        "backends/sql/drivers/sqlite.py",
        "        if connection.in_transaction:\n            connection.rollback()\n        usable",
        "        usable",
        (f"{SQL}TestCancelledTransaction::test_an_open_transaction_of_sqlite_is_rolled_back",),
        rows=(32,),
    ),
    Break(
        "a claim in a transaction of MySQL believes its snapshot",
        "backends/sql/mysql.py",
        'self._current_sql = f"{row} FOR UPDATE NOWAIT"',
        "self._current_sql = row",
        (
            f"{MYSQL}test_an_old_snapshot_does_not_hide_the_winner[MySQL]",
            f"{MYSQL}test_an_old_snapshot_does_not_take_over_twice[MySQL]",
        ),
        rows=(33,),
    ),
    Break(
        "a claim goes on without a connection of its own",
        "locks.py",
        "                if left <= 0:\n                    return False",
        "                if left <= 0:\n                    return True",
        (
            f"{SQL}TestExhaustedPool::test_a_url[keyed]",
            f"{SQL}TestExhaustedPool::test_a_url[transactional]",
        ),
        rows=(34,),
    ),
    Break(
        "pages go on after the newest record that was seen",
        "backends/sql/selection.py",
        "within.append(f\"r.key_hash > {store.p('key')}\")",
        'within.append(f"r.created > (SELECT max(q.created) FROM {TABLE} AS q '
        "WHERE q.key_hash <= {store.p('key')})\")",
        (f"{SQL}test_pages_lose_nothing_to_a_record_that_was_made_early_and_committed_late",),
        rows=(35,),
    ),
]
