"""A SQLite file that is put in place anew, or deleted, under a running process."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retrysafe import StoreUnavailable
from tests.faults.conftest import Making
from tests.tables import each_row


def _restored(path: Path) -> None:
    copy = path.with_suffix(".copy")
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(copy)) as new:
        old.backup(new)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    copy.replace(path)


@each_row(
    "effects, is_async", [(effects, colour) for effects in ("keyed", "transactional") for colour in (False, True)]
)
async def test_claims_are_in_the_file_that_the_path_names(
    effects: str, is_async: bool, tmp_path: Path, make: Making
) -> None:
    path = tmp_path / f"{effects}{is_async}.db"
    boundary, other = (make(f"sqlite:///{path}", name="pay", effects=effects, shared=True) for _ in range(2))

    async def paid(key: str) -> bool:
        if is_async:
            async with boundary.claim(key) as claim:
                return not claim.replayed
        with boundary.claim(key) as claim:
            return not claim.replayed

    assert await paid("before")
    _restored(path)
    with pytest.raises(StoreUnavailable, match="was replaced"):
        await paid("after")
    assert await paid("after")
    assert not await paid("before")
    moved = path.with_suffix(".moved")
    shutil.copy(path, moved)
    with closing(sqlite3.connect(path)) as direct:
        assert direct.execute("SELECT count(*) FROM retrysafe_records").fetchone() == (2,)
    path.unlink()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="was deleted"):
            await paid("later")
    assert not path.exists()
    await boundary.aclose()
    await other.aclose()
