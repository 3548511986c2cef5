"""Breaks of what `retrysafe scan` and `retrysafe audit` stand on."""

from __future__ import annotations

from tests.proving.breaks import Break

RULES = "tests/scan/test_rules.py"
COMMAND = "tests/scan/test_command.py"
AUDIT = "tests/operating/test_audit_command.py"

BREAKS = [
    Break(
        "scan: an allowance needs no reason",
        "scan/allowances.py",
        "        if not any(a.reason for a in fitting):",
        "        if not fitting:",
        killed_by=(f"{COMMAND}::test_an_allowance_needs_a_finding_and_a_reason[# retrysafe: allow[RS101]-expected0]",),
    ),
    Break(
        "scan: a baseline forgets findings when lines move",
        "scan/findings.py",
        'parts = "\\0".join((one.rule.id, ',
        'parts = "\\0".join((one.rule.id, str(one.line), ',
        killed_by=(f"{COMMAND}::test_a_baseline_survives_lines_that_move",),
    ),
    Break(
        "scan: equal code twice is one finding",
        "scan/findings.py",
        "        alike[parts] += 1",
        "        alike[parts] = 1",
        killed_by=(f"{COMMAND}::test_equal_code_twice_in_one_function_is_two_findings",),
    ),
    Break(
        "scan: a compare-and-set counts as an increment",
        "scan/effects.py",
        "            if fields & _filtered(node.func):",
        "            if False:",
        killed_by=(f"{RULES}::test_increments[compare-and-set]",),
    ),
    Break(
        "audit: a duplicate effect is counted once",
        "admin/reconcile.py",
        "times = times + 1",
        "times = 1",
        killed_by=(f"{AUDIT}::test_each_difference_is_named",),
    ),
    Break(
        "audit: the business database can be written",
        "admin/effect_rows.py",
        "?mode=ro",
        "?mode=rw",
        killed_by=(f"{AUDIT}::test_rows_of_a_query",),
    ),
    Break(
        "audit: bytes are taken for the text that Python shows of them",
        "admin/effect_rows.py",
        "if isinstance(value, bytes | bytearray | memoryview):",
        "if False:",
        killed_by=(f"{AUDIT}::test_a_query_that_cannot_be_used_is_refused_without_a_password[bytes]",),
    ),
    Break(
        "audit: a record of a moment ago is expected to have its row",
        "admin/reconcile.py",
        "one.now - one.updated < settled_for",
        "False",
        killed_by=(f"{AUDIT}::test_records_that_changed_a_moment_ago_are_left_out",),
    ),
]
