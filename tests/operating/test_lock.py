"""The lock file: a change that orphans keys is told, by what it does; what is new is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrysafe import Boundary, ConfigurationError
from retrysafe.admin.describe import describe
from tests.operating.conftest import SOURCES

MODULE = """
from starlette.applications import Starlette
from starlette.routing import Route
from retrysafe import Boundary
from retrysafe.http.starlette import idempotent
from retrysafe.messaging import Inbox, Outbox

payments = Boundary("payments", store="sqlite:///shop.db", window="120h", scope="eu")
messages = Boundary("messages", store="sqlite:///shop.db", effects="transactional")

@payments.once(key="order", payload="amount")
def charge(order, amount): ...

outbox = Outbox("sqlite:///shop.db", source="/shop")

@Inbox(messages).handler("mailing")
def mail(message): ...

async def pay(request): ...

app = Starlette(routes=[Route("/payments", idempotent(payments)(pay), methods=["POST"])])
"""


def described(tmp_path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "shop.py").write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-B", "-m", "retrysafe", "describe", "shop", "--lock", "shop.lock", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    done = described(tmp_path, MODULE)
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_what_is_unchanged_or_new_is_no_drift(locked: Path) -> None:
    assert set(json.loads((locked / "shop.lock").read_text())["boundaries"]["messages"]["operations"]) == {"mailing"}
    assert described(locked, MODULE, "--check").stdout == "no drift\n"
    new = f'{MODULE}\nBoundary("new", store="sqlite:///shop.db")\n'
    assert described(locked, new, "--check").returncode == 0


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("def charge(", "def charge_card(", "give that operation='shop.charge'"),
        ('scope="eu"', 'scope="us"', "another scope"),
        ('Boundary("payments"', 'Boundary("payment"', "boundary payments: is gone or renamed"),
        ('window="120h"', 'window="24h"', "window was 432000 s, is 86400 s"),
        ('key="order"', 'key="amount"', "key was order, is amount"),
        ('payload="amount"', "payload=None", "payload was amount, is None"),
        ('"mailing"', '"mails"', "operation mailing of boundary messages: is gone"),
        ('"/payments"', '"/charges"', "route POST /payments: is gone or renamed"),
        ("idempotent(payments)(pay)", "pay", "was guarded and is not any more"),
        ('source="/shop"', 'source="/store"', "outbox /shop: is gone or renamed"),
    ],
    ids=["function", "scope", "boundary", "window", "key", "payload", "consumer", "route", "guard", "outbox"],
)
def test_a_change_is_told_by_what_it_does(before: str, after: str, told: str, locked: Path) -> None:
    assert MODULE.count(before) == 1
    done = described(locked, MODULE.replace(before, after), "--check")
    assert done.returncode == 1, done.stderr
    assert told in done.stdout


def test_a_lock_that_cannot_be_read(tmp_path: Path) -> None:
    assert described(tmp_path, MODULE, "--check").returncode == 2
    (tmp_path / "shop.lock").write_text("{}")
    assert "not a lock file of version 1" in described(tmp_path, MODULE, "--check").stderr


# ------------------------------------------------------------ declarations


def test_a_declaration_is_described() -> None:
    boundary = Boundary("declared", store="memory://", observers=())

    @boundary.once(key="k", operation="charge", safety="neither", side_effects=["a charge", "a mail"])
    def charge(k: str) -> None:
        """Charges an order.

        More.
        """

    @boundary.once(key="k", operation="look", sentence="Looks at an order.", safety="safe")
    def look(k: str) -> None: ...

    said = {one["operation"]: one for one in describe(boundary)["operations"]}
    assert said["charge"]["sentence"] == "Charges an order."
    assert (said["charge"]["safety"], said["charge"]["side effects"]) == ("neither", "a charge, a mail")
    assert (said["look"]["sentence"], said["look"]["safety"]) == ("Looks at an order.", "safe")


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ({"safety": "sure"}, "expected one of safe, idempotent, neither"),
        ({"side_effects": "a mail"}, "give a list"),
        ({"safety": "safe", "side_effects": ["a mail"]}, "is not safe"),
    ],
)
def test_a_declaration_that_contradicts_itself(terms: dict[str, object], told: str) -> None:
    boundary = Boundary("contradicting", store="memory://", observers=())
    with pytest.raises(ConfigurationError, match=told):
        boundary.once(key="k", operation="x", **terms)(lambda k: None)  # type: ignore[arg-type]
