"""Real workers that are killed in the middle of a task, stopped for longer than its lease, and woken."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from retrysafe.protocol.redelivery_policy import KILLS
from tests.conftest import served
from tests.tasks.storm import KINDS, storm
from tests.tasks.workers import world
from tests.versions import Alternative

pytestmark = pytest.mark.slow

FRAMEWORKS = [Alternative(kind, kind.partition("-")[0]) for kind in KINDS]


@pytest.mark.every_value
@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_a_task_whose_worker_is_killed_or_stopped_is_charged_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    served(request, "redis")
    served(request, kind.partition("-")[2])
    with world(kind, tmp_path) as shop:
        first = shop.start()
        shop.send("killed")
        shop.begun("killed")
        shop.kill(first)
        shop.start()
        shop.start()
        shop.begun("killed", 2)
        shop.send("stopped")
        zombie = shop.begun("stopped")
        shop.stop(zombie)
        shop.send("beside")
        shop.open("killed", "beside")
        shop.done("killed", "beside")
        os.kill(zombie, signal.SIGCONT)
        shop.open("stopped")
        shop.done("stopped")
        assert {order: shop.charges(order) for order in ("killed", "stopped", "beside")} == {
            "killed": 1,
            "stopped": 1,
            "beside": 1,
        }


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_a_task_is_given_up_by_the_rules_of_one_table(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """An error is tried again by the queue; what kills its workers, and what is in doubt, becomes a dead letter."""
    served(request, "redis")
    served(request, kind.partition("-")[2])
    with world(kind, tmp_path, crashes=2) as shop:
        shop.start()
        shop.start()
        shop.send("fail")
        shop.begun("fail", 2)
        shop.send("crash")
        shop.until(lambda: shop.dead_letters(), "a dead letter")
        assert shop.dead_letters() == [("charge", "crash", {"args": ["crash"], "kwargs": {}}, KILLS)]
        assert len(shop.rows("crash", "began")) == (3 if kind.startswith("celery") else 2)  # the first was not counted
        assert len(shop.rows("fail", "began")) == 2
        assert len({key for _, key in shop.rows("crash", "began")}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_of_kills_charges_each_order_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    served(request, "redis")
    served(request, kind.partition("-")[2])
    with world(kind, tmp_path) as shop:
        assert storm(shop, kills=4, orders=10) == {1: 10}
