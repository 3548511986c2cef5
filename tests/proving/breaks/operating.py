"""Operating: command line, console, Django admin, doctor, scan, sweeping."""

from __future__ import annotations

from tests.proving.breaks import Break
from tests.proving.breaks.mutations import always, instead, never, reworded, skipping, swapped, unwrapped, without

AUDIT_COMMAND = "tests/operating/test_audit_command.py"
BROKERS = "tests/doctor/test_brokers.py"
COMMAND = "tests/doctor/test_command.py"
HOSTILE = "tests/console/test_hostile.py"
KEYS_COMMAND = "tests/operating/test_keys_command.py"
MOUNTING = "tests/console/test_mounting.py"
OFFICE = "tests/office/test_office.py"
OPERATOR = "tests/operating/test_operator.py"
RULES = "tests/scan/test_rules.py"
SCAN_COMMAND = "tests/scan/test_command.py"
STORIES = "tests/console/test_stories.py"
SWEEPING = "tests/faults/test_sweeping.py"

BREAKS: list[Break] = [
    Break(
        "records are removed before they are archived",
        "admin.sweeper:Sweeper._batch",
        swapped("work", "remove"),
        (f"{SWEEPING}::test_records_that_cannot_be_archived_are_not_removed[sqlite]",),
        rows=(81,),
    ),
    Break(
        "audit: the business database can be written",
        "admin.effect_rows:_sqlite",
        reworded("mode=ro", "mode=rw"),
        (f"{AUDIT_COMMAND}::test_rows_of_a_query",),
    ),
    Break(
        "a change is made without its audit",
        "admin.operator:Operator._change",
        skipping("intent"),
        (f"{OPERATOR}::test_without_an_audit_there_is_no_change",),
    ),
    Break(
        "console: a look at a result is not audited",
        "admin.operator:Operator.reveal",
        skipping("revealed"),
        (f"{STORIES}::test_a_stored_result_is_shown_to_who_may_see_it_and_the_look_is_audited[sqlite]",),
    ),
    Break(
        "audit: a duplicate effect is counted once",
        "admin.reconcile:Reconciliation.add_effects",
        reworded("times = times + 1", "times = 1"),
        (f"{AUDIT_COMMAND}::test_each_difference_is_named",),
    ),
    Break(
        "keys: a change takes the first record of a key that it finds",
        "cli.keys:_by_key",
        instead("everywhere", "'sample'"),
        (f"{KEYS_COMMAND}::test_a_key_of_two_operations_is_changed_by_neither_guess_nor_luck",),
    ),
    Break(
        "keys: nothing is asked before the work may run again",
        "cli.opening:ask",
        instead("yes", "True", at=0),
        (f"{KEYS_COMMAND}::test_a_key_is_expired_only_when_that_is_confirmed[sqlite]",),
    ),
    Break(
        "a command line that is shown has the store's password",
        "cli.opening:commands_of",
        never("://"),
        (f"{KEYS_COMMAND}::test_a_hint_has_no_password_and_names_the_variable_that_has_it[postgresql]",),
    ),
    Break(
        "stored text speaks to the terminal",
        "cli.rendering:say",
        unwrapped("plain"),
        (f"{KEYS_COMMAND}::test_stored_values_cannot_speak_to_the_terminal",),
    ),
    Break(
        "console: a visitor behind a proxy of this machine is taken for its user",
        "console.access:Local.__call__",
        never("_FORWARDED"),
        (f"{HOSTILE}::test_a_request_through_a_proxy_is_not_taken_for_the_user_of_this_machine[X-Forwarded-For]",),
    ),
    Break(
        "console: a hidden button's address is open",
        "console.app:Console._answer",
        never("right"),
        (f"{HOSTILE}::test_an_address_takes_its_right_whatever_the_pages_show[expire]",),
    ),
    Break(
        "console: another page may frame it",
        "console.app:_add_headers.sending",
        skipping("setdefault"),
        (f"{HOSTILE}::test_every_answer_has_the_headers_of_a_page_that_is_nobodys_frame",),
    ),
    Break(
        "console: a right that was taken back still confirms a plan",
        "console.bulk:start",
        skipping("require"),
        (f"{HOSTILE}::test_a_right_is_asked_for_again_when_a_plan_is_confirmed",),
    ),
    Break(
        "console: a form without our token is taken",
        "console.security:Forms.check",
        skipping("compare_digest"),
        (f"{HOSTILE}::test_a_token_belongs_to_one_browser_and_one_principal",),
    ),
    Break(
        "console: a plan that was changed after its preview is carried out",
        "console.security:Forms.verify",
        never("compare_digest"),
        (f"{HOSTILE}::test_a_plan_that_was_changed_is_refused",),
    ),
    Break(
        "console: it answers to every name that leads to it",
        "console.security:check_host",
        never("host", "hosts"),
        (f"{HOSTILE}::test_a_name_that_leads_here_from_elsewhere_is_refused[evil.example]",),
    ),
    Break(
        "console: a form that a page of another origin submits is taken",
        "console.security:check_origin",
        never("foreign"),
        (f"{HOSTILE}::test_a_form_of_another_origin_is_refused[headers0]",),
    ),
    Break(
        "console: it is served to other machines without an authenticator",
        "console.serving:serve",
        never("is_loopback"),
        (f"{MOUNTING}::test_it_is_served_to_other_machines_only_with_an_authenticator[10.0.0.7]",),
    ),
    Break(
        "console: what is shown becomes markup",
        "console.templates:_environment",
        instead("autoescape=", "False"),
        (f"{HOSTILE}::test_nothing_that_is_shown_becomes_markup",),
    ),
    Break(
        "admin: a key that was used since it was shown is changed",
        "django.admin:RecordAdmin._change",
        never("_version"),
        (f"{OFFICE}::test_staff_operate_keys_in_the_admin[sqlite]",),
    ),
    Break(
        "admin: an action is carried out for a user without the right to it",
        "django.admin:_action",
        without("right"),
        (f"{OFFICE}::test_staff_operate_keys_in_the_admin[sqlite]",),
    ),
    Break(
        "doctor: a broker's password is printed",
        "doctor.brokers:examine",
        unwrapped("without_password"),
        (f"{BROKERS}::test_a_dead_broker_is_a_finding_without_its_password",),
    ),
    Break(
        "doctor: the metric counts what has a waiver",
        "doctor.events:tell",
        always("waived"),
        (f"{COMMAND}::test_a_metric_has_the_findings_of_each_severity_but_waived_ones",),
    ),
    Break(
        "doctor: a waiver holds for ever",
        "doctor.waivers:_reason",
        always("until"),
        (f"{COMMAND}::test_a_waiver_holds_until_its_day",),
    ),
    Break(
        "scan: an allowance needs no reason",
        "scan.allowances:judge",
        instead("any()", "fitting"),
        (f"{SCAN_COMMAND}::test_an_allowance_needs_a_finding_and_a_reason",),
    ),
    Break(
        "scan: a compare-and-set counts as an increment",
        "scan.effects:Effects._updates",
        never("_filter_fields"),
        (f"{RULES}::test_increments",),
    ),
]
