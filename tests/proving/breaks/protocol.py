"""Breaks of the protocol: what stores ask, what programs decide, how claims end."""

from __future__ import annotations

from tests.proving.breaks import Break

BREAKS = [
    Break(
        "a terminal write is not fenced",
        "core/transitions.py",
        "    if (record.attempt, record.token) != (held.attempt, held.token):",
        "    if False:",
        killed_by=(
            "tests/core/test_transitions.py::test_a_late_owner_changes_nothing",
            "tests/stores/test_conformance.py::test_conformance[memory-lapsed_keyed_attempt_is_taken_over_and_fenced]",
        ),
    ),
]
