"""Solutions of the ten tasks, which hold when their process crashes at any call.

Each performs its task for one key on the state of a run. The docstring is the task.
"""

from __future__ import annotations

import json
import sqlite3
import urllib.request
from contextlib import closing, suppress
from typing import Any

import httpx
import sqlalchemy as sa

from retrysafe import Boundary, StoredFailure, current
from retrysafe.messaging import Envelope, Inbox, Outbox
from retrysafe.testing.agent_tasks import TaskState


def path_of(state: TaskState) -> str:
    return state.url.removeprefix("sqlite:///")


def post(state: TaskState, key: str) -> None:
    """Charge at the bank, which recognises keys."""
    request = urllib.request.Request(state.bank, data=state.account.encode(), headers={"Idempotency-Key": key})
    urllib.request.urlopen(request, timeout=60).close()


def place_order_in_my_transaction(state: TaskState) -> None:
    """Insert an order and take one lamp from stock, in a transaction that the caller has open."""
    orders = Boundary("orders", store=state.url, effects="transactional")
    with (
        closing(sqlite3.connect(path_of(state), isolation_level="IMMEDIATE")) as db,
        db,
        orders.claim("request-1", payload={"item": "lamp"}, tx=db) as claim,
    ):
        if not claim.replayed:
            db.execute("UPDATE stock SET left_over = left_over - 1 WHERE item = 'lamp'")
            claim.result = db.execute("INSERT INTO orders (item) VALUES ('lamp')").lastrowid
    orders.close()


def transfer_between_accounts(state: TaskState) -> None:
    """Move 30 from ann to bob. retrysafe may open the transaction."""
    bank = Boundary("bank", store=state.url, effects="transactional")

    @bank.once(key="reference", operation="transfer")
    def transfer(reference: str, amount: int) -> dict[str, int]:
        tx = current().tx
        tx.execute("UPDATE accounts SET balance = balance - ? WHERE name = 'ann'", (amount,))
        tx.execute("UPDATE accounts SET balance = balance + ? WHERE name = 'bob'", (amount,))
        return {"moved": amount}

    transfer("T-1", 30)
    bank.close()


def charge_a_provider(state: TaskState) -> None:
    """Charge a card at a payment provider that takes an Idempotency-Key."""
    payments = Boundary("payments", store=state.url, effects="keyed")

    @payments.once(key="order_id", operation="charge")
    def charge(order_id: str, amount: int) -> dict[str, int]:
        post(state, current().key_for("bank"))
        return {"charged": amount}

    charge("A-1", 12)
    payments.close()


async def charge_a_provider_with_asyncio(state: TaskState) -> None:
    """The same in async code, with httpx."""
    payments = Boundary("payments", store=state.url, effects="keyed")
    async with payments.claim("A-1", payload={"amount": 12}) as claim:
        if not claim.replayed:
            async with httpx.AsyncClient() as client:
                headers = {"Idempotency-Key": claim.key_for("bank")}
                await client.post(state.bank, content=state.account, headers=headers)
            claim.result = "charged"
    await payments.aclose()


def charge_and_insert(state: TaskState) -> None:
    """Charge at the provider, then insert the order with SQLAlchemy."""
    engine = sa.create_engine(state.url, poolclass=sa.NullPool)
    checkout = Boundary("checkout", store=state.url, effects="keyed")
    rows = Boundary("order rows", store=engine, effects="transactional")
    with checkout.claim("A-1", payload={"amount": 12}) as claim:
        if not claim.replayed:
            post(state, claim.key_for("charge"))
            with engine.begin() as tx, rows.claim(claim.key_for("order row"), tx=tx) as row:
                if not row.replayed:
                    tx.execute(sa.text("INSERT INTO orders (item, payment) VALUES ('lamp', 'paid')"))
                    row.result = "inserted"
            claim.result = row.result
    rows.close()
    checkout.close()
    engine.dispose()


def call_what_recognises_nothing(state: TaskState) -> None:
    """Send a text message through a gateway that has no idempotency keys; at most one may be sent."""
    messages = Boundary("messages", store=state.url, effects="external")

    @messages.once(key="message_id", operation="send")
    def send(message_id: str) -> str:
        claim = current()
        claim.ensure_held()
        post(state, claim.attempt_id)  # each request is another message to the gateway
        return "sent"

    send("M-1")
    messages.close()


def store_a_refusal(state: TaskState) -> None:
    """Decline an order for more than the balance, and give retries the same refusal; note each refusal in a table."""

    class Declined(Exception):
        pass

    shop = Boundary("shop", store=state.url, effects="keyed", permanent=Declined)

    @shop.once(key="order_id", operation="charge")
    def charge(order_id: str, amount: int) -> None:
        post(state, current().key_for("bank"))
        raise Declined("no cover")

    with suppress(Declined, StoredFailure):
        charge("A-1", 1000)
    shop.close()


def write_an_event_with_the_order(state: TaskState) -> None:
    """Insert an order and publish that it was placed; never one without the other."""
    orders = Boundary("orders", store=state.url, effects="transactional")
    outbox = Outbox(state.url, source="/shop/orders")
    with orders.claim("request-1", payload={"item": "lamp"}) as claim:
        if not claim.replayed:
            number = claim.tx.execute("INSERT INTO orders (item) VALUES ('lamp')").lastrowid
            outbox.add(claim.tx, "orders.placed", {"order": number}, key=str(number))
            claim.result = number
    orders.close()


def handle_a_message(state: TaskState) -> None:
    """Take lamps from stock for a message that the broker may deliver again."""
    stock = Boundary("stock", store=state.url, effects="transactional", window="14d")
    inbox = Inbox(stock)

    @inbox.handler("inventory")
    def reserve(message: Any) -> None:
        message.tx.execute("UPDATE stock SET left_over = left_over - ? WHERE item = 'lamp'", (message.data["n"],))

    body = json.dumps({"n": 2}).encode()
    reserve.handle(Envelope("m1", "orders", "order-7", "orders.placed.v1", "/shop", None, {}, body, "application/json"))
    stock.close()


def import_a_file(state: TaskState) -> None:
    """Import a file of three payments; when the import is started again, it goes on where it stopped."""
    imports = Boundary("imports", store=state.url, effects="transactional", window="30d")

    @imports.once(key="row.id", operation="import")
    def import_row(row: dict[str, Any]) -> int:
        current().tx.execute("UPDATE accounts SET balance = balance + ? WHERE name = 'bob'", (row["amount"],))
        return int(row["amount"])

    for number in (1, 2, 3):
        import_row({"id": f"file-7/{number}", "amount": number})
    imports.close()
