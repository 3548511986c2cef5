"""The core: decisions, transitions, keys, cancellation, signals."""

from __future__ import annotations

from tests.proving.breaks import Break
from tests.proving.breaks.mutations import always, first, instead, never

ASGI = "tests/http/test_asgi.py"
BROKER_FAULTS = "tests/messaging/test_broker_faults.py"
CANCELLATION = "tests/faults/test_cancellation.py"
CANONICAL = "tests/core/test_canonical.py"
CRASHES = "tests/faults/test_crashes.py"
DUPLICATES = "tests/faults/test_duplicates.py"
DYNAMODB = "tests/faults/test_dynamodb.py"
INBOX = "tests/messaging/test_inbox.py"
KEYS = "tests/core/test_keys.py"
MESSAGES = "tests/faults/test_messages.py"
ONCE = "tests/boundary/test_once.py"
OPERATING = "tests/messaging/test_operating.py"
RELAY_FAULTS = "tests/messaging/test_relay_faults.py"
SQL_FAULTS = "tests/faults/test_sql_faults.py"
TERMS = "tests/boundary/test_terms.py"
TWO_VERSIONS = "tests/faults/test_two_versions.py"

BREAKS: list[Break] = [
    Break(
        "an attempt does not know its own record",
        "protocol.procedures:judge_claim",
        never("attempt"),
        (
            f"{MESSAGES}::test_a_claim_whose_reply_is_lost_is_recognised",
            f"{DYNAMODB}::test_a_lost_takeover_is_recognised_as_ones_own[reply lost]",
        ),
        rows=(2, 14, 44),
    ),
    Break(
        "a lapsed lease is never taken over",
        "protocol.decisions:_LAPSED",
        instead("TAKE", "Decision.BUSY"),
        (f"{CRASHES}::test_dead_before_its_effect_it_is_taken_over_under_a_higher_token[sqlite]",),
        rows=(3,),
    ),
    Break(
        "an external attempt that died is taken over",
        "protocol.decisions:_LAPSED",
        instead("SUSPECT", "Decision.TAKE", at=0),
        (f"{CRASHES}::test_dead_with_an_external_effect_in_doubt_it_is_run_by_nobody[sqlite-charged]",),
        rows=(3, 5),
    ),
    Break(
        "the claim is committed before the effect",
        "protocol.procedures:open_claim",
        first("yield from ask(store.commit())\nyield from ask(store.begin())", "savepoint"),
        (f"{CRASHES}::test_dead_in_its_transaction_it_leaves_neither_effect_nor_record[sqlite]",),
        rows=(4,),
    ),
    Break(
        "a request without an answer is not put again",
        "protocol.requests:ask",
        always("unsent"),
        (f"{MESSAGES}::test_a_request_that_is_lost_is_put_again[claim]",),
        rows=(13, 14),
    ),
    Break(
        "a completion that is there already is not read back",
        "protocol.procedures:is_settled",
        never("token"),
        (f"{MESSAGES}::test_a_completion_whose_reply_is_lost_is_read_back",),
        rows=(14,),
    ),
    Break(
        "work that raised in its own transaction is committed",
        "protocol.outcomes:OUTCOMES",
        instead("_ROLLED_BACK", "_COMPLETE", at=1),
        (f"{SQL_FAULTS}::test_work_that_timed_out_is_rolled_back_although_its_transaction_is_not_aborted",),
        rows=(26,),
    ),
    Break(
        "a cancellation interrupts what must come to its end",
        "cancellation:run_to_completion",
        first("return (await work, None)", "work"),
        (f"{CANCELLATION}::test_cancelled_at_every_step_of_a_whole_operation[sqlite-keyed]",),
        rows=(32, 89),
    ),
    Break(
        "a claim goes on without a connection of its own",
        "backends.permits:Permits.take",
        instead("otherwise()", "KeyError()"),
        (f"{SQL_FAULTS}::TestExhaustedPool::test_a_url[keyed]",),
        rows=(34,),
    ),
    Break(
        "a message without a confirmation is taken for published",
        "protocol.publish_policy:judge",
        instead("DUPLICATE", "PublishStatus.UNKNOWN", at=0),
        (f"{BROKER_FAULTS}::test_the_connection_is_cut_at_every_frame[rabbitmq-frame lost]",),
        rows=(51,),
    ),
    Break(
        "a message that no broker takes is tried for ever",
        "protocol.publish_policy:judge",
        instead("max_attempts", "1 << 60"),
        (f"{OPERATING}::test_a_poisoned_head_is_given_up_and_burns_no_others_attempts[sqlite-None]",),
        rows=(53,),
    ),
    Break(
        "a failing message is tried for ever",
        "protocol.redelivery_policy:after_failure",
        never("finished"),
        (f"{INBOX}::test_a_failing_message_is_tried_so_often_and_then_kept_with_its_last_error[sqlite]",),
        rows=(53,),
    ),
    Break(
        "a message that kills its consumers is tried for ever",
        "protocol.redelivery_policy:crash_pause",
        always("max_crashes"),
        (f"{INBOX}::test_a_message_whose_every_attempt_ended_with_its_process_is_given_up_untried[sqlite]",),
        rows=(53,),
    ),
    Break(
        "NaN and Infinity have a canonical form",
        "protocol.canonical:_no_constant",
        first("return name"),
        (f"{CANONICAL}::test_text_without_one_meaning_is_refused",),
        rows=(67,),
    ),
    Break(
        "of two members with one name the last one counts",
        "protocol.canonical:_unique_members",
        never("members", "pairs"),
        (f"{CANONICAL}::test_text_without_one_meaning_is_refused",),
        rows=(68,),
    ),
    Break(
        "keys are normalised",
        "protocol.keys:parse",
        first("text = unicodedata.normalize('NFC', text)", "LONGEST", at=0),
        (f"{ONCE}::test_unicode_forms_are_two_keys",),
        rows=(69,),
    ),
    Break(
        "the hashes of keys are cut",
        "protocol.keys:Lookup.of",
        instead("digest()", "outer.digest()[:8] + bytes(24)", at=1),
        (f"{KEYS}::test_stored_hashes_stay_as_they_are_for_ever",),
        rows=(70,),
    ),
    Break(
        "another request with the same key is answered like the first",
        "protocol.decisions:decide",
        never("fingerprint", "_agree"),
        (f"{ASGI}::test_f1_f2_another_request_with_the_same_key_is_refused[sqlite]",),
        rows=(73,),
    ),
    Break(
        "the scope is no part of a key's identity",
        "protocol.keys:Lookup.__init__",
        instead("scope", "''"),
        (f"{KEYS}::test_a_tenant_that_guesses_a_key_finds_nothing",),
        rows=(74,),
    ),
    Break(
        "a simultaneous duplicate is told of doubt",
        "protocol.decisions:_BY_STATE",
        instead("BUSY", "Decision.DOUBT"),
        (f"{DUPLICATES}::test_threads_are_told_that_the_first_is_running[sqlite-keyed]",),
        rows=(77,),
    ),
    Break(
        "a tombstone refuses nothing",
        "protocol.decisions:_EXPIRED",
        instead("EXPIRED", "Decision.TAKE"),
        (f"{TERMS}::test_result_and_key_have_separate_clocks",),
        rows=(78,),
    ),
    Break(
        "a worker refuses a schema that is newer than its own",
        "protocol.migrating:require",
        always("version", "needed"),
        (f"{TWO_VERSIONS}::test_a_worker_of_the_version_before_can_be_started_after_the_migration",),
        rows=(83,),
    ),
    Break(
        "SIGTERM ends a relay in the middle of its batch",
        "cli.stopping:end_by_signals",
        instead("hear", "signal.SIG_DFL", at=0),
        (f"{RELAY_FAULTS}::test_a_relay_that_is_told_to_stop_finishes_its_batch[sqlite-15]",),
        rows=(86,),
    ),
]
