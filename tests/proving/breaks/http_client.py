"""Breaks of the HTTP client: its keys, its retries, its budget and its journal."""

from __future__ import annotations

from tests.proving.breaks import Break

RULES = "tests/http/client/test_rules.py"
DURABLE = "tests/http/client/test_durable.py"
OUTAGES = "tests/http/client/test_outages.py"
COMMAND = "tests/http/client/test_command.py"
FOLDER = "http/client"

DOUBT = "tests/http/client/test_doubt.py"

BREAKS = [
    Break(
        "new credentials go to another origin",
        f"{FOLDER}/operation.py",
        " and self.host is not None and self.target.at_home\n",
        " and self.host is not None\n",
        killed_by=(f"{DOUBT}::test_c16_new_credentials_are_for_the_callers_origin_alone[httpx]",),
    ),
    Break(
        "what may have arrived is sent to another origin without its key",
        f"{FOLDER}/operation.py",
        "        if self.target.keyed and until is not None:\n",
        "        if self.call.key and until is not None:\n",
        killed_by=(f"{DOUBT}::test_c03_what_may_have_arrived_goes_nowhere_without_its_key[httpx]",),
    ),
    Break(
        "what was done and not seen has not been carried out",
        f"{FOLDER}/operation.py",
        "        if target.method != self.target.method:\n",
        "        if False:\n",
        killed_by=(f"{DOUBT}::test_c16_what_was_done_and_not_seen_is_in_doubt[httpx-303]",),
    ),
    Break(
        "the doubt about one copy goes with the other's answer",
        f"{FOLDER}/driving.py",
        "(result.is_replay or 200 <= result.status < 300)",
        "True",
        killed_by=(f"{DOUBT}::test_c17_a_copy_that_may_have_arrived_is_not_forgotten[Blocking-404]",),
    ),
    Break(
        "what may have arrived is retried at hosts that honour no keys",
        f"{FOLDER}/operation.py",
        "honoured = self.target.keyed and self.call.recognised_until is not None",
        "honoured = True",
        killed_by=(f"{RULES}::test_c05_and_nowhere_else", f"{RULES}::test_c07_statuses_that_are_retried"),
    ),
    Break(
        "what was never sent counts as what may have arrived",
        f"{FOLDER}/results.py",
        "return repeatable or (isinstance(result, Failure) and result.kind is Kind.UNSENT)",
        "return repeatable",
        killed_by=(f"{RULES}::test_c04_what_was_certainly_not_sent_is_retried_without_a_key[httpx-POST]",),
    ),
    Break(
        "a response counts before its last byte",
        f"{FOLDER}/bodies.py",
        "    return keyed if length is None else length <= limit",
        "    return False",
        killed_by=(f"{RULES}::test_c05_an_ambiguous_failure_is_retried_where_the_key_is_honoured[httpx-cuts_body]",),
        rows=(6,),
    ),
    Break(
        "a head that was cut off is a response",
        f"{FOLDER}/bodies.py",
        "    if version != 11 or",
        "    if True or version != 11 or",
        killed_by=(f"{RULES}::test_c05_an_ambiguous_failure_is_retried_where_the_key_is_honoured[requests-cuts_head]",),
        rows=(6,),
    ),
    Break(
        "a server that drips is never given up",
        f"{FOLDER}/over_requests.py",
        "                if self._clock() > end:\n",
        "                if False:\n",
        killed_by=(f"{RULES}::test_c06_a_server_that_drips_is_given_up_at_the_deadline[requests]",),
    ),
    Break(
        "an untrusted certificate is tried again",
        f"{FOLDER}/results.py",
        "            return True",
        "            return False",
        killed_by=(f"{RULES}::test_c06_a_certificate_that_is_refused_is_not_tried_again",),
    ),
    Break(
        "a replayed error is retried",
        f"{FOLDER}/results.py",
        "    if result.is_replay:\n        return Verdict.FINAL\n",
        "",
        killed_by=(f"{RULES}::test_c09_an_error_that_is_replayed_is_final",),
    ),
    Break(
        "every conflict is retried",
        f"{FOLDER}/results.py",
        "    return answer.status == 409 and told",
        "    return answer.status == 409",
        killed_by=(f"{RULES}::test_c07_a_conflict_is_retried_only_if_another_attempt_is_running",),
    ),
    Break(
        "credentials are refreshed for ever",
        f"{FOLDER}/operation.py",
        "        self.refreshed = True\n",
        "",
        killed_by=(f"{RULES}::test_c08_credentials_are_refreshed_once_with_the_same_key[httpx]",),
    ),
    Break(
        "a Retry-After is undercut",
        f"{FOLDER}/policy.py",
        "return max(jitter, retry_after(result, now) or 0.0) if",
        "return min(jitter, retry_after(result, now) or jitter) if",
        killed_by=(f"{RULES}::test_c12_a_retry_after_is_never_undercut",),
    ),
    Break(
        "a date in a Retry-After is compared with our own clock",
        f"{FOLDER}/policy.py",
        "until - (now if served is None else served)",
        "until - now",
        killed_by=(f"{RULES}::test_c12_a_retry_after_is_never_undercut",),
    ),
    Break(
        "the deadline of all attempts is that of none",
        f"{FOLDER}/operation.py",
        "if self.world.clock() + wait >= self.deadline:",
        "if self.world.clock() >= self.deadline:",
        killed_by=(
            f"{RULES}::test_c06_nothing_is_sent_after_the_deadline",
            f"{RULES}::test_c12_beyond_the_deadline_the_answer_is_given_now",
        ),
    ),
    Break(
        "retries cost no budget",
        f"{FOLDER}/budget.py",
        "                self._keep(origin, left)\n",
        "                pass\n",
        killed_by=(f"{OUTAGES}::test_c13_ten_thousand_calls_of_a_host_that_is_down[httpx]",),
    ),
    Break(
        "hedges cost no budget",
        f"{FOLDER}/operation.py",
        "        admitted = not self.is_late and self.budgets.take(address(self.target.url))\n",
        "        self.budgets.take(address(self.target.url))\n        admitted = True\n",
        killed_by=(f"{RULES}::test_c17_a_hedge_is_paid_for",),
    ),
    Break(
        "a hedge's conflict is the result",
        f"{FOLDER}/driving.py",
        "    return isinstance(result, Answer) and (result.is_replay or 200 <= result.status < 300)",
        "    return isinstance(result, Answer)",
        killed_by=(f"{RULES}::test_c17_a_hedge_has_the_same_key_and_its_conflict_is_not_the_result",),
        rows=(77,),
    ),
    Break(
        "another origin sees the key",
        f"{FOLDER}/redirects.py",
        "keyed=target.keyed and not elsewhere and not becomes_get,",
        "keyed=target.keyed and not becomes_get,",
        killed_by=(f"{RULES}::test_c16_another_origin_sees_neither_key_nor_credentials",),
    ),
    Break(
        "another origin sees the credentials",
        f"{FOLDER}/redirects.py",
        "        dropped |= secrets | {name.lower() for name in target.added}\n",
        "        pass\n",
        killed_by=(f"{RULES}::test_c16_another_origin_sees_neither_key_nor_credentials",),
    ),
    Break(
        "a redirect that httpx follows by another method carries the key along",
        f"{FOLDER}/httpx.py",
        "        request.headers.pop(FIELD, None)\n",
        "        pass\n",
        killed_by=(f"{RULES}::test_c16_redirects_that_httpx_follows_carry_the_key_to_no_other_request",),
    ),
    Break(
        "a request is sent before it is in the journal",
        f"{FOLDER}/calling.py",
        "        found = journal.begin(entry, world.wall(), policy.deadline + MARGIN, self._run)\n",
        "        found = entry\n",
        killed_by=(
            f"{DURABLE}::test_c02_the_request_is_in_the_journal_before_its_first_byte_leaves",
            f"{DURABLE}::test_c02_a_client_killed_in_mid_request_resumes_with_its_key[httpx]",
        ),
    ),
    Break(
        "credentials are in the journal",
        f"{FOLDER}/journal.py",
        "if name not in secrets and name not in _MADE_ANEW",
        "if name not in _MADE_ANEW",
        killed_by=(f"{DURABLE}::test_c02_the_request_is_in_the_journal_before_its_first_byte_leaves",),
    ),
    Break(
        "what a living process is at is resumed too",
        f"{FOLDER}/journal.py",
        "            if found is None or self.is_held(found, now):\n",
        "            if found is None:\n",
        killed_by=(
            f"{DURABLE}::test_c02_what_a_living_process_is_at_is_left_alone[httpx]",
            f"{DURABLE}::test_c02_several_processes_resume_each_request_once",
        ),
    ),
    Break(
        "what a dead process held stays held",
        f"{FOLDER}/journal.py",
        " and now < entry.held_until and is_alive(self.path, entry.owner)",
        " and now < entry.held_until",
        killed_by=(f"{DURABLE}::test_c02_a_client_killed_before_the_first_byte_resumes[httpx]",),
    ),
    Break(
        "what ended in doubt leaves the journal",
        f"{FOLDER}/calling.py",
        "            if ending.in_doubt:\n",
        "            if False:\n",
        killed_by=(f"{DURABLE}::test_c02_what_ended_in_doubt_stays_and_what_was_answered_goes",),
    ),
    Break(
        "a request is resumed whose key its host may have forgotten",
        f"{FOLDER}/resuming.py",
        "        if now < entry.recognised_until:\n",
        "        if True:\n",
        killed_by=(f"{COMMAND}::test_list_and_show",),
    ),
    Break(
        "a request is retried whose key its host may have forgotten",
        f"{FOLDER}/operation.py",
        "            return self.world.wall() < until\n",
        "            return True\n",
        killed_by=(f"{DURABLE}::test_c03_nor_between_two_attempts",),
        rows=(78,),
    ),
    Break(
        "another request goes on under a key of the journal",
        f"{FOLDER}/journal.py",
        "            if (found.method, found.url, found.body) != (entry.method, entry.url, entry.body):\n",
        "            if False:\n",
        killed_by=(f"{DURABLE}::test_c02_the_same_key_goes_on_where_it_was",),
        rows=(73,),
    ),
]
