"""Workers that are killed all the time, behind the middleware: the ledger stays exact, and replays are byte-equal.

The long run, 10,000 requests with a kill every second, is ``make kills``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import require
from tests.http.killing import WORKERS, every_answers, judge
from tests.tables import each_row

REQUESTS = 600
BETWEEN = 60
"""Answers between two kills."""


@pytest.mark.one_of("servers that are killed under load", of=2)
@pytest.mark.slow
@each_row("bank", [False, True], ids=["transactional", "keyed"])
async def test_on_sqlite_every_order_has_one_line_whoever_is_killed(tmp_path: Path, *, bank: bool) -> None:
    report = await judge(f"sqlite:///{tmp_path / 'shop.db'}", every_answers(BETWEEN), bank=bank, requests=REQUESTS)
    assert report.kills >= WORKERS - 1  # the last that serves is spared
    assert report.replays >= REQUESTS // 3


@pytest.mark.one_of("servers that are killed under load", of=2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("service", "bank"), [("postgresql", False), ("redis", True)], ids=["postgresql-transactional", "redis-keyed"]
)
async def test_on_services_every_order_has_one_line_whoever_is_killed(service: str, *, bank: bool) -> None:
    require(service)
    store = os.environ[f"RETRYSAFE_TEST_{service.upper()}"]
    report = await judge(store, every_answers(BETWEEN), bank=bank, requests=REQUESTS)
    assert report.kills >= WORKERS - 1  # the last that serves is spared
    assert report.replays >= REQUESTS // 3
