"""Breaks of SQLite files over a fork, and of what has a thread of its own."""

from __future__ import annotations

from tests.proving.breaks import Break

FILE = "backends/sql/drivers/sqlite_connections.py"
FORKS = "tests/faults/test_sqlite_forks.py::"
FULL = "tests/faults/test_full_executor.py::"
BROKER = "messaging/brokers/sqlite/broker.py"

BREAKS = [
    Break(
        "a child inherits idle connections to a SQLite file",
        FILE,
        "        one.close_idle()\n",
        "        pass\n",
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
        "a child claims in a connection of its caller's to a SQLite file that its parent was using",
        "backends/sql/drivers/sqlite.py",
        "    refuse_connection(connection)\n",
        "",
        killed_by=(f"{FORKS}test_a_connection_of_its_own_does_not_help_a_child_that_is_refused[sqlite_connection]",),
        rows=(87,),
    ),
    Break(
        "a child claims in a transaction of an engine on a SQLite file that its parent was using",
        "backends/sql/drivers/sqlalchemy.py",
        "        refuse_connection(driver)\n",
        "        pass\n",
        killed_by=(
            f"{FORKS}test_a_connection_of_its_own_does_not_help_a_child_that_is_refused[sqlalchemy_connection]",
        ),
        rows=(87,),
    ),
    Break(
        "a child declares queues in a SQLite file that its parent was using",
        BROKER,
        "    refuse_beside_parent(os.path.realpath(path))\n",
        "",
        killed_by=(f"{FORKS}test_a_child_that_is_refused_declares_no_queues",),
        rows=(87,),
    ),
    Break(
        "a fork does not wait for other threads that use a SQLite file",
        FILE,
        "    while any(one.is_used(beside=me) for one in _known()) and",
        "    while False and",
        killed_by=(f"{FORKS}test_a_fork_waits_for_the_transactions_of_other_threads",),
        rows=(87,),
    ),
    Break(
        "threads go on to use a SQLite file while a fork waits for them",
        FILE,
        "        while (forked := _fork_beside(use.thread)) is not None:\n",
        "        while (forked := _fork_beside(use.thread)) is not None and False:\n",
        killed_by=(f"{FORKS}test_a_fork_finds_its_moment_beside_threads_that_claim_without_a_pause",),
        rows=(87, 88),
    ),
    Break(
        "who is in a transaction waits for a fork that waits for it",
        FILE,
        "any(one.is_used(by=use.thread) for one in _known()) or not",
        "not",
        killed_by=(f"{FORKS}test_who_is_in_a_transaction_comes_to_its_end_beside_a_fork",),
        rows=(87, 88),
    ),
    Break(
        "a connection that an exception took out of use is in use for ever",
        FILE,
        "        self.mine: ref[Lent] = ref(self)\n",
        "        self.mine = lambda: self\n",
        killed_by=(f"{FORKS}test_a_use_that_an_exception_cut_off_is_none",),
        rows=(87,),
    ),
    Break(
        "a fork holds a lock of executors while it waits for a loop's transaction",
        FILE,
        "import concurrent.futures.thread  # noqa",
        "# noqa",
        killed_by=(f"{FORKS}test_a_fork_finds_its_moment_beside_a_busy_event_loop",),
        rows=(87,),
    ),
    Break(
        "a child that ends rolls back the transaction that it was forked in",
        FILE,
        "            _keep_for_ever(kept)\n",
        "",
        killed_by=(f"{FORKS}test_a_child_that_ends_leaves_the_transaction_that_it_was_forked_in",),
        rows=(87,),
    ),
    Break(
        "an async claim on SQLite commits behind the plain code that waits for it",
        "backends/sql/drivers/sqlite_async.py",
        "await self._aside.run(partial(self._inner, request))",
        "await asyncio.to_thread(self._inner, request)",
        killed_by=(f"{FULL}test_a_claim_commits_although_plain_code_waits_for_it",),
    ),
    Break(
        "plain handlers keep a consumer of the SQLite broker from showing that it is alive",
        BROKER,
        "run_to_completion(self._thread.run(do))",
        "run_to_completion(asyncio.to_thread(do))",
        killed_by=(f"{FULL}test_messages_are_published_taken_and_settled",),
        rows=(50,),
    ),
    Break(
        "plain handlers keep a client of MQTT from connecting",
        "messaging/brokers/mqtt/connecting.py",
        "await thread.run(partial(made._connect, patience, bool(client_id), keep, receive))",
        "await asyncio.to_thread(made._connect, patience, bool(client_id), keep, receive)",
        killed_by=(f"{FULL}test_a_client_of_mqtt_connects",),
        rows=(50,),
    ),
    Break(
        "a broker's file is looked for where the process has gone",
        BROKER,
        "        self._path = os.path.realpath(path)\n",
        "        self._path = path\n",
        killed_by=(
            "tests/messaging/test_sqlite_broker.py::test_a_relative_path_is_the_same_file_wherever_the_process_goes",
        ),
    ),
    Break(
        "a thread of one's own is expected in a child",
        "threads.py",
        "self._thread is None or not self._thread.is_alive()",
        "self._thread is None",
        killed_by=("tests/core/test_threads.py::test_a_child_begins_its_own",),
        rows=(87,),
    ),
    Break(
        "a thread of one's own stays when nobody has it",
        "threads.py",
        "            finalize(self, self._calls.put, None)\n",
        "",
        killed_by=("tests/core/test_threads.py::test_it_ends_when_nobody_has_it",),
    ),
]
