"""The bank as a worker calls it, and the moments at which a delivery can go wrong."""

from __future__ import annotations

import http.client
import json
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal

from retrysafe_demo.payments import Payment
from retrysafe_demo.schedule import Fault

KEY, RECOGNISED = "Idempotency-Key", "Idempotent-Replayed"
FAULT, ATTEMPT = "Demo-Fault", "Demo-Attempt"
"""Fields by which the coordinator says what is to go wrong; they have no say in what is charged."""
PATIENCE = 10.0
"""Seconds that a client waits for the bank."""
IMPATIENCE = 0.25
"""The same where the schedule says that it gives up."""


class Unanswered(Exception):
    """The bank gave no answer: it may have charged or not."""


class Refused(Exception):
    """The bank answered, and did not charge."""


class Mishaps:
    """The mishaps of one delivery: none, unless a schedule has some."""

    fault: Fault | None = None

    def before_charge(self) -> None:
        """The request is ready, and the bank has not been called."""

    def after_charge(self, *, recognised: bool) -> None:
        """The bank has answered; ``recognised``: with an earlier charge under the same key."""


mishaps: ContextVar[Mishaps] = ContextVar("retrysafe_demo_mishaps", default=Mishaps())  # noqa: B039 - has no state
"""The mishaps of the delivery that this thread or task is busy with."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The bank's answer."""

    charge: str
    account: str
    amount: Decimal
    currency: str


class Order(bytes):
    """A request for a charge, ready to be sent."""


class Bank:
    """Calls the bank at ``port`` of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port

    def prepare(self, payment: Payment) -> Order:
        """Write the request. A worker that dies or is stopped before the charge does so at its end."""
        plain = payment.as_json()
        plain["payment"] = plain.pop("id")
        order = Order(json.dumps(plain).encode())
        mishaps.get().before_charge()
        return order

    def charge(self, order: Order, key: str | None = None) -> Receipt:
        """Send the request; raises `Unanswered` when the bank may have charged and nobody knows."""
        fault = mishaps.get().fault
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers[KEY] = key
        if fault is Fault.TIMEOUT or fault is Fault.LOST_REPLY:
            headers[FAULT] = fault.name
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        try:
            connection.connect()
            if fault is Fault.TIMEOUT:
                connection.sock.settimeout(IMPATIENCE)
            connection.request("POST", "/charges", bytes(order), headers)
            response = connection.getresponse()
            body = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unanswered(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if response.status != http.client.CREATED:
            raise Refused(body["error"])
        mishaps.get().after_charge(recognised=response.headers[RECOGNISED] == "true")
        return Receipt(body["charge"], body["account"], Decimal(body["amount"]), body["currency"])
