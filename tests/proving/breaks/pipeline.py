"""Breaks of the SQLite file as a broker, and of what the whole pipeline is proved by."""

from __future__ import annotations

from tests.proving.breaks import Break

SQLITE = "tests/messaging/test_sqlite_broker.py"
DEMO = "tests/demo/test_pipeline.py"
PROOF = "tests/pipeline/test_pipeline.py::test_every_order_is_applied_once_and_in_order_whoever_is_killed"
FILE = "messaging/brokers/sqlite/broker.py"

BREAKS = [
    Break(
        "a SQLite file is closed under who is in a transaction",
        "backends/sql/drivers/sqlite_connections.py",
        "        self._closed = True\n        self.pool.close_idle()\n",
        "        for connection in self.pool.lent.values():\n            connection.close()\n",
        killed_by=(f"{SQLITE}::test_the_file_is_not_closed_under_who_is_in_a_transaction",),
    ),
    Break(
        "a consumer of a SQLite file belongs to the event loop that it began in",
        FILE,
        "        if self._loop is not loop:",
        "        if self._loop is None:",
        killed_by=(f"{SQLITE}::test_a_consumer_serves_one_event_loop_after_the_other",),
    ),
    Break(
        "an idle consumer of a SQLite file keeps what it could not give back",
        FILE,
        "                await self._return()\n                await self._change(sql, [(time.time() + self._hold",
        "                await self._change(sql, [(time.time() + self._hold",
        killed_by=(f"{SQLITE}::test_an_idle_consumer_gives_back_what_it_could_not",),
    ),
    Break(
        "what could not be given back to a SQLite file stays with its consumer",
        FILE,
        "        file.executemany(_RETURNED, returned).close()\n        earlier",
        "        earlier",
        killed_by=(f"{SQLITE}::test_what_could_not_be_given_back_is_before_more_is_taken",),
    ),
    Break(
        "a lane of a SQLite file is with several consumers",
        FILE,
        "e.not_before > :now OR (e.holder <> :me AND e.held_until >= :now)",
        "e.not_before > :now",
        killed_by=(f"{SQLITE}::test_a_lane_is_with_one_consumer_in_its_order",),
        rows=(55,),
    ),
    Break(
        "what waits in a SQLite file is overtaken",
        FILE,
        "e.not_before > :now OR (e.holder",
        "(e.holder",
        killed_by=(f"{SQLITE}::test_a_message_that_waits_holds_its_lane_and_no_other",),
        rows=(55,),
    ),
    Break(
        "what a dead consumer held in a SQLite file is held for ever",
        FILE,
        "(d.holder IS NULL OR d.held_until < :now)",
        "d.holder IS NULL",
        killed_by=(f"{SQLITE}::test_what_a_dead_consumer_held_is_handed_out_again_and_what_a_living_one_holds_is_not",),
        rows=(9, 50),
    ),
    Break(
        "a consumer of a SQLite file gives no sign of life",
        FILE,
        "[(time.time() + self._hold, self._queue, self._name)]",
        '[(time.time(), self._queue, "")]',
        killed_by=(f"{SQLITE}::test_what_a_dead_consumer_held_is_handed_out_again_and_what_a_living_one_holds_is_not",),
        rows=(57,),
    ),
    Break(
        "a consumer of a SQLite file gives back what another one has",
        FILE,
        "giver = ? WHERE id = ? AND holder = ?",
        "giver = ? WHERE id = ? AND ? <> ''",
        killed_by=(f"{SQLITE}::test_a_consumer_that_was_taken_for_dead_cannot_give_back_what_another_one_has",),
        rows=(57,),
    ),
    Break(
        "a receive from a SQLite file that is cancelled keeps what it took",
        FILE,
        "                self._returned += [(0.0, self._name, *delivery.tag) for delivery in found]\n",
        "",
        killed_by=(f"{SQLITE}::test_a_receive_that_is_cancelled_keeps_nothing",),
    ),
    Break(
        "a message that no queue takes counts as published",
        FILE,
        'PublishResult(PublishStatus.STALLED, f"no queue takes {envelope.topic!r}")',
        "PublishResult(PublishStatus.ACKED)",
        killed_by=(f"{SQLITE}::test_what_no_queue_takes_is_tried_again",),
    ),
    Break(
        "mails of one message have different keys",
        "demo/retrysafe_demo/pipeline/shop.py",
        'message.claim.key_for("mailbox")',
        "os.urandom(8).hex()",
        killed_by=(f"{DEMO}::test_nothing_is_lost_or_applied_twice_while_all_of_them_die",),
        rows=(9,),
    ),
    Break(
        "an event is written after the transaction of its order",
        "demo/retrysafe_demo/pipeline/shop.py",
        "            outbox.add(tx, TOPIC, order._asdict(), key=order.customer, sequence=number)\n"
        "            written()\n"
        "            claim.result = number\n",
        "            claim.result = number\n"
        "        written()\n"
        "        with sqlite3.connect(path_of(places.orders), timeout=30) as own:\n"
        "            outbox.add(own, TOPIC, order._asdict(), key=order.customer, sequence=number)\n",
        killed_by=(f"{DEMO}::test_nothing_is_lost_or_applied_twice_while_all_of_them_die",),
    ),
    Break(
        "messages are acknowledged when they are received",
        "messaging/subscription/working.py",
        "        for delivery in deliveries:\n            ready = self._lanes.add(delivery)",
        "        self._settled += deliveries\n        self._acking.set()\n"
        "        for delivery in deliveries:\n            ready = self._lanes.add(delivery)",
        killed_by=(f"{PROOF}[rabbitmq]",),
        rows=(9,),
    ),
]
