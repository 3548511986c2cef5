"""The lock file: a change that orphans keys is told, by what it does; what is new is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError, declare
from retrysafe.admin.describe import describe
from retrysafe.admin.lock import drift
from tests.operating.conftest import surroundings
from tests.tables import each_row

MODULE = """
from starlette.applications import Starlette
from starlette.routing import Route
from retrysafe import Boundary, current
from retrysafe.http.starlette import idempotent
from retrysafe.messaging import Inbox, Outbox
from retrysafe.webhooks import GitHub, Receiver

payments = Boundary("payments", store="sqlite:///shop.db", window="120h", scope="eu")
messages = Boundary("messages", store="sqlite:///shop.db", effects="transactional", window="96h")

@payments.once(key="order", payload="amount")
def charge(order, amount):
    current().step("bank", print, amount)
    return current().wait_for("paid")

outbox = Outbox("sqlite:///shop.db", source="/shop", types={"orders.placed.v1": "An order was placed."})
receiver = Receiver(messages, GitHub("x" * 32))

@receiver.on("push")
def build(event):
    current().step("compile", print)

@Inbox(messages).handler("mailing")
def mail(message):
    message.claim.step("post", print)

async def pay(request):
    async with current().step("capture"): ...

app = Starlette(routes=[Route("/payments", idempotent(payments, principal="shared")(pay), methods=["POST"])])
"""


def described(tmp_path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "shop.py").write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-B", "-m", "retrysafe", "describe", "shop", "--lock", "shop.lock", *options],
        cwd=tmp_path,
        env=surroundings(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    done = described(tmp_path, MODULE)
    assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.mark.slow
def test_unchanged_and_new_parts_are_no_drift(locked: Path) -> None:
    assert set(json.loads((locked / "shop.lock").read_text())["boundaries"]["messages"]["operations"]) == {
        "mailing",
        "webhook github",
    }
    assert described(locked, MODULE, "--check").stdout == "no drift\n"
    new = f'{MODULE}\nBoundary("new", store="sqlite:///shop.db")\n'
    assert described(locked, new, "--check").returncode == 0
    renamed = MODULE.replace('step("bank", print, amount)', 'step("till", print, amount, was="bank")')
    assert described(locked, renamed, "--check").stdout == "no drift\n"


@pytest.mark.slow
@each_row(
    ("before", "after", "told"),
    [
        ("def charge(", "def charge_card(", "give that operation='shop.charge'"),
        ('scope="eu"', 'scope="us"', "another scope"),
        ('Boundary("payments"', 'Boundary("payment"', "boundary payments: is gone or renamed"),
        ('window="120h"', 'window="24h"', "window was 432000 s, is 86400 s"),
        ('key="order"', 'key="amount"', "key was order, is amount"),
        ('payload="amount"', "payload=None", "payload was amount, is None"),
        ('step("bank"', 'step("till"', "step bank is gone or renamed: work under way is refused at its place"),
        ('step("compile"', 'step("make"', "operation webhook github of boundary messages: step compile is gone"),
        ('step("post"', 'step("send"', "operation mailing of boundary messages: step post is gone or renamed"),
        ('step("capture"', 'step("book"', "route POST /payments: step capture is gone or renamed"),
        ('"mailing"', '"mails"', "operation mailing of boundary messages: is gone"),
        ('"/payments"', '"/charges"', "route POST /payments: is gone or renamed"),
        ('idempotent(payments, principal="shared")(pay)', "pay", "was guarded and is not any more"),
        ('source="/shop"', 'source="/store"', "outbox /shop: is gone or renamed"),
        ("orders.placed.v1", "orders.placed.v2", "outbox /shop: type orders.placed.v1 is gone or renamed"),
        ('"push"', '"pushed"', "events of type push have no handler any more"),
    ],
)
def test_a_change_is_told_by_what_it_does(before: str, after: str, told: str, locked: Path) -> None:
    assert MODULE.count(before) == 1
    done = described(locked, MODULE.replace(before, after), "--check")
    assert done.returncode == 1, done.stderr
    assert told in done.stdout


@pytest.mark.slow
def test_boundaries_of_one_name_are_all_locked_in_the_order_of_the_code(tmp_path: Path) -> None:
    """Those of several stores, say; which of them is the first must not change from one run to the next."""
    text = """
from retrysafe import Boundary

here = Boundary("payments", store="sqlite:///here.db", window="24h")
there = Boundary("payments", store="sqlite:///there.db", window="1h")
same = [Boundary("same", store=f"sqlite:///{number}.db") for number in range(3)]

@here.once(key="order", operation="charge")
def charge(order): ...

@there.once(key="order", operation="refund")
def refund(order): ...
"""
    assert described(tmp_path, text).returncode == 0
    boundaries = json.loads((tmp_path / "shop.lock").read_text())["boundaries"]
    assert {name: list(one["operations"]) for name, one in boundaries.items()} == {
        "payments": ["charge"],
        "payments, number 2": ["refund"],
        "same": [],
    }
    for _ in range(3):
        assert described(tmp_path, text, "--check").stdout == "no drift\n"
    changed = described(tmp_path, text.replace('operation="refund"', 'operation="return"'), "--check")
    assert "operation refund of boundary payments, number 2: is gone" in changed.stdout


@pytest.mark.slow
@each_row(
    "text",
    [
        '{"version": 1}',
        '{"version": 1, "boundaries": [], "routes": {}, "outboxes": {}}',
        '{"version": 1, "boundaries": {"payments": {}}, "routes": {}, "outboxes": {}}',
        '{"version": 1, "boundaries": {"payments": null}, "routes": {}, "outboxes": {}}',
        '{"version": 1, "boundaries": {}, "routes": {}, "outboxes": ["/shop"]}',
        "[" * 100_000,
    ],
    ids=["nothing", "list", "empty", "null", "outboxes", "deep"],
)
def test_a_lock_that_was_changed_by_hand_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "shop.lock").write_text(text)
    done = described(tmp_path, MODULE, "--check")
    assert (done.returncode, "Traceback" in done.stderr, "shop.lock" in done.stderr) == (2, False, True)


@pytest.mark.slow
def test_outboxes_of_other_modules_are_locked_too(tmp_path: Path) -> None:
    (tmp_path / "events.py").write_text(
        "from retrysafe.messaging import Outbox\n"
        'outbox = Outbox("sqlite:///shop.db", source="/events", types=["a.v1"])\n'
    )
    assert described(tmp_path, "import events\n").returncode == 0
    assert json.loads((tmp_path / "shop.lock").read_text())["outboxes"] == {"/events": ["a.v1"]}


@each_row(
    ("now", "told"),
    [
        (["a.v1"], ["type b.v1 is gone or renamed: consumers that wait for it are told nothing more"]),
        (["a.v1", "b.v1", "c.v1"], []),
        ([], ["declares no types any more: one that is gone, or misspelt, is told by nothing"]),
    ],
    ids=["gone", "new", "undeclared"],
)
def test_types_that_are_gone_are_told_apart_from_a_declaration_that_is(now: list[str], told: list[str]) -> None:
    locks = [{"boundaries": {}, "routes": {}, "outboxes": {"/shop": types}} for types in (["a.v1", "b.v1"], now)]
    assert list(drift(*locks)) == [("outbox /shop", text) for text in told]
    assert list(drift(locks[1] | {"outboxes": {"/shop": []}}, locks[0])) == [], "what is new is not told"


@pytest.mark.slow
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

    @boundary.once(key="k", operation="refund")
    @declare(safety="idempotent", side_effects=["a refund"])
    def refund(k: str) -> None:
        """Refunds an order."""

    said = {one["operation"]: one for one in describe(boundary)["operations"]}
    assert (said["refund"]["sentence"], said["refund"]["side effects"]) == ("Refunds an order.", "a refund")
    assert said["charge"]["sentence"] == "Charges an order."
    assert (said["charge"]["safety"], said["charge"]["side effects"]) == ("neither", "a charge, a mail")
    assert (said["look"]["sentence"], said["look"]["safety"]) == ("Looks at an order.", "safe")


@each_row(
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
    with pytest.raises(ConfigurationError, match=told):
        declare(**terms)  # type: ignore[arg-type]


def test_objects_without_attributes_cannot_be_declared() -> None:
    with pytest.raises(ConfigurationError, match="give a function of your own"):
        declare("Prints.")(print)


DECLARED = """
from fastapi import FastAPI
from flask import Flask
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.routing import Route
from retrysafe import Boundary, declare
from retrysafe.http import fastapi, flask, policy, starlette
from retrysafe.messaging import Inbox, Outbox
from retrysafe.webhooks import GitHub, Receiver

shop = Boundary("shop", store="sqlite:///shop.db", effects="transactional", window="73h")
outbox = Outbox("sqlite:///shop.db", source="/shop", types={"orders.placed.v1": "An order was placed."})

@Inbox(shop).handler("mailing")
@declare(side_effects=["a mail"])
def mail(message):
    \"\"\"Writes to a customer.\"\"\"

receiver = Receiver(shop, GitHub("x" * 32))

@receiver.on("push")
@declare("Builds a commit.", safety="idempotent")
def build(event): ...

@starlette.idempotent(shop, principal="shared")
@declare("Pays.", safety="neither", side_effects=["a payment"])
async def pay(request): ...

class Orders(HTTPEndpoint):
    @declare("Orders.")
    async def post(self, request): ...

first = Starlette(routes=[Route("/payments", pay, methods=["POST"]), Route("/orders", Orders)])
second = FastAPI()
second.add_middleware(fastapi.IdempotencyMiddleware, boundary=shop, principal="shared")

@second.post("/search")
@policy.policy("off")
@declare("Searches.", safety="safe")
def search(): ...

third = Flask("third")
flask.Idempotency(third, shop, principal="shared")

class Refunds(MethodView):
    @declare("Refunds.")
    def post(self): ...

third.add_url_rule("/refunds", view_func=Refunds.as_view("refunds"))

@third.post("/look")
@policy.policy("off")
def look():
    \"\"\"Looks.\"\"\"
"""


@pytest.mark.slow
def test_every_way_in_is_described_with_what_is_declared_of_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(DECLARED, encoding="utf-8")
    command = [sys.executable, "-B", "-m", "retrysafe", "describe", "shop"]
    asked: Any = {"cwd": tmp_path, "env": surroundings(), "capture_output": True, "text": True, "check": False}
    done: Any = subprocess.run([*command, "--json"], **asked)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    operations = {one["operation"]: one for one in said[0]["operations"]}
    assert operations["mailing"]["sentence"] == "Writes to a customer."
    assert operations["mailing"]["side effects"] == "a mail"
    assert operations["mailing"]["key"] == "source and id of the message"
    (pushed,) = operations["webhook github"]["events"]
    assert pushed == {"event": "push", "sentence": "Builds a commit.", "safety": "idempotent"}
    paid = {"sentence": "Pays.", "safety": "neither", "side effects": "a payment"}
    assert said[1:-2] == [
        {"route": "POST /payments", "policy": "guarded", **paid},
        {"route": "POST /orders", "policy": "unguarded", "sentence": "Orders."},
        {"route": "POST /search", "policy": "off", "sentence": "Searches.", "safety": "safe"},
        {"route": "POST /refunds", "policy": "guarded", "sentence": "Refunds."},
        {"route": "POST /look", "policy": "off", "sentence": "Looks."},
    ]
    assert said[-2] == {"outbox": "/shop", "key": "source and id of each message: consumers recognise it by both"}
    placed = {"type": "orders.placed.v1", "outbox": "/shop", "key": "source and id"}
    assert said[-1] == {**placed, "sentence": "An order was placed."}
    text: Any = subprocess.run(command, **asked)
    for line in (
        "event     push",
        "route         POST /payments",
        "side effects  a payment",
        "type      orders.placed.v1",
    ):
        assert line in text.stdout, text.stdout
    alone: Any = subprocess.run([*command[:-1], "shop:shop"], **asked)
    assert "route" not in alone.stdout
