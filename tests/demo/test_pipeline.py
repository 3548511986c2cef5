"""The demo's fourth lane: orders, outbox, relays, a broker, inboxes; what befalls them, and the audit."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace

import pytest

from retrysafe.cli import demo as verb
from retrysafe_demo.audit import Count
from retrysafe_demo.lanes import Lane
from retrysafe_demo.pipeline import shop
from retrysafe_demo.pipeline.audit import Applied, Books, PipelineCount, audit
from retrysafe_demo.pipeline.mishaps import POINTS, SIZES, schedule
from retrysafe_demo.pipeline.running import Pipeline, run
from retrysafe_demo.pipeline.shop import STOCK, Order, Places, intents, path_of
from retrysafe_demo.processes import DemoError
from retrysafe_demo.report import Findings, pipeline_table, pipeline_verdict, write_json
from tests.tables import each_row

NOBODY_DIES = dict.fromkeys(schedule(0), ())
ORDERS = [Order("o1", "ann", "sku-0", 2), Order("o2", "ann", "sku-1", 1), Order("o3", "bob", "sku-0", 3)]
APPLIED = [Applied("o1", "ann", 1), Applied("o3", "bob", 1), Applied("o2", "ann", 2)]
LEFT = {"sku-0": STOCK - 5, "sku-1": STOCK - 1, "sku-2": STOCK, "sku-3": STOCK, "sku-4": STOCK}
GOOD = Books(ORDERS, APPLIED, LEFT, ["o2", "o1", "o3"])


def test_good_books_are_found_good() -> None:
    count = audit(ORDERS, GOOD)
    assert count == PipelineCount(3, 0, 0, 0, 0, 0, 0)
    assert count.kept


@each_row(
    ("books", "breaches"),
    [
        (GOOD._replace(applied=APPLIED[:2]), {"events_lost": 1}),
        (GOOD._replace(mails=["o1", "o2"]), {"events_lost": 1}),
        (GOOD._replace(applied=[*APPLIED, APPLIED[0]]), {"applied_twice": 1}),
        (GOOD._replace(applied=APPLIED[::-1]), {"out_of_order": 1}),
        (GOOD._replace(mails=["o1", "o2", "o3", "o3", "o3"]), {"mails_twice": 1}),
        (GOOD._replace(stock={**LEFT, "sku-0": STOCK - 7}), {"stock_wrong": 1}),
        (GOOD._replace(stock={}), {"stock_wrong": 5}),
        (
            Books(ORDERS[:2], [APPLIED[0], APPLIED[2]], {**LEFT, "sku-0": STOCK - 2}, ["o1", "o2"]),
            {"orders_missing": 1},
        ),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_every_breach_is_counted_as_what_it_is(books: Books, breaches: dict[str, int]) -> None:
    count = audit(ORDERS, books)
    assert count.breaches() == breaches
    assert not count.kept
    assert "BROKE ITS PROMISE" in pipeline_verdict(count)


def test_a_late_duplicate_is_not_also_out_of_order() -> None:
    """The second application is a breach by itself; the first one was in order."""
    assert audit(ORDERS, GOOD._replace(applied=[*APPLIED, APPLIED[0]])).out_of_order == 0


def test_every_process_dies_at_each_of_its_points_as_the_seed_has_it() -> None:
    planned = schedule(7)
    assert planned == schedule(7)
    assert planned != schedule(8)
    assert len(planned) == sum(SIZES.values())
    for (role, _), deaths in planned.items():
        assert {death.point for death in deaths} == set(POINTS[role])


def test_orders_are_the_same_for_a_seed_and_enough_for_every_customer() -> None:
    assert intents(3, 120) == intents(3, 120)
    assert intents(3, 120) != intents(4, 120)
    assert len({order.id for order in intents(3, 120)}) == 120
    assert len({order.customer for order in intents(3, 120)}) == shop.CUSTOMERS


# ------------------------------------------------------------ whole runs


class Watching:
    """Remembers the processes, so that it can be asked whether they are gone; and does something as soon as it can."""

    def __init__(self, then: Callable[[Pipeline], bool] = lambda pipeline: True) -> None:
        self._watched: dict[int, int] = {}
        self._then, self._done = then, False

    def __call__(self, pipeline: Pipeline) -> None:
        for process in set(pipeline.processes) - set(self._watched):
            with suppress(ProcessLookupError):
                self._watched[process] = os.pidfd_open(process)
        self._done = self._done or self._then(pipeline)

    def all_gone(self, at_least: int) -> bool:
        gone = [bool(wait([watched], 60)) for watched in self._watched.values()]
        for watched in self._watched.values():
            os.close(watched)
        return len(gone) >= at_least and all(gone)


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
@pytest.mark.fault(7, 9, 50)
def test_nothing_is_lost_or_applied_twice_while_all_of_them_die(tmp_path: Path) -> None:
    watching, pipeline = Watching(), Pipeline(11, 100, tmp_path / "shop")
    count = run(pipeline, watching)
    assert count.breaches() == {}, pipeline_table(count)
    assert count.orders == 100
    assert 12 <= count.kills <= sum(len(deaths) for deaths in schedule(11).values()) == 18  # some may find nothing left
    assert count.duplicates > 0
    assert pipeline.complaints == []
    assert watching.all_gone(at_least=12)


def doctored(path: str, sql: str) -> None:
    with closing(sqlite3.connect(path, timeout=60)) as file, file:
        file.execute(sql)


@pytest.mark.one_of("runs of the demo", of=3)
@pytest.mark.slow
def test_the_audit_believes_the_tables_and_not_the_workers(tmp_path: Path) -> None:
    def plant(pipeline: Pipeline) -> bool:
        inventory = path_of(pipeline.places.inventory)
        doctored(inventory, "UPDATE stock SET on_hand = on_hand - 1 WHERE sku = 'sku-0'")
        shop.post(pipeline.places.mailbox, "another key", {"order": "order-000001", "to": "somebody"})
        return True

    pipeline = Pipeline(3, 10, tmp_path / "shop", NOBODY_DIES)
    count = run(pipeline, Watching(plant))
    assert count.breaches() == {"stock_wrong": 1, "mails_twice": 1}


@pytest.mark.one_of("runs of the demo", of=3)
@pytest.mark.slow
def test_unfinished_orders_are_lost_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, furnish = SimpleNamespace(monotonic=lambda: 0.0), shop.furnish

    def furnish_badly(places: Places, orders: Sequence[Order]) -> None:
        """Nothing that is published gets to the inventory."""
        furnish(places, orders)
        doctored(str(places.broker), "DELETE FROM bindings WHERE queue = 'inventory'")

    def all_are_taken(pipeline: Pipeline) -> bool:
        """Then the time is over."""
        if pipeline.progress()[0] < 10:
            return False
        clock.monotonic = lambda: 2 * pipeline.deadline
        return True

    monkeypatch.setattr(shop, "furnish", furnish_badly)
    monkeypatch.setattr("retrysafe_demo.pipeline.running.time", clock)
    pipeline = Pipeline(3, 10, tmp_path / "shop", NOBODY_DIES)
    count = run(pipeline, Watching(all_are_taken))
    assert count.events_lost == 10
    assert pipeline.complaints == ["pipeline: it did not come to its end in time"]


@pytest.mark.slow
def test_an_interrupted_pipeline_leaves_no_process_behind(tmp_path: Path) -> None:
    def interrupt(pipeline: Pipeline) -> bool:
        raise KeyboardInterrupt

    watching = Watching(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(Pipeline(3, 10, tmp_path / "shop"), watching)
    assert watching.all_gone(at_least=7)


def killed(process: int) -> None:
    watched = os.pidfd_open(process)
    os.kill(process, signal.SIGKILL)
    wait([watched])
    os.close(watched)


@pytest.mark.one_of("runs of the demo", of=3)
@pytest.mark.slow
def test_a_process_that_does_not_start_ends_the_pipeline(tmp_path: Path) -> None:
    def rob(pipeline: Pipeline) -> bool:
        for seat in pipeline._seats:
            if seat.name.startswith("mail") and seat.child is not None:
                killed(seat.child.process.pid)
        file = pipeline.places.mailbox.with_name("mail.db")
        for beside in ("-wal", "-shm"):  # of which its pages could be read still
            Path(f"{file}{beside}").unlink(missing_ok=True)
        file.write_bytes(b"this is no database" * 100)
        return True

    watching = Watching(rob)
    with pytest.raises(DemoError, match=r"mail \d of the pipeline does not stay"):
        run(Pipeline(3, 10, tmp_path / "shop", NOBODY_DIES), watching)
    assert watching.all_gone(at_least=7)


# ------------------------------------------------------------ what is said of it


def findings(count: PipelineCount | None) -> Findings:
    lanes = {lane: Count(1, 1, 0, 0, 0, 0, 0) for lane in Lane}
    return Findings(3, lanes, 0, 1.0, pipeline=count)


def test_the_json_has_the_pipeline_beside_the_other_lanes(tmp_path: Path) -> None:
    write_json(findings(audit(ORDERS, GOOD)._replace(kills=18)), tmp_path / "found.json")
    lanes = json.loads((tmp_path / "found.json").read_text())["lanes"]
    assert lanes.keys() == {"unsafe", "naive", "retrysafe", "pipeline"}
    promised = {"orders": 3, "events_lost": 0, "applied_twice": 0, "out_of_order": 0, "mails_twice": 0}
    assert lanes["pipeline"] == promised | {"stock_wrong": 0, "orders_missing": 0, "kills": 18, "duplicates": 0}
    write_json(findings(None), tmp_path / "found.json")
    assert "pipeline" not in json.loads((tmp_path / "found.json").read_text())["lanes"]


def test_a_broken_promise_of_the_pipeline_is_in_the_exit_code() -> None:
    assert findings(audit(ORDERS, GOOD)).exit_code == 0
    assert findings(audit(ORDERS, GOOD._replace(mails=[]))).exit_code == 1


@each_row(
    ("arguments", "reason"),
    [(["--orders", "5"], "--orders goes with --pipeline"), (["--pipeline", "--orders", "0"], "at least one order")],
)
def test_the_verb_refuses_what_makes_no_sense(
    arguments: Sequence[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    verb.add_to(parser.add_subparsers())
    options = parser.parse_args(["demo", *arguments])
    assert options.run(options) == 2
    assert reason in capsys.readouterr().err


def test_the_mailbox_recognises_a_key(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.mailbox.touch()
    for key in ("one", "two", "one"):
        shop.post(places.mailbox, key, {"order": key})
    assert places.mailbox.read_text().count("\n") == 2
