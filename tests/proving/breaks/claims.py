"""Breaks of claims: the leases they hold, how those are renewed, and what tells one claim from another."""

from __future__ import annotations

from tests.proving.breaks import Break

HEARTBEAT = "tests/faults/test_heartbeat.py"
SIGNALS = "tests/faults/test_signals.py"
KEY_SPACES = "tests/boundary/test_key_spaces.py"
TRAPS = "tests/boundary/test_traps.py"
TERMS = "tests/boundary/test_terms.py"
REDIS = "tests/faults/test_redis.py"
READING = "tests/boundary/test_reading_results.py"
CANCELLED = f"{HEARTBEAT}::test_whoever_cancels_all_tasks_of_a_loop_ends_no_lease_and_no_heartbeat"
DROPPED = f"{TRAPS}::test_a_claim_that_is_dropped_inside_its_block_is_not_renewed"
ALIKE = f"{TERMS}::test_names_that_compare_equal_and_are_not_have_keys_of_their_own"

BREAKS = [
    Break(
        "a cancellation that redis-py loses while it connects is lost",
        "heeding.py",
        "    before = task.cancelling() if task else 0",
        "    before = 1 << 30",
        killed_by=(
            f"{REDIS}::test_a_cancellation_that_redis_py_loses_while_it_connects_is_heeded[redis]",
            f"{REDIS}::test_a_listener_ends_with_its_loop_although_a_library_swallowed_its_cancellation",
        ),
    ),
    Break(
        "a claim that was never entered lets the work run",
        "claims/claim.py",
        "        if not self._entered:\n            raise self._not_entered()\n        return self._replayed",
        "        return self._replayed",
        killed_by=("tests/mistakes/test_catalogue.py::test_a_mistake[a claim that is not entered]",),
    ),
    Break(
        "each boundary that nobody closes keeps a thread and a connection",
        "claims/lease.py",
        "self._changed.wait(_IDLE if",
        "self._changed.wait(None if",
        killed_by=(
            "tests/faults/test_heartbeat.py::test_the_thread_of_a_heartbeat_ends_when_nothing_was_held_for_long",
        ),
    ),
    Break(
        "work begins under a lease that ended before its claim was answered",
        "claims/held.py",
        "        if not self.is_held():\n            raise InProgress(",
        "        if False:\n            raise InProgress(",
        killed_by=(
            f"{HEARTBEAT}::test_work_is_not_begun_under_a_lease_that_ended_before",
            f"{HEARTBEAT}::test_async_work_is_not_begun_under_a_lease_that_ended_before",
        ),
        rows=(64,),
    ),
    Break(
        "a thread that could not be started is not started for the next lease",
        "claims/lease.py",
        "            self._schedule.arrange_look(lease)\n            if self._thread is None",
        "            self._schedule.arrange_look(lease)\n            self._schedule.arranged(lease)\n"
        "            if self._thread is None",
        killed_by=(f"{HEARTBEAT}::test_a_thread_that_could_not_be_started_is_started_for_the_next_lease",),
    ),
    Break(
        "a renewal that is cancelled ends the heartbeat of its loop",
        "claims/lease.py",
        "        self._beating = None\n        self._set_timer()\n",
        "        if not beat.cancelled():\n            self._beating = None\n            self._set_timer()\n",
        killed_by=(f"{CANCELLED}[False]", f"{CANCELLED}[True]"),
    ),
    Break(
        "a renewal that is cancelled loses its lease",
        "claims/lease.py",
        'failure: Exception | None = StoreUnavailable("the renewal was cancelled")',
        "failure: Exception | None = None",
        killed_by=(f"{CANCELLED}[True]",),
    ),
    Break(
        "closing a loop's heartbeat raises the cancellation of its renewal",
        "claims/lease.py",
        "await asyncio.wait((self._beating,))",
        "await self._beating",
        killed_by=(f"{HEARTBEAT}::test_a_boundary_is_closed_beside_a_renewal_that_is_cancelled",),
    ),
    Break(
        "a lease is renewed after an exception of a signal handler has ended its work",
        "claims/claim.py",
        "            self._held.let_go()\n",
        "            pass\n",
        killed_by=(f"{SIGNALS}::test_whatever_a_signal_interrupts_no_lease_is_renewed_after_its_work",),
    ),
    Break(
        "the lease of a claim that was dropped is renewed",
        "claims/lease.py",
        "            if lease.holder() is None:\n                self.drop(lease)\n                continue\n",
        "",
        killed_by=(f"{DROPPED}[sync-before]", f"{DROPPED}[async-before]"),
    ),
    Break(
        "the lease of a claim that was dropped between two renewals is renewed",
        "claims/lease.py",
        "gone = [lease for lease in self._still_wanted(due) if lease.holder() is None]",
        "gone: list[Lease] = []",
        killed_by=(f"{DROPPED}[sync-behind]", f"{DROPPED}[async-behind]"),
    ),
    Break(
        "a claim that is left twice takes the place of those around it",
        "claims/context.py",
        "        if self._pid == 0:\n            return False\n",
        "",
        killed_by=(f"{TRAPS}::test_a_claim_that_is_left_twice_stays_out_of_the_way_of_others",),
    ),
    Break(
        "scopes whose text compares equal share their keys",
        "claims/plan.py",
        "            scope = str.__str__(scope)\n",
        "            pass\n",
        killed_by=(f"{ALIKE}[scope]",),
    ),
    Break(
        "operations whose text compares equal share their keys",
        "claims/plan.py",
        'str.__str__(keys.check_name(operation, "operation"))',
        'keys.check_name(operation, "operation")',
        killed_by=(f"{ALIKE}[operation]",),
    ),
    Break(
        "an operation that is no text is looked up before it is refused",
        "claims/plan.py",
        'operation = str.__str__(keys.check_name(operation, "operation"))',
        "pass",
        killed_by=(
            f"{TERMS}::test_an_operation_that_is_no_text_is_refused[operation0]",
            f"{TERMS}::test_an_operation_that_is_no_text_is_refused[operation1]",
        ),
    ),
    Break(
        "boundaries of two modules without files share their keys without knowing it",
        "claims/key_spaces.py",
        "return self.module, self.file, self.line",
        'return "", self.file, self.line',
        killed_by=(f"{KEY_SPACES}::test_nor_two_modules_without_files",),
        rows=(74,),
    ),
    Break(
        "boundaries of one file by a URL and by an engine share their keys without knowing it",
        "claims/key_spaces.py",
        "and one.backend.is_same(made.backend) is True",
        "and one.backend is made.backend",
        killed_by=(f"{KEY_SPACES}::test_a_second_boundary_on_the_same_file_under_another_spelling_is_refused[engine]",),
        rows=(74,),
    ),
    Break(
        "every scope that ever was is kept in memory",
        "claims/plan.py",
        "            if len(self._plans) >= _MOST:\n                self._plans.clear()\n",
        "",
        killed_by=(f"{TERMS}::test_tenants_without_number_leave_a_bounded_trace",),
    ),
    Break(
        "every codec that ever was is kept in memory",
        "claims/plan.py",
        "            if len(self._with_codecs) >= _MOST_CODECS:\n                self._with_codecs.clear()\n",
        "",
        killed_by=(f"{TERMS}::test_codecs_without_number_leave_a_bounded_trace",),
    ),
    Break(
        "a result that was withheld is what the codec makes of nothing",
        "claims/outcome.py",
        "    kept_body(stored)\n    try:",
        "    try:",
        killed_by=(f"{READING}::test_a_withheld_result_is_read_by_no_codec",),
    ),
    Break(
        "what a codec raises on a replay passes by as it is",
        "claims/outcome.py",
        '        raise ResultUnreadable(f"The codec failed: {error!r}") from error',
        "        raise",
        killed_by=(f"{READING}::test_whatever_a_codec_raises_on_a_replay_is_one_error[a bug]",),
    ),
    Break(
        "a tenant that is forgotten ends in the scope of all",
        "claims/scopes.py",
        'if returned is None or returned == "":',
        "if returned is None:",
        killed_by=(f"{TERMS}::test_a_scope_that_is_not_known_is_refused[]",),
    ),
]
