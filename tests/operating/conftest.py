"""A place: a store that boundaries fill and operators look into, in a process of their own if they like."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import retrysafe
from retrysafe import Boundary
from retrysafe.admin.operator import Operator
from retrysafe.cli import main
from retrysafe.protocol.records import Record
from tests.conftest import require
from tests.stores import ageing
from tests.stores.harnesses import URLS

SOURCES = str(Path(retrysafe.__file__).parents[1])


def surroundings() -> dict[str, str]:
    """The environment of a program that a test starts: these sources, and no project that another test has set up."""
    return {**os.environ, "PYTHONPATH": SOURCES, "DJANGO_SETTINGS_MODULE": ""}


@dataclass
class Done:
    """The output of a command."""

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
        """Return the answer to a retry."""
        with self.boundary(**terms).claim(key, payload={"amount": 5}) as claim:
            if not claim.replayed:
                claim.result = "again"
            return claim.result

    def close(self) -> None:
        for one in self.opened:
            one.close()


def place_of(kind: str, path: Path) -> Place:
    """A store of a kind, by its URL."""
    service, url_of = URLS[kind]
    if service is not None:
        require(service)
    url = url_of(path)
    return Place(url, url, ageing.age_at(url))


def operated_by(kind: str, scheme: str, path: Path) -> Place:
    """A store whose operators use a driver of their own, for async code."""
    place = place_of(kind, path)
    place.operators = place.operators.replace(f"{kind}:", f"{scheme}:", 1)
    return place


PLACES: dict[str, Callable[[Path], Place]] = {
    **{kind: partial(place_of, kind) for kind in URLS},
    "asyncpg": partial(operated_by, "postgresql", "postgresql+asyncpg"),
    "asyncmy": partial(operated_by, "mysql", "mysql+asyncmy"),
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every store that can be operated."""
    made = PLACES[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Place]:
    """A SQLite file, for what does not depend on the store."""
    made = place_of("sqlite", tmp_path)
    yield made
    made.close()


Command = Callable[..., Done]


def in_a_process(*arguments: str, given: str = "", **environment: str) -> Done:
    """Run the real command line in a process of its own."""
    command = [sys.executable, "-m", "retrysafe", *arguments]
    environment = {**surroundings(), **environment}
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
