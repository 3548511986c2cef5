"""A rolling upgrade with runs in flight: one release goes on with the rows of another, so their form stays."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, current
from tests.steps.conftest import Make
from tests.steps.kills import Killed

OF_0_1 = Path(__file__).with_name("rows_of_0_1.json")
"""The rows of the run below, as the first release with steps wrote them; bytes in hexadecimal digits."""
BYTES = ("key_hash", "fingerprint", "result")
OF_THE_DAY = ("attempt", "token", "version", "generation", "created", "updated", "lease_until", "expires")
UNLIKE = {*OF_THE_DAY, "tombstone_until", "kept_until"}


def _run(boundary: Boundary) -> Any:
    def charge(amount: int, currency: str) -> dict[str, Any]:
        return {"paid": [amount, currency], "key": current().key_for("bank")}

    def mail() -> None:
        raise Killed

    with boundary.claim("order 1") as claim:
        paid = claim.step("charge", charge, 5, "EUR", undo=print)
        labels = [claim.step("label", str.upper, line, each=line) for line in ("red", "blue")]
        claim.step("mail", mail, effects="external", probe=lambda step: step.committed())
        claim.result = [paid, *labels]
        return claim.result


def _rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        tables = ("retrysafe_records", "retrysafe_steps")
        found = {table: [dict(row) for row in db.execute(f"SELECT * FROM {table}")] for table in tables}
    return {
        table: [
            {
                name: value.hex() if isinstance(value, bytes) else value
                for name, value in row.items()
                if value is not None
            }
            for row in rows
        ]
        for table, rows in found.items()
    }


def _put_back(path: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for table in rows:
            db.execute(f"DELETE FROM {table}")
            for row in rows[table]:
                values = [bytes.fromhex(value) if name in BYTES else value for name, value in row.items()]
                db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", values)


def test_rows_are_those_of_the_first_release_both_ways(on_sqlite: Make, tmp_path: Path) -> None:
    file, old = tmp_path / "store.db", json.loads(OF_0_1.read_text("utf-8"))
    boundary = on_sqlite(name="shop", effects="keyed")
    with pytest.raises(Killed):
        _run(boundary)
    written = _rows(file)
    for table, rows in old.items():
        for one, other in zip(written[table], rows, strict=True):
            differ = {name for name in one | other if one.get(name) != other.get(name)}
            assert differ <= UNLIKE | ({"result"} if one.get("name") == "charge" else set())
    charged = json.loads(bytes.fromhex(old["retrysafe_steps"][0]["result"]))
    for lost in ([], old["retrysafe_steps"][:1]):  # all rows, and a charge that was made and not recorded
        _put_back(file, old | {"retrysafe_steps": [row for row in old["retrysafe_steps"] if row not in lost]})
        assert _run(boundary) == [charged, "RED", "BLUE"], "no label is made again, and a charge has the same key"
