"""Claims: leases, scopes, results."""

from __future__ import annotations

from tests.proving.breaks import Break
from tests.proving.breaks.mutations import always, first, instead, never, skipping, uncaught, without

CANCELLATION = "tests/faults/test_cancellation.py"
CLOCKS = "tests/faults/test_clocks.py"
CRASHES = "tests/faults/test_crashes.py"
CRASH_POINTS = "tests/faults/test_crash_points.py"
ENCRYPTION = "tests/boundary/test_encryption.py"
HEARTBEAT = "tests/faults/test_heartbeat.py"
KEY_SPACES = "tests/boundary/test_key_spaces.py"
PROBLEMS = "tests/http/test_problems.py"
SAGAS = "tests/steps/test_sagas.py"
REDIS_KILLS = "tests/faults/test_redis_kills.py"
SQL_FAULTS = "tests/faults/test_sql_faults.py"
TERMS = "tests/boundary/test_terms.py"
UNREADABLE = "tests/faults/test_unreadable.py"

BREAKS: list[Break] = [
    Break(
        "a key is claimed before its attempt has begun",
        "claims.claim:Claim._set_plain_mode",
        first("self._mode_inside(request.key).claim(request)", "present"),
        (f"{CRASHES}::test_dead_before_its_claim_it_is_in_nobodys_way[sqlite-keyed]",),
        rows=(1,),
    ),
    Break(
        "derived keys depend on the attempt",
        "claims.claim:Claim.key_for",
        instead("key", "self._require_request().attempt.encode()"),
        (f"{CRASHES}::test_dead_after_its_effect_the_derived_key_is_the_same[sqlite]",),
        rows=(5,),
    ),
    Break(
        "derived keys of a step depend on the attempt",
        "claims.step:Step.key_for",
        instead("_purpose", "str(self.token)"),
        (f"{SAGAS}::test_a_saga_killed_at_every_pair_of_boundaries_ends_booked_or_undone[sqlite]",),
        rows=(10,),
    ),
    Break(
        "the decision to go back is not written",
        "claims.steps:ClaimSteps._going_back",
        never("decided", at=0),
        (f"{SAGAS}::test_a_saga_killed_at_every_pair_of_boundaries_ends_booked_or_undone[sqlite]",),
        rows=(11,),
    ),
    Break(
        "a lease that could not be renewed is believed in after its end",
        "claims.heartbeat:LeaseTerm.is_held",
        always("until"),
        (f"{HEARTBEAT}::test_a_lease_that_could_not_be_renewed_is_not_held_when_its_time_is_over",),
        rows=(20,),
    ),
    Break(
        "async work goes on without its lease",
        "claims.heartbeat:LeaseTerm.lose",
        skipping("cancel"),
        (f"{HEARTBEAT}::test_async_work_is_stopped_when_its_lease_is_lost[sqlite]",),
        rows=(20,),
    ),
    Break(
        "a transaction that the database wants again is not run again",
        "claims.restarts:restarting",
        uncaught("RetryTransaction"),
        (f"{SQL_FAULTS}::TestSerialization::test_once_runs_the_whole_own_transaction_again",),
        rows=(23, 24),
    ),
    Break(
        "a commit without an answer is not read back",
        "claims.modes:_judge_lost_commit",
        never("mine", "target"),
        (f"{CRASH_POINTS}::test_a_commit_whose_reply_is_lost_is_read_back[]",),
        rows=(28,),
    ),
    Break(
        "leases of threads are not renewed",
        "claims.claim:Claim.__enter__",
        skipping("add"),
        (f"{HEARTBEAT}::test_work_longer_than_its_lease_keeps_its_key[sqlite]",),
        rows=(57,),
    ),
    Break(
        "a worker measures its lease by its wall clock",
        "claims.heartbeat:clock",
        first("return time.time()"),
        (f"{CLOCKS}::test_a_worker_knows_by_itself_that_its_lease_is_over[sqlite-315360000.0]",),
        rows=(61,),
    ),
    Break(
        "work begins under a lease that ended before its claim was answered",
        "claims.held_claim:HeldClaim.refuse_ended",
        never("is_held"),
        (f"{HEARTBEAT}::test_work_is_not_begun_under_a_lease_that_ended_before",),
        rows=(64,),
    ),
    Break(
        "a stored pickle is loaded",
        "claims.codec:JSONCodec.decode",
        first(
            "if stored.media_type == 'application/x-pickle':\n    return __import__('pickle').loads(stored.body)",
            "media_type",
            at=0,
        ),
        (f"{UNREADABLE}::test_a_pickle_is_never_loaded[sqlite]",),
        rows=(71,),
    ),
    Break(
        "a result of a later codec is read as if it were of this one",
        "claims.codec:JSONCodec.decode",
        instead("VERSION", "stored.codec_version", at=0),
        (f"{UNREADABLE}::test_a_result_of_a_later_codec[sqlite]",),
        rows=(72,),
    ),
    Break(
        "an encrypted answer opens in another record",
        "claims.encryption:_associate",
        without("key"),
        (f"{ENCRYPTION}::test_an_answer_that_is_copied_to_another_record_does_not_open[other0]",),
        rows=(74,),
    ),
    Break(
        "boundaries of one file by a URL and by an engine share their keys without knowing it",
        "claims.key_spaces:_others",
        instead("is_same()", "one.backend is made.backend"),
        (f"{KEY_SPACES}::test_a_second_boundary_on_the_same_file_under_another_spelling_is_refused[engine]",),
        rows=(74,),
    ),
    Break(
        "work runs although its claim could not be written",
        "claims.modes:LeaseMode.claim",
        first(
            "try:\n"
            "    put(store.claim(request), client, again=True)\n"
            "except StoreUnavailable:\n"
            "    from retrysafe.protocol.transitions import first_claim\n"
            "    return Won(Ownership(request.key, request.attempt, 1, request.clocks, False), "
            "first_claim(request, 1), None)",
            "judge_claim",
        ),
        (
            f"{SQL_FAULTS}::TestDiskFull::test_it_is_refused_before_the_effect[keyed]",
            f"{REDIS_KILLS}::test_a_full_server_refuses_claims_and_forgets_none",
        ),
        rows=(84,),
    ),
    Break(
        "`except Exception` while claiming misses a cancellation",
        "claims.claim:Claim.__aenter__",
        instead("BaseException", "Exception"),
        (f"{CANCELLATION}::test_cancelled_while_claiming_leaves_no_orphan[sqlite]",),
        rows=(89,),
    ),
    Break(
        "http: a problem shows all of a key's hash, of which derived keys are made",
        "claims.claim:Claim._sign",
        instead("redact()", "self._request.key.hex()"),
        (f"{PROBLEMS}::test_r3_a_problem_of_a_key_shows_its_first_digits_and_no_more[sqlite]",),
    ),
    Break(
        "an answer that an intruder stored in the clear is taken",
        "claims.encryption:Keyring.open",
        always("_reads_unencrypted"),
        (f"{ENCRYPTION}::test_an_answer_of_an_intruder_is_not_taken",),
    ),
    Break(
        "a tenant that is forgotten ends in the scope of all",
        "claims.scopes:scope_text",
        without("returned", at=1),
        (f"{TERMS}::test_a_scope_that_is_not_known_is_refused",),
    ),
]
