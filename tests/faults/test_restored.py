"""A store is restored from a backup that was made before some of the work. FAULTS 90."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe import LeaseLost, current
from retrysafe.backends.registry import stores
from tests.faults.conftest import Making
from tests.faults.helpers import ROOT, Bank, completed_elsewhere
from tests.tables import each_row

pytestmark = [pytest.mark.fault(90)]


class Backed:
    """A SQLite file that is backed up and restored while it is in use."""

    def __init__(self, url: str, backup: Path) -> None:
        self.url, self._file, self._backup = url, url.removeprefix("sqlite:///"), backup

    def back_up(self) -> None:
        """Keep it as it is."""
        _copy(self._file, self._backup)

    def restore(self) -> None:
        """Make it what it was."""
        _copy(self._backup, self._file)


def _copy(source: str | Path, target: str | Path) -> None:
    with closing(sqlite3.connect(source)) as given, closing(sqlite3.connect(target)) as taken:
        given.backup(taken)


def _until_after(token: int) -> None:
    """Let SQLite's clock, in milliseconds, pass a token: a restore in real life takes longer than that by itself."""
    while time.time() * 1e6 < token + 1000:
        pass


@pytest.fixture
def backed(sqlite_url: str, tmp_path: Path) -> Backed:
    return Backed(sqlite_url, tmp_path / "backup.db")


def test_forgotten_work_runs_again_with_the_same_derived_key_and_a_higher_token(
    backed: Backed, make: Making, bank: Bank
) -> None:
    """A token is the store's time at the least: no attempt since the restore has one that was given before it."""
    boundary, tokens = make(backed.url), list[int]()

    @boundary.once(key="key")
    def charge(key: str) -> str:
        tokens.append(current().token)
        return bank.charge(current().key_for("bank"))

    @boundary.once(key="key", operation=charge.__qualname__ + " and fails")
    def fail(key: str) -> None:
        tokens.append(current().token)
        raise ZeroDivisionError

    kept = charge("kept")
    with pytest.raises(ZeroDivisionError):
        fail("released")
    backed.back_up()
    lost = charge("lost")
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            fail("released")
    backed.restore()
    _until_after(tokens[-1])

    assert charge("kept") == kept
    assert charge("lost") == lost, "the bank knows the derived key"
    with pytest.raises(ZeroDivisionError):
        fail("released")
    assert list(bank.requests.values()) == [1, 2]
    assert len(bank.charges) == 2
    assert len(tokens) == 8
    assert tokens == sorted(set(tokens))


def test_an_attempt_of_before_the_restore_cannot_settle_what_was_claimed_since(backed: Backed, make: Making) -> None:
    boundary = make(backed.url, lease="60s")
    with boundary.claim("other") as claim:
        claim.result = 1
    backed.back_up()
    with pytest.raises(LeaseLost), boundary.claim("key") as before:
        backed.restore()
        assert completed_elsewhere(boundary, "key", "of since") > before.token
        before.result = "of before"
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "of since")


@each_row("store", stores()[1:], ids=lambda store: store.capabilities.name)
def test_every_store_that_can_be_restored_says_what_that_costs(store: Any) -> None:
    (said,) = [text for text in store.capabilities.cannot_survive if "restore" in text]
    guide = (ROOT / "docs/explanation/which-store.md").read_text(encoding="utf-8")
    assert said in guide.partition(f"\n## {store.capabilities.name}\n")[2].partition("\n## ")[0]
