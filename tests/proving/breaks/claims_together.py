"""Breaks of claims that share statements."""

from __future__ import annotations

from tests.proving.breaks import Break

LANE = "tests/faults/test_lane.py::"

BREAKS: list[Break] = [
    Break(
        "a statement about many claims has a key twice",
        "backends/sql/drivers/lane.py",
        "elif key in chosen or len(chosen)",
        "elif len(chosen)",
        killed_by=(f"{LANE}test_of_duplicates_one_wins",),
        rows=(16, 25),
    ),
    Break(
        "a claim in a batch is answered by the record of another key",
        "backends/sql/drivers/lane.py",
        '[_answer(query, found.get(query.params["key"])) for query in queries]',
        "[_answer(query, row) for query, row in zip(queries, found.values())]",
        killed_by=(f"{LANE}test_who_is_answered_is_told_of_its_own_key",),
        rows=(16,),
    ),
    Break(
        "a claim whose caller was cancelled is made all the same",
        "backends/sql/drivers/lane.py",
        "            if item.answer.done():  # its caller was cancelled\n                continue\n",
        "",
        killed_by=(f"{LANE}test_who_is_cancelled_in_the_queue_asks_for_nothing",),
        rows=(9,),
    ),
    Break(
        "a lock that one claim meets is the error of all in its statement",
        "backends/sql/drivers/lane.py",
        "if not _has_undone(error):",
        "if True:",
        killed_by=(f"{LANE}test_a_key_that_somebody_holds_up_holds_up_no_other",),
        rows=(27,),
    ),
    Break(
        "what the server cannot take from one claim is refused to all in its statement",
        "backends/sql/drivers/lane.py",
        "        except Exception:  # noqa: BLE001 - it refused the statement, and each query will meet its own error\n"
        "            return [*queries]\n",
        "",
        killed_by=(f"{LANE}test_what_the_server_refuses_is_the_matter_of_one",),
        rows=(27,),
    ),
    Break(
        "a key that another transaction holds holds up all claims of the loop",
        "backends/sql/postgresql.py",
        "set_config('lock_timeout', '100ms', true)",
        "set_config('lock_timeout', '0', true)",
        killed_by=(f"{LANE}test_a_key_that_somebody_holds_up_holds_up_no_other",),
        rows=(27,),
    ),
    Break(
        "who is cut off leaves the queue waiting",
        "backends/sql/drivers/lane.py",
        "            finally:\n                self._next()",
        "            finally:\n                self._is_under_way = False",
        killed_by=(f"{LANE}test_who_is_cancelled_under_way_disturbs_no_other",),
        rows=(9,),
    ),
    Break(
        "a statement that is cancelled before it begins keeps its lane for ever",
        "backends/sql/drivers/lane.py",
        "        self._tasks.discard(task)\n",
        "        self._tasks.discard(task)\n        if task.cancelled():\n            return\n",
        killed_by=(f"{LANE}test_a_statement_that_is_cancelled_before_it_begins_is_the_matter_of_its_own_queries",),
        rows=(9,),
    ),
    Break(
        "who has queued for too long is sent all the same",
        "backends/sql/drivers/lane.py",
        "if item.since < oldest:",
        "if False:",
        killed_by=(f"{LANE}test_who_has_queued_for_too_long_is_told_that_nothing_was_sent",),
        rows=(34,),
    ),
    Break(
        "a terminal write in a batch is not fenced",
        "backends/sql/postgresql.py",
        'AND r.key_hash = w.key AND r.attempt = w.attempt "\n            f"AND r.token = w.token AND',
        'AND r.key_hash = w.key "\n            f"AND',
        killed_by=(f"{LANE}test_a_late_owner_settles_nothing_of_another_attempt_in_a_batch",),
        rows=(15, 17),
    ),
    Break(
        "claims in a batch overwrite what is there",
        "backends/sql/postgresql.py",
        "DO NOTHING RETURNING {columns()}) \"\n            f\"SELECT {columns('f.')}, t.now FROM t, (",
        'DO UPDATE SET attempt = excluded.attempt RETURNING {columns()}) "\n'
        "            f\"SELECT {columns('f.')}, t.now FROM t, (",
        killed_by=(f"{LANE}test_who_loses_to_a_rival_in_the_middle_of_a_batch_is_told_of_the_rival",),
        rows=(16, 25),
    ),
]
