"""The form of a set-up for the doctor: what is broken in it, how it is made on real servers, what has to be found."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from retrysafe.backends.registry import connect, forget
from retrysafe.protocol.checks import Severity
from tests.conftest import require
from tests.faults.servers import Cluster, MariaDB
from tests.versions import variable_of

Arguments = list[str]
"""The arguments of `retrysafe doctor`."""
ERROR, WARNING, NOTE = Severity


class Ground:
    """The base of set-ups: a folder of the test's own, and servers, which are started when they are asked for."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._request = request
        self.folder = folder

    def service(self, name: str) -> str:
        """The URL of a service that many tests share."""
        require(name)
        return os.environ[variable_of(name)]

    def cluster(self) -> Cluster:
        """A PostgreSQL whose settings may be changed."""
        made: Any = self._request.getfixturevalue("cluster")
        assert isinstance(made, Cluster)
        return made

    def mariadb(self) -> MariaDB:
        """A MariaDB whose settings may be changed."""
        made: Any = self._request.getfixturevalue("mariadb")
        assert isinstance(made, MariaDB)
        return made


Making = Callable[[Ground], AbstractContextManager[Arguments]]
"""Makes a set-up for as long as it is entered, and tells what the doctor is asked."""


class Setup(NamedTuple):
    """A set-up that breaks a promise.

    broken: what is wrong with it, in words.
    made: the statement, setting or line that makes it so, as the documentation shows it.
    finds: the id of the check that has to find it.
    severity: of that finding.
    making: makes it.
    beside: ids of what has to be found too, because it belongs to this.
    name: of its test; by default the id of the check.
    """

    broken: str
    made: str
    finds: str
    severity: Severity
    making: Making
    beside: tuple[str, ...] = ()
    name: str = ""

    @property
    def id(self) -> str:
        """The name of its test."""
        return self.name or self.finds


class Sound(NamedTuple):
    """A set-up of which nothing may be found: what it is, and how it is made."""

    name: str
    what: str
    making: Making


def migrated(url: str) -> str:
    """A store, with its schema."""
    backend = connect(url)
    backend.migrate()
    backend.close()
    forget(backend)
    return url


def unique(prefix: str = "doctor") -> str:
    """A name that no other test uses."""
    return f"{prefix}-{secrets.token_hex(6)}"
