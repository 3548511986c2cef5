"""Stores: SQL, Redis, DynamoDB, their drivers and schemas."""

from __future__ import annotations

from tests.proving.breaks import Break
from tests.proving.breaks.mutations import (
    always,
    first,
    instead,
    never,
    reworded,
    unrestricted,
    unwrapped,
    without,
)

AUTOCOMMIT_ENGINES = "tests/faults/test_autocommit_engines.py"
BATCHES = "tests/messaging/test_batches.py"
CALLERS_POOL = "tests/faults/test_callers_pool.py"
CDC = "tests/messaging/test_cdc.py"
CLOCKS = "tests/faults/test_clocks.py"
CONFORMANCE = "tests/stores/test_conformance.py"
CRASHES = "tests/faults/test_crashes.py"
DYNAMODB = "tests/faults/test_dynamodb.py"
INBOX = "tests/messaging/test_inbox.py"
LANE = "tests/faults/test_lane.py"
MESSAGES = "tests/faults/test_messages.py"
MYSQL = "tests/faults/test_mysql.py"
PEERS_BUGS = "tests/faults/test_peers_bugs.py"
PGBOUNCER = "tests/faults/test_pgbouncer.py"
PROCESS = "tests/faults/test_process.py"
QUOTAS = "tests/boundary/test_quotas.py"
REDIS = "tests/faults/test_redis.py"
REDIS_KILLS = "tests/faults/test_redis_kills.py"
REGISTRY = "tests/stores/test_registry.py"
RELAY_PLANS = "tests/messaging/test_relay_plans.py"
REPLICAS = "tests/faults/test_replicas.py"
RESTORED = "tests/faults/test_restored.py"
SAME_DATABASE = "tests/faults/test_same_database.py"
SERVER_CLOCK = "tests/faults/test_server_clock.py"
SQL_FAULTS = "tests/faults/test_sql_faults.py"
SWEEPING = "tests/faults/test_sweeping.py"
TRANSACTIONS = "tests/boundary/test_transactions.py"
TWO_VERSIONS = "tests/faults/test_two_versions.py"
UNKNOWN_KEYS = "tests/doctor/test_unknown_keys.py"

BREAKS: list[Break] = [
    Break(
        "an engine whose listener makes everything commit at once is taken",
        "backends.sql.drivers.sqlalchemy:_refuse_autocommit",
        instead("get_autocommit()", "False"),
        (f"{AUTOCOMMIT_ENGINES}::test_a_listener_that_makes_everything_commit_at_once_is_found_out[False-pymysql]",),
        rows=(4,),
    ),
    Break(
        "a batch that its handler has committed in the middle is completed",
        "backends.sql.store:SqlStore.complete_many",
        never("STAMP"),
        (f"{BATCHES}::test_a_handler_that_commits_by_itself_loses_no_message_silently[postgresql]",),
        rows=(4,),
    ),
    Break(
        "a renewal keeps a lease for the whole window",
        "backends.sql.statements:SqlStatements.renew_query",
        reworded("lease_until = t.now + lease", "lease_until = t.now + kept"),
        (f"{CRASHES}::test_dead_while_its_lease_was_renewed_it_is_taken_over_a_lease_later",),
        rows=(12,),
    ),
    Break(
        "a terminal write in DynamoDB is not fenced",
        "backends.documents:owner_of",
        first("return {}"),
        (f"{CONFORMANCE}::test_conformance[boto3]",),
        rows=(15, 17),
    ),
    Break(
        "a terminal write in Redis is not fenced",
        "backends.redis.store:_BODIES",
        reworded("or record.attempt ~= ARGV[2] or record[ARGV[3]] ~= tonumber(ARGV[4])", ""),
        (
            f"{CONFORMANCE}::test_conformance[redis]",
            f"{SERVER_CLOCK}::test_a_late_word_after_a_jump_forward_changes_nothing",
        ),
        rows=(15, 17, 42, 62),
    ),
    Break(
        "a terminal write in a batch is not fenced",
        "backends.sql.postgresql:PostgresqlStore._settles",
        unrestricted("attempt") & unrestricted("token"),
        (f"{LANE}::test_a_late_owner_settles_nothing_of_another_attempt_in_a_batch",),
        rows=(15, 17),
    ),
    Break(
        "a terminal write in SQL is not fenced",
        "backends.sql.statements:SqlStatements._settle",
        unrestricted("attempt") & unrestricted("token"),
        (f"{PEERS_BUGS}::test_a_late_owner_cannot_flip_the_new_owners_record[sqlite]",),
        rows=(15, 17),
    ),
    Break(
        "the first claim on DynamoDB has no condition",
        "backends.dynamodb.store:_VACANT",
        instead("attribute_not_exists(key_hash)", "'attribute_not_exists(key_hash) OR attribute_exists(key_hash)'"),
        (
            f"{DYNAMODB}::test_a_request_that_arrives_again_much_later_changes_nothing",
            f"{CONFORMANCE}::test_conformance[boto3]",
        ),
        rows=(16, 46),
    ),
    Break(
        "a claim in Redis overwrites what is there",
        "backends.redis.store:_BODIES",
        reworded("stored() or ", ""),
        (f"{CONFORMANCE}::test_conformance[redis]",),
        rows=(16, 39),
    ),
    Break(
        "a claim in a batch is answered by the record of another key",
        "backends.sql.drivers.lane:QueryLane._answers",
        instead("get()", "next(iter(found.values()))"),
        (f"{LANE}::test_each_caller_is_told_of_its_own_key",),
        rows=(16,),
    ),
    Break(
        "claims in a batch overwrite what is there",
        "backends.sql.postgresql:PostgresqlStore._claims",
        reworded("DO NOTHING", "DO UPDATE SET attempt = excluded.attempt"),
        (f"{LANE}::test_a_loser_to_a_rival_in_the_middle_of_a_batch_is_told_of_it",),
        rows=(16, 25),
    ),
    Break(
        "a claim in SQL overwrites what is there",
        "backends.sql.statements:SqlStatements._insert",
        reworded("DO NOTHING", "DO UPDATE SET attempt = excluded.attempt"),
        (f"{CONFORMANCE}::test_conformance[sqlite3]",),
        rows=(16, 25),
    ),
    Break(
        "async code waits for a silent server for ever",
        "backends.sql.drivers.deadline:of",
        instead("DEADLINE", "3600"),
        (f"{MESSAGES}::test_a_server_that_falls_silent_does_not_hang_a_task[claim-keyed-psycopg]",),
        rows=(18,),
    ),
    Break(
        "a failover that may lose commits is not told",
        "backends.sql.postgresql:_findings",
        reworded("none: a failover may lose the last commits", ""),
        (f"{REPLICAS}::test_an_operator_is_told_whether_a_failover_may_lose_commits",),
        rows=(21,),
    ),
    Break(
        "a wait for a replica that was ended counts as over",
        "backends.sql.drivers.base:find_unreplicated",
        always("SyncRepWaitForLSN"),
        (f"{REPLICAS}::test_a_commit_whose_wait_for_a_replica_was_ended_is_told[psycopg-keyed-claim]",),
        rows=(22,),
    ),
    Break(
        "a serialization failure is an error like any other",
        "backends.sql.drivers.base:RESTART",
        without("RESTART_ALL"),
        (f"{SQL_FAULTS}::TestSerialization::test_once_runs_the_whole_own_transaction_again",),
        rows=(23,),
    ),
    Break(
        "a deadlock is an error like any other",
        "backends.sql.drivers.base:RESTART",
        without("40P01"),
        (f"{SQL_FAULTS}::test_a_deadlock_is_run_again",),
        rows=(24,),
    ),
    Break(
        "a lock timeout is an error of the handler",
        "backends.sql.drivers.base:_STORE_CLASSES",
        without("55"),
        (f"{SQL_FAULTS}::test_a_lock_timeout_is_a_503_that_says_when_to_come_back[transactional]",),
        rows=(27,),
    ),
    Break(
        "a replica of MariaDB is not recognised",
        "backends.sql.mysql:_findings",
        never("read_only"),
        (f"{MYSQL}::test_a_replica_is_refused",),
        rows=(29,),
    ),
    Break(
        "a replica of PostgreSQL is not recognised",
        "backends.sql.postgresql:_findings",
        never("standby"),
        (f"{REPLICAS}::test_claims_and_replays_on_a_replica_are_refused",),
        rows=(29,),
    ),
    Break(
        "the gate of a key is the session's",
        "backends.sql.postgresql:_LOCK",
        reworded("pg_try_advisory_xact_lock", "pg_try_advisory_lock"),
        (f"{PGBOUNCER}::test_a_rolled_back_claim_leaves_nothing_in_the_session",),
        rows=(30,),
    ),
    Break(
        "a transaction is not opened for writing",
        "backends.sql.sqlite:SqliteStore.BEGIN",
        reworded(" IMMEDIATE", ""),
        (f"{SQL_FAULTS}::TestBusySqlite::test_a_transaction_is_open_for_writing_before_it_reads",),
        rows=(31,),
    ),
    Break(
        "SQLite lends a connection again with its transaction open",
        "backends.sql.drivers.sqlite_connection:Connection.reset",
        never("in_transaction"),
        (f"{SQL_FAULTS}::TestCancelledTransaction::test_an_open_transaction_of_sqlite_is_rolled_back",),
        rows=(32,),
    ),
    Break(
        "a claim in a transaction of MySQL believes its snapshot",
        "backends.sql.mysql:MysqlStore.__init__",
        reworded(" FOR UPDATE NOWAIT", ""),
        (f"{MYSQL}::test_an_old_snapshot_does_not_hide_the_winner[MySQL]",),
        rows=(33,),
    ),
    Break(
        "messages behind the part that a relay has passed over overtake their lane",
        "backends.sql.outbox:SqlOutbox.due",
        never("start", "low"),
        (f"{RELAY_PLANS}::test_late_commits_are_not_overtaken_by_messages_behind_the_part_passed_over",),
        rows=(35,),
    ),
    Break(
        "a Redis server that evicts records is only warned of",
        "backends.redis.store:_eviction",
        instead("refuse", "'warn'"),
        (f"{REDIS_KILLS}::test_a_server_that_may_evict_records_is_refused",),
        rows=(36,),
    ),
    Break(
        "that a failover of Redis loses claims is not documented",
        "backends.redis.store:RedisStore.capabilities",
        reworded("a failover that loses a claim: ", ""),
        (f"{REDIS_KILLS}::test_losses_of_these_tests_are_documented",),
        rows=(37,),
    ),
    Break(
        "a Redis server without AOF is not warned of",
        "backends.redis.store:_persistence",
        instead("warn", "'fact'", at=0),
        (f"{REDIS_KILLS}::test_without_persistence_a_kill_forgets_everything",),
        rows=(38,),
    ),
    Break(
        "a script that Redis has forgotten is not loaded again",
        "backends.redis.client:_run_on",
        never("NOSCRIPT"),
        (f"{REDIS}::test_a_server_without_our_scripts_is_given_them[sync]",),
        rows=(40,),
    ),
    Break(
        "redirections of a Redis cluster are not followed",
        "backends.redis.client:is_redirection",
        never("_REDIRECTIONS"),
        (f"{REDIS}::test_a_slot_that_moves_is_followed",),
        rows=(41,),
    ),
    Break(
        "the reply to a cancelled request goes to the next one on the wire",
        "backends.redis.async_client:Wire._receive",
        first("while answer.done() and self._waiting:\n    answer, _ = self._waiting.popleft()", "done"),
        (f"{REDIS}::test_cancelling_one_waiter_disturbs_no_other[redis]",),
        rows=(43,),
    ),
    Break(
        "on DynamoDB a key is forgotten only when the service has removed its item",
        "backends.dynamodb.store:_standing",
        reworded(" <= :now", " <= :now AND attribute_not_exists(#ttl)"),
        (f"{DYNAMODB}::test_items_not_removed_yet_are_forgotten_all_the_same",),
        rows=(45,),
    ),
    Break(
        "a throttled call to DynamoDB is not made again",
        "backends.dynamodb.client:TURNED_AWAY",
        without("ThrottlingException"),
        (f"{DYNAMODB}::test_a_service_that_asks_to_come_again_is_asked_again[ThrottlingException]",),
        rows=(47,),
    ),
    Break(
        "DynamoDB is read eventually consistently",
        "backends.dynamodb.store:DynamodbStore.find",
        instead("ConsistentRead=", "False"),
        (f"{DYNAMODB}::test_every_read_is_consistent_and_nothing_rests_on_a_request_token",),
        rows=(48,),
    ),
    Break(
        "a claim that leaves no room for a result in its item runs all the same",
        "backends.dynamodb.store:_refuse_too_large",
        never("RESERVED"),
        (f"{DYNAMODB}::test_a_fixed_part_that_is_too_large_is_refused_before_the_effect",),
        rows=(49,),
    ),
    Break(
        "an older sequence is applied over a newer one",
        "backends.sql.inbox:SqlInbox.advance",
        reworded("sequence < ", "sequence <> "),
        (f"{INBOX}::test_the_latest_wins[sqlite]",),
        rows=(55,),
    ),
    Break(
        "the clock of a machine is taken for DynamoDB's",
        "backends.service_clock:ServiceClock.__call__",
        first("return time.time_ns() // 1000"),
        (f"{DYNAMODB}::test_the_services_clock_decides_not_the_machines",),
        rows=(60,),
    ),
    Break(
        "instants on SQLite are of the machine's time zone",
        "backends.sql.sqlite:SqliteStore.NOW",
        reworded("'now'", "'now', 'localtime'"),
        (f"{CLOCKS}::test_a_time_zone_that_changes_moves_no_instant[sqlite]",),
        rows=(63,),
    ),
    Break(
        "a quota is not asked for in SQL",
        "backends.sql.store:SqlStore.claim",
        always("allowance"),
        (f"{QUOTAS}::test_a_flood_from_many_threads[sqlite]",),
        rows=(75,),
    ),
    Break(
        "a sweep removes by age, whatever the state",
        "protocol.standing:STANDING",
        instead("_SETTLED", "tuple(State)", at=1),
        (f"{PEERS_BUGS}::test_cleanup_never_deletes_what_runs_or_is_in_doubt",),
        rows=(79,),
    ),
    Break(
        "a sweep waits for records that others hold",
        "backends.sql.postgresql:PostgresqlStore.SKIP_LOCKED",
        reworded(" SKIP LOCKED", ""),
        (f"{SWEEPING}::test_a_locked_record_is_passed_over",),
        rows=(80,),
    ),
    Break(
        "a worker works on a schema that is older than its own",
        "backends.backend:Backend.examination",
        never("WITH_SCHEMA"),
        (f"{TWO_VERSIONS}::test_the_newer_version_waits_for_its_migration[postgresql]",),
        rows=(82,),
    ),
    Break(
        "attempts are not counted before their effect",
        "backends.sql.store:SqlStore.take",
        instead(1, "0"),
        (f"{PROCESS}::test_a_crash_loop_counts_every_attempt_before_its_effect",),
        rows=(85,),
    ),
    Break(
        "a forked child uses its parent's client",
        "runtime:PerProcess.__call__",
        without("pid"),
        (f"{PROCESS}::test_a_fork_gets_connections_and_a_heartbeat_of_its_own[postgresql-transactional]",),
        rows=(87,),
    ),
    Break(
        "a claim on a connection that a failover has cut begins again on a new one",
        "backends.sql.drivers.sqlalchemy:InTransaction._passes_by_another",
        instead("_begins", "False"),
        (f"{CALLERS_POOL}::test_threads_claim_on_new_connections_after_a_failover",),
        rows=(13,),
    ),
    Break(
        "a connection is lent to several threads",
        "backends.sql.drivers.pool:Pool.borrow",
        instead("pop()", "self.idle[-1]"),
        (f"{PROCESS}::test_threads_share_no_connection",),
        rows=(88,),
    ),
    Break(
        "tokens count from one, so that those of before a restore come again",
        "backends.sql.statements:SqlStatements._insert",
        reworded(", t.now, 1, ", ", 1, 1, "),
        (f"{RESTORED}::test_forgotten_work_runs_again_with_the_same_derived_key_and_a_higher_token",),
        rows=(90,),
    ),
    Break(
        "a record is written wherever tx= leads",
        "backends.database:StoreDatabase._judge",
        never("theirs", at=0),
        (f"{SAME_DATABASE}::test_a_transaction_on_another_database_is_refused[psycopg_connection]",),
    ),
    Break(
        "doctor: keys whose outcome is unknown are no finding",
        "backends.checks:_in_doubt",
        always("records"),
        (f"{UNKNOWN_KEYS}::test_keys_whose_outcome_is_unknown_are_found_and_counted[sqlite]",),
    ),
    Break(
        "a URL of an unknown kind is refused with its password",
        "backends.registry:_of_scheme",
        unwrapped("without_password"),
        (f"{REGISTRY}::test_a_url_that_cannot_be_read_is_refused_without_its_password",),
    ),
    Break(
        "a message from the log overtakes one of its lane that is in the table",
        "backends.sql.outbox_log:SqlOutboxLog.look",
        without("older", at=0),
        (f"{CDC}::test_messages_behind_one_that_is_missing_in_the_log_stay",),
    ),
    Break(
        "a commit in the middle of the boundary's transaction is not noticed",
        "backends.sql.statements:SqlStatements._settle",
        never("STAMP", "in_tx"),
        (f"{TRANSACTIONS}::test_own_transaction_committed_by_the_handler_is_unknown[psycopg]",),
    ),
]
