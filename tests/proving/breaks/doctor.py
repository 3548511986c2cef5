"""Breaks of what the doctor must not miss, and of what a lock file must tell."""

from __future__ import annotations

from tests.proving.breaks import Break

SETUPS = "tests/doctor/test_setups.py"
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
        "name, spec = without_password(url), spec_of(url)",
        "name, spec = url, spec_of(url)",
        killed_by=(f"{BROKERS}::test_a_dead_broker_is_a_finding_without_its_password",),
    ),
    Break(
        "doctor: a waiver holds for ever",
        "doctor/waivers.py",
        " and today <= waiver.until",
        "",
        killed_by=(f"{COMMAND}::test_a_waiver_holds_until_its_day",),
    ),
    Break(
        "lock: of two boundaries of one name, one is locked",
        "admin/lock.py",
        'name if number == 1 else f"{name}, number {number}": made',
        "name: made",
        killed_by=(f"{LOCK}::test_boundaries_of_one_name_are_all_locked_in_the_order_of_the_code",),
    ),
    Break(
        "lock: a renamed function is no drift",
        "admin/lock.py",
        "        if name not in new:\n",
        "        if False:\n",
        killed_by=(f"{LOCK}::test_a_change_is_told_by_what_it_does[function]",),
    ),
]
