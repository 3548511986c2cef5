"""Clients of a lane's API: every attempt is a request over a TCP connection of its own.

That clients retry is the broker's doing: what ended without an answer, or with one that says so, is asked again with
the same key, over a new connection.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import uuid
from collections.abc import Container, Mapping
from typing import Any

from retrysafe_demo.attempts import Attempt
from retrysafe_demo.client import ATTEMPT, FAULT, KEY
from retrysafe_demo.posts import SEATS
from retrysafe_demo.processes import DemoError
from retrysafe_demo.schedule import Fault
from retrysafe_demo.talk import Ending, How
from retrysafe_demo.workers import Workers

PATIENCE = 3.0
"""Seconds that a client waits for an answer; a charge takes a few hundredths."""
LONGEST_PAUSE = 4.0
"""A worker is stopped with all its requests, maybe in the middle of writing one's record: that holds up the others."""
_HERE = "127.0.0.1"


class Connections:
    """The clients of one lane, and the socket on which its API listens. ``run`` makes their keys this demo's own."""

    patience = PATIENCE
    longest_wait = LONGEST_PAUSE

    def __init__(self, workers: Workers, run: str) -> None:
        self._workers = workers
        self._keys = uuid.uuid5(uuid.NAMESPACE_OID, run)
        self._listener = socket.create_server((_HERE, 0), backlog=64)
        self._open: dict[int, Call] = {}

    @property
    def listener(self) -> int:
        """The descriptor that the workers inherit."""
        return self._listener.fileno()

    def free(self, taken: Container[int]) -> list[int]:
        return [seat for seat in SEATS if seat not in taken] if self._workers.have_served else []

    def hand(self, attempt: Attempt) -> None:
        payment = attempt.delivery.payment
        fields = {KEY: f'"{uuid.uuid5(self._keys, payment.id)}"', ATTEMPT: str(attempt.number)}
        if attempt.fault is not None and attempt.fault is not Fault.LOST_REPLY:
            fields[FAULT] = attempt.fault.name
        body = json.dumps(payment.as_json()).encode()
        try:
            self._open[attempt.number] = Call(self._listener.getsockname()[1], fields, body, attempt)
        except OSError as error:
            raise DemoError(f"the API cannot be reached: {error}") from error

    def sources(self) -> Mapping[int, Attempt]:
        return {call.descriptor: call.attempt for call in self._open.values()}

    def read(self, attempt: Attempt) -> Ending | None:
        """The answer, once it is complete; a lost one is there, and its client hangs up without a look at it."""
        call = self._open[attempt.number]
        ending: Ending | None = Ending(How.BROKEN)
        if not (attempt.fault is Fault.LOST_REPLY and attempt.reached):
            ending = call.read()
        if ending is not None:
            self._hang_up(attempt)
        return ending

    def broken(self, attempt: Attempt) -> Ending | None:
        return None  # its connection will tell

    def give_up(self, attempt: Attempt) -> Ending | None:
        self._hang_up(attempt)
        return Ending(How.TIMEOUT)

    def close(self) -> None:
        self._listener.close()
        while self._open:
            self._open.popitem()[1].hang_up()

    def _hang_up(self, attempt: Attempt) -> None:
        self._open.pop(attempt.number).hang_up()


class Call:
    """One request, sent; and its response, as far as it has come."""

    def __init__(self, port: int, fields: Mapping[str, str], body: bytes, attempt: Attempt) -> None:
        self.attempt = attempt
        self._received = b""
        head = {"Host": _HERE, "Content-Type": "application/json", "Content-Length": str(len(body)), **fields}
        lines = ["POST /payments HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        self._socket = socket.create_connection((_HERE, port), timeout=PATIENCE)
        self._socket.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
        self._socket.setblocking(False)

    @property
    def descriptor(self) -> int:
        """The descriptor that becomes readable when a part of a response has come."""
        return self._socket.fileno()

    def read(self) -> Ending | None:
        """Read on; the ending when the connection has come to its end."""
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return None
        except OSError as error:
            return Ending(How.BROKEN, why=str(error))
        self._received += data
        return None if data else self._ending()

    def hang_up(self) -> None:
        """Close the connection, whatever may still come."""
        self._socket.close()

    def _ending(self) -> Ending:
        try:
            with http.client.HTTPResponse(_Received(self._received)) as response:  # type: ignore[arg-type]
                response.begin()
                fields = {name.lower(): value for name, value in response.getheaders()}
                return ending_of(response.status, fields, response.read())
        except http.client.HTTPException as error:
            return Ending(How.BROKEN, why=repr(error))


class _Received:
    """The received bytes, in the form of a socket for `http.client`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def ending_of(status: int, fields: Mapping[str, str], body: bytes) -> Ending:
    """Judge a response for a client that wants its payment charged once; the names of ``fields`` in lower case."""
    if status == http.client.CREATED:
        return Ending(How.DONE, replayed=fields.get("idempotent-replayed") == "true")
    problem = _problem(body)
    match status, problem.get("code"):
        case 409, "in-progress":
            return Ending(How.CONFLICT, retry_after=float(fields["retry-after"]))
        case 409, "outcome-unknown":
            return Ending(How.UNCERTAIN)
        case 503, _:
            return Ending(How.UNAVAILABLE, why=problem.get("title", ""))
        case 504, _:
            return Ending(How.RETRY)
    return Ending(How.FAILED, why=f"HTTP {status}: {problem.get('detail', '')}")


def _problem(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
