"""Command lines, and the servers whose settings a set-up changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import absent
from tests.doctor.setups import mysql
from tests.doctor.setups.form import Ground
from tests.faults.servers import Cluster, MariaDB, postgresql_programs
from tests.operating.conftest import command

__all__ = ["command"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    programs = postgresql_programs()
    if programs is None:
        absent("no PostgreSQL programs")
    with closing(Cluster(programs)) as made:
        yield made


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    with closing(mysql.server()) as made:
        yield made


@pytest.fixture
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(request, tmp_path)
