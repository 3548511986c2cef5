"""Breaks of the protocol: what stores ask, what programs decide, and how claims begin and end."""

from __future__ import annotations

from tests.proving.breaks import Break

GROUPS = "tests/boundary/test_exception_groups.py"
CONFORMANCE = "tests/stores/test_conformance.py::test_conformance"
ENCODINGS = "tests/faults/test_encodings.py"
GATES = "tests/faults/test_gates.py"
PEERS = "tests/faults/test_peers_bugs.py"
TRANSACTIONS = "tests/boundary/test_transactions.py"
PROGRAMS = "tests/programs/test_programs.py"
CRASHES = "tests/faults/test_crash_points.py"
CANCELLATION = "tests/faults/test_cancellation.py"
HEARTBEAT = "tests/faults/test_heartbeat.py"
DIFFERENTIAL = "tests/stores/test_differential.py::test_every_event_agrees_with_the_table"

BREAKS = [
    # ------------------------------------------------------------ connections
    Break(
        "what a listener of an engine begins for a leased claim is rolled back with its connection",
        "backends/sql/drivers/sqlalchemy.py",
        "    if _is_open(_dbapi(connection)):",
        "    if False:",
        killed_by=(
            "tests/faults/test_autocommit_engines.py::test_what_listeners_begin_is_committed[keyed-sqlite-sqlite_recipe]",
        ),
    ),
    # ------------------------------------------------------------ fencing
    Break(
        "an engine whose listener makes everything commit at once is taken",
        "backends/sql/drivers/sqlalchemy.py",
        "            driver.get_autocommit()\n",
        "            False\n",
        killed_by=tuple(
            f"tests/faults/test_autocommit_engines.py::"
            f"test_a_listener_that_makes_everything_commit_at_once_is_found_out[{joined}-pymysql]"
            for joined in (False, True)
        ),
        rows=(4,),
    ),
    Break(
        "a terminal write is not fenced",
        "protocol/transitions.py",
        "    if (record.attempt, record.token) != (held.attempt, held.token):",
        "    if False:",
        killed_by=(
            "tests/core/test_transitions.py::test_a_late_owner_changes_nothing",
            f"{CONFORMANCE}[memory-lapsed_keyed_attempt_is_taken_over_and_fenced]",
        ),
        rows=(15, 17),
    ),
    Break(
        "a terminal write in SQL is not fenced",
        "backends/sql/statements.py",
        """            f"r.key_hash = {self.p('key')} AND r.attempt = {self.p('attempt')} "
            f"AND r.token = {self.p('token')} AND {allowed(event)}{stamp}",""",
        """            f"r.key_hash = {self.p('key')} AND {allowed(event)}{stamp}",""",
        killed_by=(
            f"{PEERS}::test_a_late_owner_cannot_flip_the_new_owners_record[sqlite-running-completes]",
            f"{PEERS}::test_a_late_owner_cannot_flip_the_new_owners_record[postgresql-running-fails for good]",
            f"{PEERS}::test_a_late_owner_that_raises_cannot_release_the_new_owners_record",
            f"{CONFORMANCE}[sqlite3-lapsed_keyed_attempt_is_taken_over_and_fenced]",
            f"{CONFORMANCE}[PyMySQL-lapsed_keyed_attempt_is_taken_over_and_fenced]",
        ),
        rows=(15, 17),
    ),
    Break(
        "a terminal write in Redis is not fenced",
        "backends/redis/store.py",
        "or record.attempt ~= ARGV[2] or record[ARGV[3]] ~= tonumber(ARGV[4]) then return 0 end",
        "then return 0 end",
        killed_by=(f"{CONFORMANCE}[redis-lapsed_keyed_attempt_is_taken_over_and_fenced]",),
        rows=(15, 17),
    ),
    Break(
        "a terminal write in DynamoDB is not fenced",
        "backends/dynamodb/store.py",
        'return f"#attempt = :attempt AND #token = :token AND {_allowed(event)}"',
        "return _allowed(event)",
        killed_by=(f"{CONFORMANCE}[boto3-lapsed_keyed_attempt_is_taken_over_and_fenced]",),
        rows=(15, 17),
    ),
    Break(
        "a settled record is settled again in SQL",
        "backends/sql/statements.py",
        """f"AND r.token = {self.p('token')} AND {allowed(event)}{stamp}",""",
        """f"AND r.token = {self.p('token')}{stamp}",""",
        killed_by=(f"{DIFFERENTIAL}[sqlite3-completed]", f"{DIFFERENTIAL}[psycopg-completed]"),
        rows=(17,),
    ),
    Break(
        "a takeover keeps the fencing token",
        "protocol/transitions.py",
        "return max(previous + 1, now)",
        "return max(previous, now)",
        killed_by=(
            "tests/core/test_transitions.py::test_a_token_is_above_every_token_before_and_at_least_the_stores_time",
        ),
        rows=(15, 61),
    ),
    Break(
        "tokens begin anew after a sweep",
        "protocol/transitions.py",
        "return max(previous + 1, now)",
        "return previous + 1",
        killed_by=(
            "tests/core/test_transitions.py::test_a_token_is_above_every_token_before_and_at_least_the_stores_time",
        ),
        rows=(17, 79),
    ),
    Break(
        "tokens in SQL begin anew after a sweep",
        "backends/sql/statements.py",
        """f"t.now, 1, {self.p('effects')}, t.now +""",
        """f"1, 1, {self.p('effects')}, t.now +""",
        killed_by=(f"{PEERS}::test_an_owner_from_before_a_sweep_cannot_write_into_the_newcomers_record",),
        rows=(17, 79),
    ),
    Break(
        "a release deletes the record",
        "backends/redis/store.py",
        "claim_of(record), ARGV[8])\nredis.pcall(",
        "claim_of(record), ARGV[8])\n"
        "if STATES[tonumber(ARGV[5])] == 'released' then redis.call('DEL', KEYS[1]) end\nredis.pcall(",
        killed_by=(f"{CONFORMANCE}[redis-release_keeps_the_row_and_tokens_only_rise]",),
        rows=(17,),
    ),
    Break(
        "whoever commits in the middle of the boundary's transaction is not noticed",
        "backends/sql/statements.py",
        """stamp = f" AND r.xact = {self.STAMP}" if self.STAMP and own else \"\"""",
        'stamp = ""',
        killed_by=tuple(
            f"{TRANSACTIONS}::test_own_transaction_committed_by_the_handler_is_unknown[{store}]"
            for store in ("psycopg", "psycopg async", "asyncpg")
        ),
    ),
    Break(
        "whoever commits and begins again in a transaction of SQLite or MySQL is not noticed",
        "backends/sql/transactions.py",
        "refusals={_NO_SAVEPOINT: None}",
        "refusals={_NO_SAVEPOINT: settle.request}",
        killed_by=tuple(
            f"{TRANSACTIONS}::test_own_transaction_that_the_handler_commits_and_begins_again_is_unknown[{store}]"
            for store in ("sqlite3", "sqlite3 async", "SQLAlchemy Connection, SQLite")
        ),
    ),
    # ------------------------------------------------------------ claims
    Break(
        "a claim in SQL overwrites what is there",
        "backends/sql/statements.py",
        'f"ON CONFLICT (key_hash) DO NOTHING RETURNING {columns()}, updated"',
        'f"ON CONFLICT (key_hash) DO UPDATE SET attempt = excluded.attempt RETURNING {columns()}, updated"',
        killed_by=(f"{CONFORMANCE}[sqlite3-one_of_many_simultaneous_claims_wins]",),
        rows=(16, 25),
    ),
    Break(
        "a claim in Redis overwrites what is there",
        "backends/redis/store.py",
        "reply(stored() or write(",
        "reply(write(",
        killed_by=(f"{CONFORMANCE}[redis-duplicate_of_a_running_attempt_is_busy]",),
        rows=(16, 39),
    ),
    Break(
        "a claim in DynamoDB overwrites what is there",
        "backends/dynamodb/store.py",
        'update = _Update("attribute_not_exists(key_hash)")',
        'update = _Update("attribute_not_exists(key_hash) OR attribute_exists(key_hash)")',
        killed_by=(f"{CONFORMANCE}[boto3-duplicate_of_a_running_attempt_is_busy]",),
        rows=(16,),
    ),
    Break(
        "a record is taken over although it has changed since it was seen",
        "backends/sql/statements.py",
        """f"AND r.version = {self.p('version', 'seen_version')}\"""",
        """f"AND r.version >= {self.p('version', 'seen_version')}\"""",
        killed_by=(f"{DIFFERENTIAL}[sqlite3-lapsed]",),
        rows=(16,),
    ),
    Break(
        "a takeover in Redis does not look whether the record has changed",
        "backends/redis/store.py",
        "if record.attempt ~= ARGV[6] or record.version ~= tonumber(ARGV[7]) then return false end\n",
        "",
        killed_by=(f"{DIFFERENTIAL}[redis-lapsed]",),
        rows=(16,),
    ),
    Break(
        "who lost the race for a key is told an error instead of the winner's result",
        "backends/sql/postgresql.py",
        "return Query(self._claim_sql, params, read, merged=self._claims_sql)",
        "return Query(self._claim_sql, params, merged=self._claims_sql)",
        killed_by=("tests/faults/test_sql_faults.py::test_losing_the_race_for_the_unique_key_reads_the_winner",),
        rows=(25,),
    ),
    Break(
        "a database that is not in UTF-8 is taken",
        "backends/sql/postgresql.py",
        'if server != "UTF8":',
        "if False:",
        killed_by=(f"{ENCODINGS}::test_a_postgresql_database_that_is_not_utf8_is_refused[SQL_ASCII-psycopg]",),
    ),
    Break(
        "a store whose connections are not in UTF-8 is taken",
        "backends/sql/postgresql.py",
        'elif client != "UTF8":',
        "elif False:",
        killed_by=(f"{ENCODINGS}::test_a_store_whose_connections_are_not_is_refused[pool-SQL_ASCII]",),
    ),
    Break(
        "a caller's connection that is not in UTF-8 is joined",
        "backends/sql/drivers/base.py",
        '    if encoding.lower().strip("\'").replace("-", "") != needed:',
        "    if False:",
        killed_by=(f"{ENCODINGS}::test_a_callers_connection_to_postgresql_that_is_not_is_refused[LATIN1]",),
    ),
    Break(
        "tables of MySQL that were converted to another character set are taken",
        "backends/sql/mysql.py",
        "    if tables is not None:",
        "    if False:",
        killed_by=(f"{ENCODINGS}::test_tables_that_were_converted_are_refused[utf8mb3]",),
    ),
    Break(
        "a transaction takes a lock for every claim, however many there are",
        "backends/sql/postgresql.py",
        "            if held >= MOST_GATES:",
        "            if False:",
        killed_by=(f"{GATES}::test_one_transaction_takes_so_many_and_the_next_one_again",),
    ),
    Break(
        "a batch takes a lock for every message, however many there are",
        "backends/sql/postgresql.py",
        "CASE WHEN row_number() OVER () > {MOST_GATES} THEN",
        "CASE WHEN row_number() OVER () > 1000000 THEN",
        killed_by=(f"{GATES}::test_so_do_claims_of_many_keys_at_once",),
    ),
    Break(
        "the gate of a claim outlives its transaction",
        "backends/sql/postgresql.py",
        "\"pg_try_advisory_xact_lock(('x'",
        "\"pg_try_advisory_lock(('x'",
        killed_by=(f"{PEERS}::test_a_winner_that_rolled_back_holds_no_gate_on_its_open_connection",),
        rows=(30,),
    ),
    Break(
        "a claim whose reply was lost is not known again",
        "protocol/procedures.py",
        "    if met.attempt == request.attempt and met.state is State.RUNNING:",
        "    if False:",
        killed_by=(
            f"{PROGRAMS}::test_a_lost_reply_to_a_claim_is_read_back_as_ones_own",
            f"{CONFORMANCE}[memory-same_attempt_recognises_its_own_claim]",
            f"{CRASHES}::test_a_claim_still_under_way_when_its_reply_is_lost_is_found_again",
        ),
        rows=(2, 14),
    ),
    Break(
        "the running record of an attempt is another one's to it",
        "protocol/decisions.py",
        "        return Decision.MINE",
        "        return Decision.BUSY",
        killed_by=(
            "tests/core/test_decisions.py::test_ones_own_record_is_recognised_while_it_runs[running]",
            "tests/core/test_decisions.py::test_ones_own_record_is_recognised_while_it_runs[lapsed]",
        ),
        rows=(2, 14),
    ),
    Break(
        "a lapsed external attempt is run again",
        "protocol/decisions.py",
        '"external": Decision.SUSPECT',
        '"external": Decision.TAKE',
        killed_by=("tests/boundary/test_terms.py::test_a_dead_external_attempt_is_quarantined",),
        rows=(3, 5),
    ),
    Break(
        "the marker of a running attempt stays as long as a result",
        "protocol/transitions.py",
        "        now + clocks.lease + clocks.margin,\n        now,  # created",
        "        now + clocks.window,\n        now,  # created",
        killed_by=("tests/core/test_transitions.py::test_a_crash_does_not_lock_the_key_for_its_window",),
        rows=(3, 12),
    ),
    Break(
        "the marker of a running attempt in SQL stays as long as a result",
        "backends/sql/statements.py",
        "t.now + {self.p('lease')}, t.now, t.now, t.now + {self.p('window')}, \"",
        "t.now + {self.p('window')}, t.now, t.now, t.now + {self.p('window')}, \"",
        killed_by=(f"{CONFORMANCE}[sqlite3-first_claim_wins_and_is_written_whole]",),
        rows=(3, 12),
    ),
    Break(
        "a running record is rescued by its age",
        "protocol/records.py",
        "return EffectiveState.RUNNING if self.lease_until > now else EffectiveState.LAPSED",
        "return EffectiveState.RUNNING if self.updated + 60_000_000 > now else EffectiveState.LAPSED",
        killed_by=(f"{PEERS}::test_the_marker_and_the_result_have_clocks_of_their_own",),
        rows=(3,),
    ),
    # ------------------------------------------------------------ leases
    Break(
        "a renewal revives a lease that has lapsed",
        "protocol/transitions.py",
        "Transition.RENEW: _rule(State.RUNNING, Guard.OWNER, EffectiveState.RUNNING),",
        "Transition.RENEW: _rule(State.RUNNING, Guard.OWNER, *_RUNNING),",
        killed_by=tuple(
            f"{CONFORMANCE}[{store}-renewal_extends_a_live_lease_and_never_revives_a_lapsed_one]"
            for store in ("memory", "sqlite3", "psycopg", "PyMySQL", "redis", "boto3")
        ),
        rows=(12, 61),
    ),
    Break(
        "a holder counts its lease from the answer to its renewal",
        "claims/lease.py",
        "            self.until = asked_at + self.seconds",
        "            self.until = clock() + self.seconds",
        killed_by=("tests/programs/test_grounds.py::test_a_lease_is_held_from_when_its_renewal_was_asked_for",),
        rows=(15, 20),
    ),
    Break(
        "a lease that cannot be renewed is believed in to its end",
        "claims/lease.py",
        "if lease.until - clock() <= lease.seconds / 3:",
        "if False:",
        killed_by=(f"{HEARTBEAT}::test_async_work_is_stopped_before_expiry_when_the_server_falls_silent",),
        rows=(20,),
    ),
    # ------------------------------------------------------------ endings
    Break(
        "an external effect that ended in doubt is released",
        "protocol/outcomes.py",
        "Ending.TRANSIENT: (_ROLLED_BACK, _DOUBT, _RELEASE, _DOUBT),",
        "Ending.TRANSIENT: (_ROLLED_BACK, _DOUBT, _RELEASE, _RELEASE),",
        killed_by=tuple(
            f"tests/boundary/test_terms.py::test_leased_failures[{error}-external-None-unknown]"
            for error in ("ValueError", "KeyboardInterrupt", "CancelledError")
        ),
        rows=(5,),
    ),
    Break(
        "an effect that was committed is released when the handler then fails",
        "protocol/outcomes.py",
        "    if committed:\n        return Ending.COMMITTED\n    if permanent:",
        "    if permanent:",
        killed_by=(f"{TRANSACTIONS}::test_own_failure_after_committed_is_unknown_without_the_database_effect",),
        rows=(5,),
    ),
    Break(
        "a declared failure keeps what the handler wrote",
        "protocol/procedures.py",
        "        yield from ask(store.rollback_to_savepoint())",
        "        pass",
        killed_by=(f"{TRANSACTIONS}::test_own_declared_failure_is_stored_without_the_effect",),
        rows=(4,),
    ),
    Break(
        "an error that the database wants to be retried is stored as permanent",
        "claims/outcome.py",
        "return settings.backend.restarts(error) or (ours and type(error) not in settings.permanent)",
        "return ours and type(error) not in settings.permanent",
        killed_by=(f"{PEERS}::test_a_retryable_error_is_not_stored_as_a_permanent_failure",),
        rows=(23, 24),
    ),
    Break(
        "a group with one permanent error is permanent as a whole",
        "protocol/exception_groups.py",
        "and all(every(one, kinds)",
        "and any(every(one, kinds)",
        killed_by=(f"{GROUPS}::test_a_group_with_anything_else_is_transient[mixed]",),
    ),
    Break(
        "what passes by itself is not looked for in groups",
        "claims/outcome.py",
        "any(_is_passing(leaf, settings) for leaf in leaves(error))",
        "_is_passing(error, settings)",
        killed_by=(
            f"{GROUPS}::test_what_passes_by_itself_makes_a_group_transient_however_broad_the_types[InProgress]",
        ),
    ),
    Break(
        "a completion whose reply was lost is not read back",
        "protocol/procedures.py",
        "    record = yield from ask(store.read(held.key))\n    return (",
        "    record = None if held else (yield from ask(store.read(held.key)))\n    return (",
        killed_by=(f"{PROGRAMS}::test_settled_means_accepted_or_found_there_under_the_own_attempt_and_token",),
        rows=(14,),
    ),
    Break(
        "a commit whose reply was lost is not read back",
        "claims/modes.py",
        "    if record is not None and mine and settlement.event is not None "
        "and record.state is RULES[settlement.event].target:",
        "    if False:",
        killed_by=(f"{CRASHES}::test_a_commit_whose_reply_is_lost_is_read_back",),
        rows=(14, 28),
    ),
    Break(
        "a commit whose reply was lost is believed without looking whose record is there",
        "claims/modes.py",
        "    mine = record is not None and (record.attempt, record.token) == (held.attempt, held.token)",
        "    mine = True",
        killed_by=tuple(
            f"tests/programs/test_grounds.py::test_any_other_record_leaves_it_open_whether_the_commit_happened[{found}]"
            for found in ("another attempt's", "another token")
        ),
        rows=(14, 28),
    ),
    # ------------------------------------------------------------ cancellation, threads and processes
    Break(
        "`except Exception` while claiming misses a cancellation",
        "claims/claim.py",
        """        except BaseException as error:
            if self._held is not None:
                self._signalling().not_executed = True
                await""",
        """        except Exception as error:
            if self._held is not None:
                self._signalling().not_executed = True
                await""",
        killed_by=tuple(
            f"{CANCELLATION}::test_cancelled_while_claiming_leaves_no_orphan[{store}]"
            for store in ("sqlite", "psycopg", "asyncpg", "asyncmy", "dynamodb")
        ),
        rows=(89,),
    ),
    Break(
        "a claim that a cancelled caller has won is kept",
        "claims/claim.py",
        "            if isinstance(outcome, Won):\n                self._met(outcome)\n            raise cancelled",
        "            raise cancelled",
        killed_by=tuple(
            f"{CANCELLATION}::test_cancelled_while_claiming_leaves_no_orphan[{store}]"
            for store in ("sqlite", "psycopg", "asyncpg", "asyncmy", "dynamodb")
        ),
        rows=(89,),
    ),
    Break(
        "a cancellation interrupts what must come to its end",
        "cancellation.py",
        "    task = asyncio.ensure_future(work)\n",
        "    return await work, None\n    task = asyncio.ensure_future(work)\n",
        killed_by=tuple(
            f"{CANCELLATION}::test_cancelled_at_every_step_of_a_whole_operation[{case}]"
            for case in ("sqlite-keyed", "psycopg-keyed", "asyncpg-keyed", "asyncmy-keyed")
        ),
        rows=(32, 89),
    ),
    Break(
        "a cancel scope of anyio is not shielded against",
        "cancellation.py",
        'anyio = sys.modules.get("anyio")',
        "anyio = None",
        killed_by=(f"{CANCELLATION}::test_a_cancel_scope_does_not_keep_a_release_spinning",),
        rows=(89,),
    ),
    Break(
        "the claim of an inner call stays current for the outer one",
        "claims/context.py",
        """        self._pid = 0
        _innermost.set(self.outer)
        claim""",
        """        claim""",
        killed_by=("tests/boundary/test_terms.py::test_current_is_the_innermost_open_claim",),
    ),
    Break(
        "a store is the object that leads to it, not its database",
        "claims/context.py",
        "if claim.tx is not None and backend.is_same(claim._backend):",
        "if claim.tx is not None and backend is claim._backend:",
        killed_by=(
            "tests/faults/test_same_database.py::test_a_claim_inside_joins_whatever_the_store_is_called[two engines]",
            "tests/faults/test_same_database.py::test_on_an_event_loop_too",
        ),
    ),
    Break(
        "a record is written wherever tx= leads",
        "backends/backend.py",
        "if theirs is None or theirs != mine:",
        "if False:",
        killed_by=(
            "tests/faults/test_same_database.py::test_a_transaction_on_another_database_is_refused[psycopg_connection]",
            "tests/faults/test_same_database.py::test_in_async_code_too",
        ),
    ),
    Break(
        "a forked child settles the claim of its parent",
        "claims/context.py",
        "        mine = self._pid == os.getpid()\n",
        "        mine = self._pid != 0\n",
        killed_by=(
            "tests/boundary/test_traps.py::test_a_child_forked_inside_the_block_does_not_settle_its_parents_claim",
        ),
        rows=(87,),
    ),
    # ------------------------------------------------------------ keys, retention, quotas
    Break(
        "the secret has no part in keys of records",
        "protocol/keys.py",
        "        padded = secret or _DEFAULT_SECRET\n",
        "        padded = _DEFAULT_SECRET\n",
        killed_by=(
            "tests/core/test_keys.py::test_a_tenant_that_guesses_a_key_finds_nothing",
            "tests/core/test_keys.py::test_a_hash_that_is_kept_for_many_keys_is_hmac[s]",
        ),
        rows=(74,),
    ),
    Break(
        "the secret has no part in derived keys",
        "protocol/keys.py",
        'hmac.digest(secret or _DEFAULT_SECRET, b"".join(map(_prefixed, parts)), "sha256")',
        'hmac.digest(_DEFAULT_SECRET, b"".join(map(_prefixed, parts)), "sha256")',
        killed_by=("tests/core/test_keys.py::test_derived_keys_depend_on_key_and_name_and_secret_alone",),
        rows=(74,),
    ),
    Break(
        "the parts of a key run into each other",
        "protocol/keys.py",
        '    return len(encoded).to_bytes(4, "big") + encoded\n',
        "    return encoded\n",
        killed_by=(
            "tests/core/test_keys.py::test_characters_do_not_move_from_one_part_to_the_next",
            "tests/core/test_keys.py::test_stored_hashes_stay_as_they_are_for_ever",
        ),
        rows=(74,),
    ),
    Break(
        "a sweep removes by age, whatever the state",
        "backends/sql/table.py",
        'EffectiveState.FORGOTTEN: f"{_SETTLED} AND r.tombstone_until <= t.now",',
        'EffectiveState.FORGOTTEN: "r.tombstone_until <= t.now",',
        killed_by=(f"{PEERS}::test_cleanup_never_deletes_what_runs_or_is_in_doubt",),
        rows=(79,),
    ),
    Break(
        "a quota refuses the retry of a key that it has counted",
        "protocol/procedures.py",
        "if refusal is not None and (yield from ask(store.read(request.key), again=True)) is None:",
        "if refusal is not None:",
        killed_by=(f"{CONFORMANCE}[redis-quota_never_refuses_a_key_that_has_a_record]",),
        rows=(75,),
    ),
]
