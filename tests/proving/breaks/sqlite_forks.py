"""Breaks of SQLite files over a fork."""

from __future__ import annotations

from tests.proving.breaks import Break

FILE = "backends/sql/drivers/sqlite_connections.py"
FORKS = "tests/faults/test_sqlite_forks.py::"

BREAKS = [
    Break(
        "a child opens a SQLite file beside what it has inherited of it",
        FILE,
        "                connection.close()\n            _inherited.pop",
        "                pass\n            _inherited.pop",
        killed_by=(f"{FORKS}test_what_a_child_commits_stays_when_its_parent_closes_the_file",),
        rows=(87,),
    ),
    Break(
        "a child opens a SQLite file that its parent was using",
        FILE,
        "    if path in _in_use:\n",
        "    if False:\n",
        killed_by=(f"{FORKS}test_a_child_is_refused_a_file_that_its_parent_was_using",),
        rows=(87,),
    ),
    Break(
        "a fork does not wait for other threads that use a SQLite file",
        FILE,
        "before=_wait_for_others, ",
        "",
        killed_by=(f"{FORKS}test_a_fork_waits_for_the_transactions_of_other_threads",),
        rows=(87,),
    ),
    Break(
        "a child that ends rolls back the transaction that it was forked in",
        FILE,
        "            _keep_for_ever(used)\n",
        "",
        killed_by=(f"{FORKS}test_a_child_that_ends_leaves_the_transaction_that_it_was_forked_in",),
        rows=(87,),
    ),
]
