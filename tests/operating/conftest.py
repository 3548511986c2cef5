"""A place: a store that boundaries fill and operators look into, in a process of their own if they like."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import retrysafe
from retrysafe import Boundary
from retrysafe.admin.operator import Operator
from retrysafe.backends.dynamodb.store import DynamodbStore
from retrysafe.backends.redis.store import RedisStore
from retrysafe.backends.registry import connect
from retrysafe.cli import main
from retrysafe.protocol.records import Record
from tests.conftest import require
from tests.stores import ageing, harnesses

SOURCES = str(Path(retrysafe.__file__).parents[1])


@dataclass
class Done:
    """What a command said."""

    code: int
    out: str
    err: str


@dataclass
class Place:
    """A store as an operator and as a boundary name it, and how time passes there."""

    operators: str
    boundaries: Any
    age: Callable[[bytes, int], None]
    name: str = field(default_factory=lambda: f"place-{secrets.token_hex(8)}")
    opened: list[Any] = field(default_factory=list)

    def boundary(self, **terms: Any) -> Boundary:
        """A boundary of this place, by default one whose effects cannot be recognised."""
        terms = {"effects": "external", "observers": (), **terms}
        made = Boundary(terms.pop("name", self.name), store=self.boundaries, **terms)
        self.opened.append(made)
        return made

    def operator(self, **options: Any) -> Operator:
        """An operator of this place."""
        made = Operator(self.operators, **{"observers": (), **options})
        self.opened.append(made)
        return made

    def record(self, key: str, **named: Any) -> Record:
        """The record of a key of the boundary."""
        operator = self.operator()
        found = operator.show(operator.hash_of(key, **{"boundary": self.name, **named}))
        assert found is not None
        return found

    def elapse(self, key: str, seconds: float) -> None:
        """Let time pass for a key."""
        self.age(self.operator().hash_of(key, boundary=self.name), round(seconds * 1e6))

    def unknown(self, key: str = "K", **terms: Any) -> Record:
        """A key whose outcome is unknown."""
        with pytest.raises(TimeoutError), self.boundary(**terms).claim(key, payload={"amount": 5}):
            raise TimeoutError
        return self.record(key)

    def completed(self, key: str = "K", **terms: Any) -> Record:
        """A key that is completed."""
        with self.boundary(**terms).claim(key, payload={"amount": 5}) as claim:
            claim.result = "first"
        return self.record(key)

    def retry(self, key: str = "K", **terms: Any) -> Any:
        """What a retry gets."""
        with self.boundary(**terms).claim(key, payload={"amount": 5}) as claim:
            if not claim.replayed:
                claim.result = "again"
            return claim.result

    def close(self) -> None:
        for one in self.opened:
            one.close()


def sqlite(path: Path) -> Place:
    url = f"sqlite:///{path / 'store.db'}"
    connect(url)
    return Place(url, url, ageing.age_at(url))


def postgresql(path: Path) -> Place:
    require("postgresql")
    url = harnesses.postgresql_url()
    connect(url).migrate()
    return Place(url, url, ageing.age_at(url))


def asyncpg(path: Path) -> Place:
    place = postgresql(path)
    place.operators = place.operators.replace("postgresql:", "postgresql+asyncpg:", 1)
    return place


def mysql(path: Path) -> Place:
    require("mysql")
    url = harnesses.mysql_url()
    connect(url).migrate()
    return Place(url, url, ageing.age_at(url))


def asyncmy(path: Path) -> Place:
    place = mysql(path)
    place.operators = place.operators.replace("mysql:", "mysql+asyncmy:", 1)
    return place


def redis(path: Path) -> Place:
    require("redis")
    url = harnesses.redis_url()
    return Place(url, url, ageing.age_at(url))


def dynamodb(path: Path) -> Place:
    require("dynamodb")
    url = harnesses.dynamodb_url()
    backend = connect(url)
    backend.migrate()
    backend.close()
    return Place(url, url, ageing.age_at(url))


PLACES: dict[str, Callable[[Path], Place]] = {
    "sqlite": sqlite,
    "postgresql": postgresql,
    "asyncpg": asyncpg,
    "mysql": mysql,
    "asyncmy": asyncmy,
}
if hasattr(RedisStore, "scan"):
    PLACES["redis"] = redis
if hasattr(DynamodbStore, "scan"):
    PLACES["dynamodb"] = dynamodb


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every store that can be operated."""
    made = PLACES[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Place]:
    """A SQLite file, for what does not depend on the store."""
    made = sqlite(tmp_path)
    yield made
    made.close()


Command = Callable[..., Done]


def in_a_process(*arguments: str, given: str = "", **environment: str) -> Done:
    """Run the real command line in a process of its own."""
    command = [sys.executable, "-m", "retrysafe", *arguments]
    environment = {**os.environ, "PYTHONPATH": SOURCES, **environment}
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command line in this process."""

    def run(*arguments: str, **environment: str) -> Done:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(str(stop.code))
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run
