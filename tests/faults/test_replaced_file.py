"""A SQLite file that is put in place anew, or deleted, under a running process."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from retrysafe import Boundary, StoreUnavailable
from tests.faults.conftest import Making
from tests.tables import each_row


def _restored(path: Path) -> None:
    copy = path.with_suffix(".copy")
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(copy)) as new:
        old.backup(new)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    copy.replace(path)


async def _is_new(boundary: Boundary, key: str, *, is_async: bool) -> bool:
    if is_async:
        async with boundary.claim(key) as claim:
            return not claim.replayed
    with boundary.claim(key) as claim:
        return not claim.replayed


@each_row(
    "effects, is_async", [(effects, colour) for effects in ("keyed", "transactional") for colour in (False, True)]
)
async def test_claims_are_in_the_file_that_the_path_names(
    effects: str, is_async: bool, tmp_path: Path, make: Making
) -> None:
    path = tmp_path / f"{effects}{is_async}.db"
    boundary, other = (make(f"sqlite:///{path}", name="pay", effects=effects, shared=True) for _ in range(2))

    paid = partial(_is_new, boundary, is_async=is_async)
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


@each_row("is_async", [False, True])
async def test_an_engine_makes_no_claims_in_a_file_without_a_name(is_async: bool, tmp_path: Path, make: Making) -> None:
    path = tmp_path / f"engine{is_async}.db"
    other = make(f"sqlite:///{path}", name="pay", shared=True)
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}") if is_async else create_engine(f"sqlite:///{path}")
    boundary = make(engine, name="pay", shared=True)

    paid = partial(_is_new, boundary, is_async=is_async)
    with other.claim("before"):
        pass
    assert not await paid("before")
    _restored(path)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="was replaced"):
            await paid("after")
    if isinstance(engine, Engine):
        engine.dispose()
    else:
        await engine.dispose()
    assert await paid("after")
    path.unlink()
    with pytest.raises(StoreUnavailable, match="was deleted"):
        await paid("later")
    assert not path.exists()
    await boundary.aclose()
    await other.aclose()
