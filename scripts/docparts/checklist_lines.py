"""The lines of the checklist, and what covers each: a feature, a check, a page, a test, or what is missing."""

from __future__ import annotations

from typing import NamedTuple


class Cover(NamedTuple):
    """Something that covers a line."""

    kind: str
    """"feature", "check" (something refuses, or shows it), "page" or "test"."""
    text: str
    """The text that is shown; for a test its node id without parameters."""
    link: str = ""
    """A page under docs/; none for a test."""


class Line(NamedTuple):
    """A thing to settle."""

    name: str
    text: str
    by: tuple[Cover, ...] = ()
    missing: str = ""
    """The part of it that is not covered yet."""


def feature(text: str, link: str) -> Cover:
    """Something in the library does it."""
    return Cover("feature", text, link)


def check(text: str, link: str) -> Cover:
    """Something refuses what is wrong, or shows what is so."""
    return Cover("check", text, link)


def page(text: str, link: str) -> Cover:
    """A page says how."""
    return Cover("page", text, link)


def test(node: str) -> Cover:
    """A test that fails without it."""
    return Cover("test", f"tests/{node}")


RELAYED = "messaging/test_relay.py::"
HANDLED = "messaging/test_inbox.py::"
CONSUMED = "messaging/test_consumer_faults.py::"
SPANS = "streams/test_ledger.py::"
LEDGER = feature("`Ledger`", "how-to/streams.md#the-ledger")
COMPUTES = page("a job that computes the same again", "how-to/streams.md#a-job-that-computes-the-same-again")
KAFKA = feature("`KafkaTransactions`", "how-to/kafka-transactions.md")
LOADED = "loads/test_loads.py::"
PATTERNS = "how-to/sql-patterns.md"

DESCRIBE = check("`retrysafe describe`", "reference/commands.md#retrysafe-describe")
INBOX = feature("`Inbox.handler`", "how-to/inbox.md")
NEWER = feature("`inbox.apply_if_newer`", "how-to/inbox.md#apply-only-newer-versions")
OUTBOX = feature("`Outbox.add`", "how-to/outbox.md")
RELAY = feature("`Relay`", "how-to/relay.md")
DEAD_LETTERS = feature("`retrysafe outbox dead`", "how-to/relay.md#dead-letters")
SAME_ID = test("messaging/test_relay_faults.py::test_published_and_not_marked_it_goes_out_again_under_the_same_id")
STATUS = check("`retrysafe status`", "reference/commands.md#retrysafe-status")
CONFORMANCE = check("`retrysafe conformance http`", "how-to/check-my-server.md")
BOUNDARY = "reference/api.md#boundary"
TRANSACTION = page("guard a block in my own transaction", "how-to/guard-a-block-in-my-transaction.md")
WINDOWS = page("windows and key memory", "how-to/windows-and-key-memory.md")
ALERTS = page("what to alert on", "how-to/observe-and-log.md#what-to-alert-on")
RETRIED = page("test your code", "how-to/test-your-code.md")
CRASHED = check("`crash_points`", "how-to/crash-points.md")
CONTRACT = test("http/test_contract.py::test_every_rule")
TOGETHER = test("boundary/test_transactions.py::test_own_effect_and_record_commit_together")
JOINED = test("boundary/test_transactions.py::test_joined_effect_and_record_commit_with_the_caller")
UNIQUE = test("faults/test_sql_faults.py::test_losing_the_race_for_the_unique_key_reads_the_winner")
AT_ONCE = test("faults/test_duplicates.py::test_threads_are_told_that_the_first_is_running")
SAME_KEYS = test("boundary/test_terms.py::test_a_dead_keyed_attempt_is_taken_over_with_the_same_derived_keys")

DEFINITIONS = (
    Line(
        "D1",
        "The operation is said in one sentence",
        (feature("`operation=`", "how-to/guard-a-function.md#name-the-operation"), DESCRIBE),
    ),
    Line(
        "D2",
        "It is said which state converges, not which response comes",
        (
            feature("`Boundary(store=)`, `tx=`", BOUNDARY),
            page("transactional or leased", "explanation/transactional-or-leased.md"),
            DESCRIBE,
        ),
    ),
    Line(
        "D3",
        "Every side effect is listed",
        (
            feature("`Boundary(effects=)`", BOUNDARY),
            feature("`side_effects=`", "how-to/describe-and-lock.md#declare-an-operation"),
            DESCRIBE,
            page("which one", "explanation/transactional-or-leased.md#which-one"),
            CRASHED,
            check("`retrysafe scan`", "how-to/scan.md"),
        ),
        "nothing finds effects whose calls neither `crash_points` nor `scan` can see, though the first tells of some",
    ),
    Line("D4", "How long duplicates may come", (feature("`Boundary(window=)`", BOUNDARY), WINDOWS, DESCRIBE)),
    Line(
        "D5",
        "What counts as the same intent",
        (
            feature("`key=`, `payload=`", "how-to/guard-a-function.md#choose-what-must-be-equal-on-a-retry"),
            test("boundary/test_once.py::test_payload_selectors"),
        ),
    ),
    Line(
        "D6",
        "The boundary is among the acceptance criteria",
        (DESCRIBE, test("operating/test_describe_command.py::test_every_boundary_of_a_module_is_described")),
    ),
    Line(
        "D7",
        "Form and scope of keys",
        (
            page("tenants and scope", "how-to/tenants-and-scope.md"),
            test("core/test_keys.py::test_a_malformed_key_is_refused"),
        ),
    ),
    Line(
        "D8",
        "Safe, idempotent, or neither",
        (
            page("PUT, DELETE and ETags", "how-to/put-delete-and-etags.md"),
            test("http/test_guard.py::test_k7_other_methods_pass_untouched"),
        ),
    ),
    Line(
        "D9",
        "What a retry gets after a success",
        (
            DESCRIBE,
            page("outcomes", "reference/outcomes.md"),
            test("operating/test_describe_command.py::test_after_every_ending_a_retry_meets_what_is_described"),
        ),
    ),
    Line(
        "D10",
        "What a retry gets after half of it",
        (
            page("unknown outcomes", "explanation/unknown-outcomes.md"),
            page("what a retry gets", "reference/guarantees.md#what-a-retry-gets"),
            test("boundary/test_terms.py::test_leased_failures"),
        ),
    ),
)

CLIENTS = (
    Line(
        "C1",
        "Which errors may be retried",
        (
            page("errors", "reference/errors.md"),
            page("problems", "reference/problems/index.md"),
            feature("the HTTP client", "how-to/http-client.md#what-is-retried"),
            test("test_public_api.py::test_every_error_says_what_happened_and_what_to_do"),
            test("http/client/test_rules.py::test_c05_and_nowhere_else"),
        ),
    ),
    Line(
        "C2",
        "Retries have a budget",
        (
            feature("the HTTP client", "how-to/http-client.md#what-is-retried"),
            test("http/client/test_outages.py::test_c13_ten_thousand_calls_of_a_host_that_is_down"),
        ),
    ),
    Line(
        "C3",
        "Pauses grow exponentially",
        (
            feature("the HTTP client", "how-to/http-client.md#what-is-retried"),
            test("core/test_schedules.py::test_a_delay_is_below_a_bound_that_doubles_up_to_the_cap"),
            test("http/client/test_rules.py::test_c11_full_jitter_grows_to_its_cap"),
        ),
    ),
    Line(
        "C4",
        "Pauses are jittered",
        (
            feature("the HTTP client", "how-to/http-client.md#what-is-retried"),
            test("core/test_schedules.py::test_the_jitter_is_full"),
            test("http/client/test_rules.py::test_c11_full_jitter_grows_to_its_cap"),
        ),
    ),
    Line(
        "C5",
        "Every retry carries the same key",
        (
            feature("`key_for(…)`", "how-to/call-an-external-api.md"),
            feature("the HTTP client", "how-to/http-client.md"),
            SAME_KEYS,
            test("http/client/test_rules.py::test_c01_every_attempt_has_the_same_key_url_and_bytes"),
            test("http/client/test_durable.py::test_c02_a_client_killed_in_mid_request_resumes_with_its_key"),
        ),
    ),
    Line(
        "C6",
        "No new key by accident",
        (
            page("is a new key safe?", "reference/problems/index.md"),
            page("errors", "reference/errors.md"),
            feature("the HTTP client's journal", "how-to/http-client.md#after-a-crash"),
            feature("the HTTP client: `Host(requires_key=True)`", "how-to/http-client.md#declare-who-honours-keys"),
            test("http/client/test_durable.py::test_c03_past_its_retention_a_request_is_not_sent"),
            test(
                "http/client/test_rules.py"
                "::test_c01_a_call_without_a_key_of_the_callers_own_is_refused_where_one_is_required"
            ),
        ),
    ),
    Line(
        "C7",
        "Stored answer or conflict: chosen",
        (
            feature("`Boundary(concurrency=)`", BOUNDARY),
            page("wait for duplicates", "how-to/wait-for-duplicates.md"),
            test("faults/test_duplicates.py::test_threads_that_wait_get_the_first_result"),
        ),
    ),
    Line(
        "C8",
        "Every retry logs its key, redacted",
        (
            page("observe and log", "how-to/observe-and-log.md"),
            test("boundary/test_terms.py::test_the_log_never_shows_a_raw_key"),
            test("http/client/test_rules.py::test_every_attempt_is_told_with_the_redacted_key"),
        ),
    ),
    Line(
        "C9",
        "The volume of retries is watched, not errors alone",
        (
            ALERTS,
            feature("`retrysafe.client.retries`", "reference/events.md#metrics"),
            test("observing/test_metrics.py::test_a_replay"),
        ),
    ),
    Line(
        "C10",
        "Retries end before the records do",
        (
            WINDOWS,
            check("`retrysafe describe` shows window and memory", "reference/commands.md#retrysafe-describe"),
            check("the HTTP client: `Host(retention=)`", "how-to/http-client.md#declare-who-honours-keys"),
            check("`retrysafe doctor --retried-for`", "how-to/doctor.md#what-it-looks-at"),
            test("http/client/test_durable.py::test_c03_nor_between_two_attempts"),
        ),
    ),
)

HTTP = (
    Line(
        "H1",
        "PUT with ids of the client's, where possible",
        (
            page("PUT, DELETE and ETags", "how-to/put-delete-and-etags.md"),
            test("http/test_preconditions.py::test_a_client_that_owns_the_id_creates_once"),
        ),
    ),
    Line(
        "H2",
        "POST only where it must be",
        (page("when a key is still wanted", "how-to/put-delete-and-etags.md#when-a-key-is-still-wanted"),),
    ),
    Line(
        "H3",
        "A key is required on every POST with side effects",
        (
            feature("`required`, per route", "reference/http.md#options"),
            page("key-missing", "reference/problems/key-missing.md"),
            test("http/test_wsgi.py::test_k6_without_a_key_the_request_passes_or_is_refused"),
        ),
    ),
    Line(
        "H4",
        "A hash of the payload is kept with the key",
        (
            page("what is compared", "reference/http.md#comparison-of-requests"),
            test("core/test_fingerprint.py::test_the_layout_is_version_name_and_full_digest"),
        ),
    ),
    Line(
        "H5",
        "The same key with another payload is refused",
        (
            page("key-reused", "reference/problems/key-reused.md"),
            test("http/test_wsgi.py::test_f1_f6_another_request_with_the_key_is_refused"),
        ),
    ),
    Line(
        "H6",
        "ETag and If-Match for updates at once",
        (
            feature("conditional requests", "reference/http.md#conditional-requests"),
            test("http/test_preconditions.py::test_of_two_writers_that_have_seen_the_same_one_wins"),
        ),
    ),
    Line(
        "H7",
        "The same key gets the same response",
        (
            page("HTTP in short", "reference/http.md#in-short"),
            test("http/test_wsgi.py::test_r2_r4_r5_r6_the_retry_gets_the_same_response_marked"),
        ),
    ),
    Line(
        "H8",
        "The response is idempotent, not only the action",
        (page("what is stored", "reference/http.md#storage-of-responses"), CONTRACT),
    ),
    Line(
        "H9",
        "It is documented per endpoint",
        (
            feature("OpenAPI", "how-to/http-fastapi.md#what-openapi-shows"),
            test("http/test_fastapi.py::test_e4_openapi_shows_the_header_and_the_errors"),
            test("http/test_fastapi.py::test_r29_openapi_tells_the_window_and_the_fingerprint"),
        ),
    ),
    Line("H10", "An integration test retries", (CONFORMANCE, CONTRACT)),
)

CONCURRENCY = (
    Line(
        "N1",
        "Two at once are assumed",
        (AT_ONCE, test("faults/test_duplicates.py::test_tasks_are_told_that_the_first_is_running")),
    ),
    Line(
        "N2",
        "A unique constraint decides",
        (page("schema", "reference/stores.md#postgresql-schema"), UNIQUE),
    ),
    Line(
        "N3",
        "A lock where that isn't enough",
        (
            page("advisory locks", "decisions/0004-advisory-lock-gate-in-postgresql.md"),
            test("faults/test_mysql.py::test_a_duplicate_waits_for_no_lock_and_spoils_nothing"),
        ),
    ),
    Line(
        "N4",
        "There is an in-progress state",
        (page("states", "reference/states.md"), page("in-progress", "reference/problems/in-progress.md"), AT_ONCE),
    ),
    Line(
        "N5",
        "Check-then-insert counts as a race",
        (
            page("conditions on every write", "explanation/how-it-works.md#conditions-on-every-write"),
            test("protocol/test_mutants.py::test_a_claim_overwrites_what_is_there"),
        ),
    ),
    Line("N6", "Deduplication is in the effect's transaction", (TRANSACTION, JOINED, TOGETHER)),
    Line(
        "N7",
        "One transaction can claim",
        (
            feature("`claim(tx=)`", "reference/api.md#claim"),
            JOINED,
            test("faults/test_mysql.py::test_fifty_transactions_at_once"),
        ),
    ),
    Line(
        "N8",
        "Concurrent retries are tested",
        (RETRIED, CRASHED, test("faults/test_duplicates.py::test_threads_that_wait_get_the_first_result")),
    ),
    Line(
        "N9",
        "Fencing tokens where there are several workers",
        (
            page("fencing tokens", "explanation/fencing-tokens.md"),
            feature("fenced writes of a lease", "how-to/leases.md#fenced-writes"),
            test("faults/test_clocks.py::test_a_worker_stopped_beyond_its_lease_is_fenced"),
            test("leases/test_fences.py::test_rows_refuse_a_stopped_holder"),
        ),
    ),
    Line(
        "N10",
        "No cache is the judge",
        (
            page("a cache decides nothing", "decisions/0009-a-cache-decides-nothing.md"),
            test("layered/test_layered.py::test_a_claim_is_decided_by_the_truth_alone"),
        ),
    ),
)

TOLD = test("patterns/test_patterns.py::test_patterns_tell_the_loser")

DATABASE = (
    Line("B1", "Constraints first", (page("schema", "reference/stores.md#postgresql-schema"), UNIQUE)),
    Line("B2", "Upsert by business key rather than by surrogate id", (feature("`upsert`", PATTERNS), TOLD)),
    Line(
        "B3",
        "Set, don't increment",
        (feature("`update_if`, `insert_once`", PATTERNS), check("`retrysafe scan`: RS301", "how-to/scan.md"), TOLD),
    ),
    Line(
        "B4",
        "No counters without deduplication",
        (TRANSACTION, test("faults/test_kills.py::test_killed_workers_charge_once_in_a_transaction")),
    ),
    Line("B5", "The last sequence number applied is stored", (NEWER, test(f"{HANDLED}test_the_latest_wins"))),
    Line(
        "B6",
        "Writes are guarded by greater-than",
        (
            page(
                "the check and the write must be one",
                "how-to/put-delete-and-etags.md#the-check-and-the-write-must-be-one",
            ),
            NEWER,
            test(f"{HANDLED}test_strict_sequences_wait_for_what_is_missing_and_are_parked_if_it_does_not_come"),
        ),
    ),
    Line("B7", "Records are beside the state", (page("which store when", "explanation/which-store.md"), TRANSACTION)),
    Line(
        "B8",
        "It is defined how long records are kept",
        (
            WINDOWS,
            page("sweep and archive", "how-to/sweep-and-archive.md"),
            test("boundary/test_terms.py::test_result_and_key_have_separate_clocks"),
        ),
    ),
    Line("B9", "One transaction binds both", (feature('`effects="transactional"`', BOUNDARY), TOGETHER, JOINED)),
    Line("B10", "Unique violations are handled, not stumbled over", (UNIQUE,)),
)

CONSUMING = (
    Line(
        "M1",
        "At least once is assumed, whatever the broker says",
        (
            INBOX,
            page('why not "exactly once"', "explanation/unknown-outcomes.md#why-not-exactly-once"),
            test(f"{CONSUMED}test_a_storm_of_duplicates_is_applied_once"),
        ),
    ),
    Line(
        "M2",
        "Every consumer that writes has an inbox",
        (
            INBOX,
            check("`retrysafe scan`", "how-to/scan.md#rs401-a-consumer-without-an-inbox-repeats-its-effects"),
            test(f"{HANDLED}test_two_consumers_each_handle_a_message_and_one_name_is_given_once"),
        ),
    ),
    Line(
        "M3",
        "The id is inserted before any effect",
        (
            INBOX,
            test(f"{HANDLED}test_a_message_that_another_consumer_handles_comes_again_and_counts_no_attempt"),
        ),
    ),
    Line(
        "M4",
        "One transaction for id and effect",
        (INBOX, test(f"{HANDLED}test_the_write_and_the_record_commit_together_on_every_store")),
    ),
    Line(
        "M5",
        "The message id is unique",
        (INBOX, test(f"{HANDLED}test_one_id_with_another_payload_is_a_dead_letter_of_its_own")),
    ),
    Line(
        "M6",
        "It is settled how long the inbox remembers",
        (
            check("a window shorter than the broker redelivers is refused", "how-to/inbox.md#a-subscription"),
            test("messaging/test_subscription.py::test_a_window_shorter_than_the_broker_redelivers_is_refused"),
        ),
    ),
    Line(
        "M7",
        "A hit is logged as normal",
        (page("events", "reference/events.md"), test("observing/test_metrics.py::test_a_replay")),
    ),
    Line(
        "M8",
        "A redelivery is no bug",
        (INBOX, test("messaging/test_subscription.py::test_a_storm_of_duplicates_is_applied_once_and_in_order")),
    ),
    Line(
        "M9",
        "The deduplication key of each type of event is documented",
        (
            page("its source and id, for each consumer apart", "how-to/inbox.md"),
            page("what makes two webhooks one event", "how-to/receive-webhooks.md#the-providers"),
            test(f"{HANDLED}test_messages_of_two_sources_may_have_one_id"),
        ),
    ),
    Line(
        "M10",
        "A replay with duplicates is tested",
        (
            test("pipeline/test_pipeline.py::test_every_order_is_applied_once_and_in_order_whoever_is_killed"),
            test("webhooks/test_receiver.py::test_one_event_has_one_effect_however_it_is_delivered"),
        ),
    ),
)

PUBLISHING = (
    Line(
        "P1",
        "The outbox row is in the transaction of the state's change",
        (OUTBOX, test("messaging/test_outbox.py::test_a_message_goes_with_the_work_that_is_rolled_back")),
    ),
    Line("P2", "Rows are never changed", (OUTBOX,)),
    Line(
        "P3", "Whether they were published stands apart", (RELAY, test(f"{RELAYED}test_published_messages_can_be_kept"))
    ),
    Line(
        "P4",
        "The relay may publish twice",
        (page("when a message leaves twice", "how-to/relay.md#when-a-message-leaves-twice"), SAME_ID),
    ),
    Line("P5", "The relay retries with back-off", (RELAY, test(f"{RELAYED}test_a_message_waits_and_its_lane_with_it"))),
    Line(
        "P6",
        "Errors of publishing are kept",
        (DEAD_LETTERS, test("messaging/test_operating.py::test_dead_letters_are_found_and_redriven")),
    ),
    Line(
        "P7",
        "Lag is a metric of its own",
        (
            page("metrics", "reference/events.md#metrics"),
            test("messaging/test_operating.py::test_events_tell_what_left_and_what_did_not"),
        ),
    ),
    Line(
        "P8",
        "Change data capture only when polling is stable",
        (
            feature("`Relay(cdc=)`", "how-to/cdc.md"),
            test("messaging/test_cdc.py::test_relays_are_switched_over_in_both_directions_under_load"),
        ),
    ),
    Line("P9", "Payloads have versions", (OUTBOX, test("messaging/test_outbox.py::test_every_attribute_is_written"))),
    Line(
        "P10",
        "Every event has a stable id",
        (feature("`key_for(…)`", "how-to/call-an-external-api.md"), SAME_KEYS, OUTBOX, SAME_ID),
    ),
)

STREAM = (
    Line(
        "S1",
        "Where it commits is settled first",
        (LEDGER, KAFKA, test(f"{SPANS}test_a_process_that_is_killed_leaves_both_or_neither")),
    ),
    Line(
        "S2",
        "State and output commit together where they can",
        (
            KAFKA,
            test("messaging/test_kafka_transactions.py::test_state_and_offsets_go_together"),
            test("messaging/test_kafka_transactions.py::test_a_process_is_killed_between_any_two_calls"),
        ),
    ),
    Line(
        "S3",
        "Sinks are idempotent where they can't",
        (LEDGER, test(f"{SPANS}test_a_span_is_written_once_and_what_overlaps_is_left_out")),
    ),
    Line(
        "S4",
        "The sink knows the sequence",
        (LEDGER, test(f"{SPANS}test_input_that_was_never_written_is_missed")),
    ),
    Line(
        "S5",
        "A restart computes the same",
        (COMPUTES, test("streams/test_engines.py::test_flink_that_was_killed_goes_on_from_its_checkpoint")),
    ),
    Line("S6", "No wall clock and no chance in the logic", (COMPUTES,)),
    Line("S7", "Keys of ordering are stable", (feature("`Outbox.add(key=)`", "how-to/outbox.md"), COMPUTES)),
    Line(
        "S8",
        "Replays are expected",
        (LEDGER, test("messaging/test_kafka_transactions.py::test_a_group_that_is_ahead_of_the_topic_repeats_nothing")),
    ),
    Line(
        "S9",
        "Deduplication is checked on large replays",
        (test("streams/test_engines.py::test_a_killed_job_that_runs_again_writes_each_number_once"),),
    ),
    Line(
        "S10",
        'The limits of "exactly once" are written down',
        (
            page("when code can still run twice", "explanation/when-code-can-still-run-twice.md"),
            page('why not "exactly once"', "explanation/unknown-outcomes.md#why-not-exactly-once"),
            page(
                "what Kafka's transactions do not do",
                "how-to/kafka-transactions.md#what-it-costs-and-what-it-does-not-do",
            ),
        ),
    ),
)

LOADS = feature("`Loads`", "how-to/loads.md")
STRATEGIES = "how-to/loads.md#other-ways-to-write"
WINDOW = feature("`Loads.window`", "how-to/loads.md#only-what-is-new-windows")

BATCHES = (
    Line(
        "E1",
        "Every run can be replayed",
        (LOADS, test(f"{LOADED}test_loads"), test(f"{LOADED}test_killed_at_every_boundary")),
    ),
    Line("E2", "Overwrite by partition", (feature('`strategy="overwrite"`', STRATEGIES), test(f"{LOADED}test_loads"))),
    Line("E3", "Stage, then swap", (feature("`check=`, before the commit", STRATEGIES), test(f"{LOADED}test_loads"))),
    Line("E4", "Merge by business key", (feature("`Merge`", STRATEGIES), test(f"{LOADED}test_loads"))),
    Line("E5", "Watermarks and late data", (WINDOW, test(f"{LOADED}test_a_window_moves_with_its_load"))),
    Line("E6", "Overlap only where loads are idempotent", (WINDOW, test(f"{LOADED}test_a_window_moves_with_its_load"))),
    Line(
        "E7",
        "No two runs on one partition",
        (
            feature("`Boundary.lease` of the partition", "how-to/leases.md"),
            test("leases/test_named_lease.py::test_a_lease_has_one_holder_whose_token_is_the_highest"),
        ),
    ),
    Line(
        "E8",
        "Checkpoints are durable",
        (
            feature("`claim.step`", "how-to/steps.md"),
            test("steps/test_runs.py::test_a_checkout_killed_at_every_pair_of_boundaries_does_each_step_once"),
        ),
    ),
    Line("E9", "A backfill is tried on a slice first", (page("backfill", "how-to/loads.md#a-slice-first"),)),
    Line("E10", "The output names its run", (feature("`loaded_by`", "how-to/loads.md"), test(f"{LOADED}test_loads"))),
)

OPERATION = (
    Line("O1", "A test retries", (RETRIED, CRASHED, test("boundary/test_once.py::test_a_function_runs_once_per_key"))),
    Line(
        "O2",
        "A test retries from two clients",
        (RETRIED, CONFORMANCE, test("http/test_wsgi_servers.py::test_r1_many_at_once_run_once")),
    ),
    Line(
        "O3",
        "A test replays messages",
        (
            feature("`MemoryBroker`", "how-to/inbox.md#a-subscription"),
            test("messaging/test_subscription.py::test_a_storm_of_duplicates_is_applied_once_and_in_order"),
        ),
    ),
    Line(
        "O4",
        "Keys and decisions are logged",
        (
            page("events", "reference/events.md"),
            test("observing/test_logs.py::test_json_of_a_call_its_replay_and_a_mismatch"),
        ),
    ),
    Line(
        "O5",
        "The rate of duplicates is known",
        (page("metrics", "reference/events.md#metrics"), test("observing/test_metrics.py::test_a_replay")),
    ),
    Line(
        "O6",
        "Lag of the outbox, growth of the inbox",
        (
            STATUS,
            check("`retrysafe outbox status`", "reference/commands.md#retrysafe-outbox"),
            check("`retrysafe inbox status`", "reference/commands.md#retrysafe-inbox"),
            test("boundary/test_terms.py::test_memory_lets_go_of_what_is_over"),
        ),
    ),
    Line("O7", "Conflicts of keys raise an alert", (ALERTS, test("observing/test_metrics.py::test_a_mismatch"))),
    Line(
        "O8",
        "Runbooks say how it behaves",
        (
            page("operate keys", "how-to/operate-keys.md"),
            page("settle an unknown outcome", "how-to/settle-an-unknown-outcome.md"),
            test("operating/test_keys_command.py::test_a_stuck_key_is_found_looked_at_and_settled"),
        ),
    ),
    Line(
        "O9",
        "Design reviews look at boundaries",
        (DESCRIBE, test("operating/test_describe_command.py::test_one_boundary_is_described_for_people")),
    ),
    Line(
        "O10",
        "A change of retries reviews the windows",
        (DESCRIBE, WINDOWS, check("`retrysafe doctor --retried-for`", "how-to/doctor.md#what-it-looks-at")),
    ),
)

CHECKLIST: dict[str, tuple[Line, ...]] = {
    "Definitions": DEFINITIONS,
    "Client": CLIENTS,
    "HTTP": HTTP,
    "Concurrency": CONCURRENCY,
    "Database": DATABASE,
    "Consuming messages": CONSUMING,
    "Publishing messages": PUBLISHING,
    "Streams": STREAM,
    "Batch": BATCHES,
    "Operation": OPERATION,
}
