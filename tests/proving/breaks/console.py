"""Breaks of the console's defences against hostile browsers, and of what keeps its operations to what was shown."""

from __future__ import annotations

from tests.proving.breaks import Break

HOSTILE = "tests/console/test_hostile.py"
MOUNTING = "tests/console/test_mounting.py"
STORIES = "tests/console/test_stories.py"
OPERATIONS = "tests/console/test_operations.py"

BREAKS = [
    Break(
        "console: a form that a page of another origin submits is taken",
        "console/security.py",
        "    if foreign:",
        "    if False:",
        killed_by=(f"{HOSTILE}::test_a_form_of_another_origin_is_refused[headers0]",),
    ),
    Break(
        "console: a form without our token is taken",
        "console/security.py",
        "if not nonce or not hmac.compare_digest(",
        "if False and not hmac.compare_digest(",
        killed_by=(f"{HOSTILE}::test_a_token_belongs_to_one_browser_and_one_principal",),
    ),
    Break(
        "console: what is shown becomes markup",
        "console/templates.py",
        "autoescape=True",
        "autoescape=False",
        killed_by=(f"{HOSTILE}::test_nothing_that_is_shown_becomes_markup",),
    ),
    Break(
        "console: a hidden button's address is open",
        "console/app.py",
        "            if page.right is not None:",
        "            if False:",
        killed_by=tuple(
            f"{HOSTILE}::test_an_address_takes_its_right_whatever_the_pages_show[{right}]"
            for right in ("expire", "pause", "redrive", "resolve", "reveal")
        ),
    ),
    Break(
        "console: a plan that was changed after its preview is carried out",
        "console/security.py",
        'if not hmac.compare_digest(self._mac("plan"',
        'if False and not hmac.compare_digest(self._mac("plan"',
        killed_by=(
            f"{HOSTILE}::test_a_plan_that_was_changed_is_refused",
            f"{HOSTILE}::test_a_plan_of_another_principal_is_refused",
        ),
    ),
    Break(
        "console: a right that was taken back still confirms a plan",
        "console/bulk.py",
        'visit.require(RIGHTS[plan["verb"]])',
        "pass",
        killed_by=(f"{HOSTILE}::test_a_right_is_asked_for_again_when_a_plan_is_confirmed",),
    ),
    Break(
        "console: it answers to every name that leads to it",
        "console/security.py",
        "    if host not in hosts:",
        "    if False:",
        killed_by=(f"{HOSTILE}::test_a_name_that_leads_here_from_elsewhere_is_refused[evil.example]",),
    ),
    Break(
        "console: another page may frame it",
        "console/app.py",
        "                headers.setdefault(name, value)",
        "                pass",
        killed_by=(f"{HOSTILE}::test_every_answer_has_the_headers_of_a_page_that_is_nobodys_frame",),
    ),
    Break(
        "console: it is served to other machines without an authenticator",
        "console/serving.py",
        "    if access is None and not is_loopback(host):",
        "    if False:",
        killed_by=(f"{MOUNTING}::test_it_is_served_to_other_machines_only_with_an_authenticator[10.0.0.7]",),
    ),
    Break(
        "console: who comes through a proxy of this machine is taken for its user",
        "console/access.py",
        "or not _FORWARDED.isdisjoint(request.headers)",
        "",
        killed_by=(
            f"{HOSTILE}::test_who_comes_through_a_proxy_is_not_taken_for_the_user_of_this_machine[X-Forwarded-For]",
        ),
    ),
    Break(
        "console: operations are looked for under the secret of the application's boundaries",
        "console/operations.py",
        "return Operator(self._console.store, observers=(), encryption=self._console.encryption)",
        'return self._console.operator("")',
        killed_by=(f"{OPERATIONS}::test_a_secret_of_the_boundaries_hides_no_operation[sqlite]",),
    ),
    Break(
        "console: a selection of which the preview came across nothing changes nothing",
        "console/bulk.py",
        "page.records or operator.sample(1).records",
        "page.records",
        killed_by=(f"{OPERATIONS}::test_keys_that_the_preview_did_not_come_across_are_settled[sqlite]",),
    ),
    Break(
        "console: a page with few dead letters is the last one",
        "console/messages.py",
        "more = bool(found) and bool(inbox.page(chosen, found[-1].place, 1))",
        "more = len(found) == ROWS",
        killed_by=(f"{STORIES}::test_large_dead_letters_that_died_at_once_are_all_listed_and_shown[sqlite-inbox]",),
    ),
    Break(
        "console: a look at a result is not audited",
        "admin/operator.py",
        """self._write("intent", {**self._entry("revealed", seen), "reason": reason})""",
        "pass",
        killed_by=(f"{STORIES}::test_a_stored_result_is_shown_to_who_may_see_it_and_the_look_is_audited[sqlite]",),
    ),
    Break(
        "console: what becomes unknown after the preview is settled with the rest",
        "console/bulk.py",
        "wanted._replace(until=until if wanted.until is None else min(until, wanted.until))",
        "wanted",
        killed_by=(f"{STORIES}::test_settle_500_unknown_keys_after_an_outage_of_the_provider[sqlite]",),
    ),
    Break(
        "console: an operation does not look whether it was cancelled",
        "console/operations.py",
        "if cancelled := self._is_cancelled(number):",
        "if cancelled := False:",
        killed_by=(f"{OPERATIONS}::test_a_cancelled_operation_ends_before_its_next_batch[sqlite]",),
    ),
]
