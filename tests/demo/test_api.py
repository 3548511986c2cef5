"""The demo's API, at a real bank, without a schedule of faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from retrysafe_demo import api, lanes
from retrysafe_demo.client import Bank
from retrysafe_demo.processes import DemoError
from tests.demo.banks import OpenBank
from tests.tables import each_row

pytestmark = pytest.mark.slow

PAYMENT = {"id": "A-1", "account": "DE01", "amount": "12.30", "currency": "EUR"}
KEY = {"Idempotency-Key": '"7c1ea1de-7c5b-4a39-b46e-5cf6bd2a0ad1"'}


@asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        yield client


def guarded(bank: OpenBank, folder: Path, *, bank_has_keys: bool = True) -> Starlette:
    store = f"sqlite:///{folder / 'retrysafe.db'}"
    charge = lanes.guarded(Bank(bank.port), bank_has_keys=bank_has_keys)
    return api.retrysafe(charge, lanes.boundary(store, run="", bank_has_keys=bank_has_keys))


async def test_the_guarded_api_charges_once_and_replays(
    bank: OpenBank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(api.BANK, str(bank.port))
    monkeypatch.setenv(api.STORE, f"sqlite:///{tmp_path / 'retrysafe.db'}")
    async with client_of(api.create()) as client:
        first = await client.post("/payments", json=PAYMENT, headers=KEY)
        second = await client.post("/payments", json=PAYMENT, headers=KEY)
        other = await client.post("/payments", json=PAYMENT | {"amount": "99"}, headers=KEY)
        keyless = await client.post("/payments", json=PAYMENT)
    assert (first.status_code, first.json()["amount"]) == (201, "12.30")
    assert "idempotent-replayed" not in first.headers
    assert (second.status_code, second.json()) == (201, first.json())
    assert second.headers["idempotent-replayed"] == "true"
    assert (other.status_code, other.json()["code"]) == (422, "key-reused")
    assert (keyless.status_code, keyless.json()["code"]) == (400, "key-missing")
    assert bank.closed() == ["A-1"]


def test_the_guarded_api_needs_a_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(api.BANK, raising=False)
    with pytest.raises(DemoError, match="RETRYSAFE_DEMO_BANK must be the port of a bank"):
        api.create()


async def test_the_unsafe_api_charges_whenever_asked(bank: OpenBank) -> None:
    async with client_of(api.unsafe(lanes.bare(Bank(bank.port)))) as client:
        for _ in range(2):
            assert (await client.post("/payments", json=PAYMENT, headers=KEY)).status_code == 201
    assert bank.closed() == ["A-1", "A-1"]


async def test_the_naive_api_answers_again_what_it_noted(bank: OpenBank, tmp_path: Path) -> None:
    async with client_of(api.naive(lanes.bare(Bank(bank.port)), str(tmp_path / "keys.db"))) as client:
        first = await client.post("/payments", json=PAYMENT, headers=KEY)
        second = await client.post("/payments", json=PAYMENT, headers=KEY)
    assert (second.status_code, second.json()) == (201, first.json())
    assert second.headers["idempotent-replayed"] == "true"
    assert bank.closed() == ["A-1"]


@each_row(("bank_has_keys", "then"), [(True, 504), (False, 409)])
async def test_a_bank_that_does_not_answer(bank: OpenBank, tmp_path: Path, bank_has_keys: bool, then: int) -> None:
    bank.closed()
    async with client_of(guarded(bank, tmp_path, bank_has_keys=bank_has_keys)) as client:
        first = await client.post("/payments", json=PAYMENT, headers=KEY)
        second = await client.post("/payments", json=PAYMENT, headers=KEY)
    assert first.status_code == 504
    assert second.status_code == then
    assert bank_has_keys or second.json()["code"] == "outcome-unknown"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[" * 100_000, 400),
        (b'"\xff"', 400),
        (b"[1" + b"0" * 5000 + b"]", 400),
        (b"[]", 422),
        (b"null", 422),
        (json.dumps({**PAYMENT, "id": 1}).encode(), 422),
        (json.dumps({**PAYMENT, "id": "x" * 201}).encode(), 422),
        (json.dumps({**PAYMENT, "account": "\ud800"}).encode(), 422),
        (json.dumps({**PAYMENT, "account": " "}).encode(), 422),
        (json.dumps({**PAYMENT, "amount": "0"}).encode(), 422),
        (json.dumps({**PAYMENT, "amount": "1e9999999999999999999"}).encode(), 422),
        (json.dumps({**PAYMENT, "currency": None}).encode(), 422),
        (b'{"id": "A-1"}', 422),
    ],
)
async def test_an_invalid_payment_is_refused_and_never_charged(
    bank: OpenBank, tmp_path: Path, body: bytes, status: int
) -> None:
    async with client_of(guarded(bank, tmp_path)) as client:
        refused = await client.post("/payments", content=body, headers=KEY)
    assert (refused.status_code, refused.json()["status"]) == (status, status)
    assert bank.closed() == []


async def test_it_describes_itself(bank: OpenBank, tmp_path: Path) -> None:
    async with client_of(guarded(bank, tmp_path)) as client:
        document: dict[str, Any] = (await client.get("/openapi.json")).json()
        payment = document["components"]["schemas"]["Payment"]["example"]
        assert (await client.post("/payments", json=payment, headers=KEY)).status_code == 201
    operation = document["paths"]["/payments"]["post"]
    assert operation["parameters"][0]["name"] == "Idempotency-Key"
    assert {"201", "400", "409", "422", "503"} <= set(operation["responses"])
