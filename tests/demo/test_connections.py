"""The clients of the API, at a server that answers what a test wants."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from decimal import Decimal
from multiprocessing.connection import wait

import pytest

from retrysafe_demo.attempts import Attempt
from retrysafe_demo.broker import Delivery
from retrysafe_demo.connections import Connections, ending_of
from retrysafe_demo.lanes import Lane
from retrysafe_demo.payments import Payment
from retrysafe_demo.schedule import Fault
from retrysafe_demo.talk import Ending, How
from retrysafe_demo.workers import Workers
from tests.tables import each_row

pytestmark = pytest.mark.slow

CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nIdempotent-Replayed: true\r\n\r\n{}"


class OpenClients:
    """Clients, and the server's end of their connections."""

    def __init__(self) -> None:
        self.clients = Connections(Workers(Lane.RETRYSAFE, lambda who, what: None), "run")
        self.server = socket.socket(fileno=socket.dup(self.clients.listener))
        self.accepted: list[socket.socket] = []
        self.numbers = iter(range(1, 100))

    def call(self, fault: Fault | None = None, name: str = "A-1") -> tuple[Attempt, socket.socket, list[str]]:
        """Send a request, and take it: the attempt, the connection, and the lines of the request."""
        payment = Payment(name, "DE01", Decimal("12.30"), "EUR")
        attempt = Attempt(next(self.numbers), 1, Delivery(payment, 0, fault), 0.0)
        self.clients.hand(attempt)
        connection, _ = self.server.accept()
        self.accepted.append(connection)
        return attempt, connection, connection.recv(65536).decode().split("\r\n")

    def read(self, attempt: Attempt) -> Ending | None:
        """Read once there is something to read."""
        (descriptor,) = [found for found, other in self.clients.sources().items() if other is attempt]
        assert wait([descriptor], 10)
        return self.clients.read(attempt)

    def ending(self, attempt: Attempt) -> Ending:
        """Read to the end."""
        while (ending := self.read(attempt)) is None:
            pass
        return ending


@pytest.fixture
def opened() -> Iterator[OpenClients]:
    found = OpenClients()
    yield found
    found.clients.close()
    for ours in (found.server, *found.accepted):
        ours.close()


def test_a_retry_is_the_same_request_with_the_same_key_over_another_connection(opened: OpenClients) -> None:
    _, first, said = opened.call(Fault.KILL_BEFORE_CHARGE)
    _, second, again = opened.call()
    _, _, other = opened.call(name="A-2")
    assert first.getpeername() != second.getpeername()
    keys = [next(line for line in lines if line.startswith("Idempotency-Key")) for lines in (said, again, other)]
    assert keys[0] == keys[1] != keys[2]
    assert said[0] == again[0] == "POST /payments HTTP/1.1"
    assert json.loads(said[-1]) == json.loads(again[-1])
    assert "Demo-Fault: KILL_BEFORE_CHARGE" in said
    assert not any(line.startswith("Demo-Fault") for line in again)


def test_an_answer_that_comes_in_pieces(opened: OpenClients) -> None:
    attempt, connection, _ = opened.call()
    for piece in (CREATED[:20], CREATED[20:]):
        connection.sendall(piece)
        assert opened.read(attempt) is None
    connection.close()
    assert opened.read(attempt) == Ending(How.DONE, replayed=True)
    assert opened.clients.sources() == {}


@pytest.mark.parametrize("part", [b"", CREATED[:9], CREATED[:-1]])
def test_an_answer_that_breaks_off_is_none(opened: OpenClients, part: bytes) -> None:
    attempt, connection, _ = opened.call()
    connection.sendall(part)
    connection.close()
    assert opened.ending(attempt).how is How.BROKEN


def test_a_lost_reply_is_there_and_never_read(opened: OpenClients) -> None:
    attempt, connection, lines = opened.call(Fault.LOST_REPLY)
    assert not any(line.startswith("Demo-Fault") for line in lines)
    attempt.reached = True
    connection.sendall(CREATED)
    assert opened.ending(attempt).how is How.BROKEN


def test_a_reply_is_not_lost_before_the_charge_was_reached(opened: OpenClients) -> None:
    attempt, connection, _ = opened.call(Fault.LOST_REPLY)
    connection.sendall(CREATED)
    connection.close()
    assert opened.ending(attempt).how is How.DONE


def test_a_client_that_gives_up_hangs_up(opened: OpenClients) -> None:
    attempt, connection, _ = opened.call()
    assert opened.clients.give_up(attempt) == Ending(How.TIMEOUT)
    assert connection.recv(1) == b""
    assert opened.clients.sources() == {}


@each_row(
    ("status", "fields", "code", "ending"),
    [
        (201, {}, "", Ending(How.DONE)),
        (201, {"idempotent-replayed": "true"}, "", Ending(How.DONE, replayed=True)),
        (409, {"retry-after": "2"}, "in-progress", Ending(How.CONFLICT, retry_after=2.0)),
        (409, {}, "outcome-unknown", Ending(How.UNCERTAIN)),
        (503, {"retry-after": "1"}, "store-unavailable", Ending(How.UNAVAILABLE, why="what it is")),
        (504, {}, "", Ending(How.RETRY)),
        (409, {}, "key-expired", Ending(How.FAILED, why="HTTP 409: why it is")),
        (422, {}, "key-reused", Ending(How.FAILED, why="HTTP 422: why it is")),
    ],
)
def test_meaning_of_answers(status: int, fields: dict[str, str], code: str, ending: Ending) -> None:
    problem = json.dumps({"title": "what it is", "detail": "why it is", "code": code}).encode()
    assert ending_of(status, fields, problem) == ending


@each_row("body", [b"Internal Server Error", b"[]"])
def test_an_error_without_a_problem(body: bytes) -> None:
    assert ending_of(500, {}, body) == Ending(How.FAILED, why="HTTP 500: ")
