"""Breaks of what the doctor must not miss, and of what a lock file must tell."""

from __future__ import annotations

from tests.proving.breaks import Break

SETUPS = "tests/doctor/test_setups.py"
UNKNOWN_KEYS = "tests/doctor/test_unknown_keys.py"
BROKERS = "tests/doctor/test_brokers.py"
COMMAND = "tests/doctor/test_command.py"
LOCK = "tests/operating/test_lock.py"

BREAKS = [
    Break(
        "doctor: a store that hangs is waited for",
        "doctor/stores.py",
        "ended.get(timeout=within)",
        "ended.get(timeout=60)",
        killed_by=(f"{SETUPS}::test_a_frozen_server_is_a_finding_in_time",),
    ),
    Break(
        "doctor: a broker's password is printed",
        "doctor/brokers.py",
        "name, examination = without_password(url), examination_of(url)",
        "name, examination = url, examination_of(url)",
        killed_by=(f"{BROKERS}::test_a_dead_broker_is_a_finding_without_its_password",),
    ),
    Break(
        "doctor: the metric counts what has a waiver",
        "doctor/telling.py",
        "        if one.waived is None:\n",
        "        if True:\n",
        killed_by=(f"{COMMAND}::test_a_metric_has_the_findings_of_each_severity_but_waived_ones",),
    ),
    Break(
        "doctor: brokers are asked one after the other",
        "doctor/diagnosing.py",
        "ThreadPoolExecutor(MOST_AT_ONCE,",
        "ThreadPoolExecutor(1,",
        killed_by=(f"{BROKERS}::test_brokers_are_asked_side_by_side",),
    ),
    Break(
        "doctor: a window is not compared with what a broker keeps",
        "messaging/brokers/checks.py",
        "if window < longest",
        "if window < 0",
        killed_by=(f"{SETUPS}::test_a_broken_setup_is_found_by_its_check_alone[broker-window on SQS]",),
        rows=(56,),
    ),
    Break(
        "doctor: a waiver holds for ever",
        "doctor/waivers.py",
        " and today <= waiver.until",
        "",
        killed_by=(f"{COMMAND}::test_a_waiver_holds_until_its_day",),
    ),
    Break(
        "doctor: keys whose outcome is unknown are no finding",
        "backends/checks.py",
        "if unknown is None or not unknown.records:",
        "if True:",
        killed_by=(
            f"{UNKNOWN_KEYS}::test_keys_whose_outcome_is_unknown_are_found_and_counted[sqlite]",
            "tests/console/test_stories.py::test_the_doctor_tells_of_unknown_keys_until_they_are_settled[sqlite]",
        ),
    ),
    Break(
        "doctor: unknown keys are counted by reads that are billed",
        "backends/dynamodb/checks.py",
        ", counts_unknown=False",
        "",
        killed_by=(f"{UNKNOWN_KEYS}::test_a_table_whose_reads_are_billed_is_not_read_for_them",),
    ),
    Break(
        "lock: of two boundaries of one name, one is locked",
        "admin/lock.py",
        'name if number == 1 else f"{name}, number {number}": made',
        "name: made",
        killed_by=(f"{LOCK}::test_boundaries_of_one_name_are_all_locked_in_the_order_of_the_code",),
    ),
    Break(
        "lock: a type of an outbox that is gone is no drift",
        "admin/lock.py",
        'sorted(set(old) - declared):\n        yield Drift(where, f"type',
        '():\n        yield Drift(where, f"type',
        killed_by=(f"{LOCK}::test_a_change_is_told_by_what_it_does[type]",),
    ),
    Break(
        "outbox: a type that is not declared is written",
        "messaging/outbox.py",
        "if self.types is not None and name not in self.types:",
        "if False:",
        killed_by=("tests/messaging/test_outbox.py::test_a_type_that_is_not_declared_is_refused",),
    ),
    Break(
        "lock: a renamed function is no drift",
        "admin/lock.py",
        "        if name not in new:\n",
        "        if False:\n",
        killed_by=(f"{LOCK}::test_a_change_is_told_by_what_it_does[function]",),
    ),
]
