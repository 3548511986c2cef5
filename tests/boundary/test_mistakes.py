"""Mistakes of the first hour: the error names what to write instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from retrysafe import Boundary, ConfigurationError
from tests.tables import each_row


def boundary() -> Any:
    return Boundary("shop", store="memory://", observers=())


def test_once_without_parentheses() -> None:
    with pytest.raises(ConfigurationError, match=r"@boundary.once\(key='order_id'\) above def charge\("):

        @boundary().once
        def charge(order_id: str) -> None: ...


def test_once_without_a_key() -> None:
    with pytest.raises(ConfigurationError, match=r"once\(\) needs key="):
        boundary().once(operation="charge")


@each_row("path", ["shop.db", "./data/shop.sqlite3", "/var/lib/shop", "shop.sqlite"])
def test_a_path_as_the_store(path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Boundary("shop", store=path)
    assert f"write store='sqlite:///{path}'" in caught.value.detail


def test_a_store_in_place_of_a_boundary(tmp_path: Path) -> None:
    from retrysafe.boundary import require_boundary

    sessions = sessionmaker(create_engine(f"sqlite:///{tmp_path / 'shop.db'}"))
    with pytest.raises(ConfigurationError, match=r"sessionmaker was given in place of a Boundary. Write boundary = "):
        require_boundary(sessions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "url", "extra"),
    [
        ("psycopg", "postgresql://h/d", "psycopg"),
        ("asyncpg", "postgresql+asyncpg://h/d", "asyncpg"),
        ("pymysql", "mysql://h/d", "mysql"),
        ("hiredis", "redis://h/0", "redis"),
    ],
)
def test_a_missing_extra(library: str, url: str, extra: str) -> None:
    program = f"import sys; sys.modules[{library!r}] = None\nimport retrysafe\nretrysafe.Boundary('x', store={url!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"pip install 'retrysafe[{extra}]'" in done.stderr


WITHOUT_GREENLET = """
import sys; sys.modules["greenlet"] = None
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker
from retrysafe import Boundary

engine = create_engine(sys.argv[1])
for store in (engine, sessionmaker(engine)):
    boundary = Boundary("shop", store=store, effects="transactional", shared=True)
    with boundary.claim(f"own {store}") as claim:
        claim.result = 1
with Session(engine) as session, session.begin():
    with boundary.claim("joined", tx=session) as claim:
        claim.result = 1
print("done")
"""


@pytest.mark.slow
def test_sync_sqlalchemy_needs_no_greenlet(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_GREENLET, f"sqlite:///{tmp_path / 'shop.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
