"""Keys whose outcome is unknown are a finding of their store, and cost little to count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary
from retrysafe.backends import checks
from retrysafe.backends.checks import gather
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.doctor import Diagnosis, Severity, diagnose
from retrysafe.doctor.stores import examination_of
from tests.conftest import require
from tests.doctor.setups import mysql, postgresql, redis
from tests.doctor.setups.form import Ground, migrated
from tests.stores.ageing import age_at
from tests.stores.harnesses.dynamodb import dynamodb_url


def found(*stores: str) -> dict[str, Diagnosis]:
    """The findings of stores by their ids."""
    return {one.id: one for one in diagnose(stores=stores, within=20)}


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "redis"])
def store(request: pytest.FixtureRequest, ground: Ground) -> Iterator[str]:
    """A sound store without records of others."""
    if request.param == "redis":
        with closing(redis.server(*redis.SOUND)) as server:
            yield server.url
    elif request.param == "postgresql":
        yield postgresql.database(ground)
    elif request.param == "mysql":
        yield mysql.database(ground.mariadb())
    else:
        yield migrated(f"sqlite:///{ground.folder}/shop.db")


def in_doubt(url: str, *keys: str) -> None:
    """Keys whose work raised when its effect may have happened, beside one whose work did not."""
    with closing(Boundary("shop", store=url, effects="external", observers=())) as boundary:
        with boundary.claim(f"beside {keys}") as claim:
            claim.result = 1
        for key in keys:
            with pytest.raises(TimeoutError), boundary.claim(key):
                raise TimeoutError


@pytest.mark.slow
def test_keys_whose_outcome_is_unknown_are_found_and_counted(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_doubt(store, "a")
    assert list(found(store)) == ["store-unknown"]
    only = found(store)["store-unknown"]
    assert (only.severity, only.evidence.partition(":")[0]) == (Severity.WARNING, "1 key is unknown")
    assert "retrysafe keys list --state unknown --store" in only.fix
    in_doubt(store, "b", "c", "d")
    assert found(store)["store-unknown"].evidence.startswith("4 keys are unknown")
    monkeypatch.setattr(checks, "MOST_COUNTED", 2)
    evidence = found(store)["store-unknown"].evidence
    assert evidence.startswith("4 keys" if store.startswith("redis") else "at least 2 keys"), (
        "one page of Redis is looked at"
    )


def test_settled_keys_are_no_finding(tmp_path: Path, command: Any) -> None:
    store = migrated(f"sqlite:///{tmp_path}/shop.db")
    in_doubt(store, "a", "b", "c")
    done = command("keys", "resolve", "--store", store, "--all", "--yes", "--as", "failed", "--reason", "looked it up")
    assert done.code == 0, done.err
    assert found(store) == {}


def test_an_attempt_that_died_in_doubt_is_counted(tmp_path: Path) -> None:
    store = migrated(f"sqlite:///{tmp_path}/shop.db")
    boundary = Boundary("shop", store=store, effects="external", observers=())
    with closing(boundary), boundary.claim("died") as held:
        assert found(store) == {}, "an attempt that is alive is not in doubt"
        age_at(store)(held._require_request().key, 3600 * 10**6)
        assert list(found(store)) == ["store-unknown"]


def test_a_large_table_is_not_read_for_them(tmp_path: Path) -> None:
    """Every statement that counts has a bound, so that it takes no longer on a table of any size."""
    backend = connect(migrated(f"sqlite:///{tmp_path}/shop.db"))
    counting: list[str] = []

    def execute(request: Any) -> Any:
        if "count(*)" in request.sql:
            counting.append(request.sql)
        return backend.client()(request)

    run(gather(backend, examination_of("sqlite"), []), execute)
    backend.close()
    assert len(counting) == 2, "those that are written as unknown, and attempts that died"
    assert all("LIMIT" in sql for sql in counting)


def test_a_table_whose_reads_are_billed_is_not_read_for_them() -> None:
    require("dynamodb")
    backend = connect(dynamodb_url())
    backend.migrate()
    asked: list[str] = []

    def execute(request: Any) -> Any:
        asked.append(request.operation)
        return backend.client()(request)

    run(gather(backend, examination_of("dynamodb"), []), execute)
    backend.close()
    assert asked
    assert "scan" not in asked
