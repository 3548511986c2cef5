"""The vocabulary of the cases: calls of the handler, their known properties, and the expected results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from uuid import uuid4

from retrysafe.conformance.capabilities import Capabilities
from retrysafe.conformance.wire import Fields, ServerAddress, Silent, WireConnection, WireReply, WireRequest

MARKER = "Idempotent-Replayed"
BODY = b'{"n":1}'
_POLL = 0.01
"""Seconds between two looks at a state; nothing is concluded from how long it takes."""


class RuleBroken(Exception):
    """A rule was broken: what should have come, and what came."""

    def __init__(self, expected: str, came: str) -> None:
        super().__init__(f"expected {expected}; came {came}")
        self.expected = expected
        self.came = came


class Inapplicable(Exception):
    """A case found, while it ran, that it does not apply to this server; the text says why."""


class Unusable(Exception):
    """The fixture itself doesn't answer as its contract says."""


class FixtureAct(NamedTuple):
    """A request to the handler, before it has a key line, a principal and a script."""

    method: str = "POST"
    path: str = ""
    body: bytes = BODY
    content_type: str = "application/json"
    fields: Fields = ()
    who: str | None = "runner.1"


_ACT = FixtureAct()


class ServerHarness:
    """One case on one server: an id and a key of its own, and short hands for what cases do."""

    def __init__(self, to: ServerAddress, capabilities: Capabilities, timeout: float) -> None:
        self.to = to
        self.capabilities = capabilities
        self.timeout = timeout
        self.header: str = capabilities.choice("header")
        """The name of the field that carries the key."""
        self.id = uuid4().hex
        self.key = str(uuid4())
        self.notes: list[str] = []
        self.sent: list[str] = []
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="conformance")
        self._gates: set[str] = set()

    # ---------------------------------------------------------------- the handler

    def quote(self, key: str) -> str:
        """A key in the form that this server takes."""
        return key if self.capabilities.choice("key_syntax") == "bare" else f'"{key}"'

    def request(
        self,
        call: FixtureAct = _ACT,
        *,
        key: str | None = "",
        lines: Sequence[str] | None = None,
        id: str | None = None,
        **script: Any,
    ) -> WireRequest:
        """A request to the handler. ``lines`` are the key's field lines as they are; ``key`` None means none."""
        if lines is None:
            lines = [] if key is None else [self.quote(key or self.key)]
        ordered = json.dumps({"id": id or self.id, **script})
        if "gate" in script:
            self._gates.add(id or self.id)
        fields = [(self.header, line) for line in lines]
        fields += [("Fixture-Script", ordered)]
        fields += [("Authorization", f"Bearer {call.who}")] * (call.who is not None)
        fields += [("Content-Type", call.content_type)] * bool(call.body)
        return WireRequest(call.method, f"{self.to.prefix}/act{call.path}", (*fields, *call.fields), call.body)

    def act(self, call: FixtureAct = _ACT, **how: Any) -> WireReply:
        """Ask the handler for something, on a connection of its own, and read the whole answer."""
        return self.exchange(self.request(call, **how))

    def begin(self, call: FixtureAct = _ACT, **how: Any) -> Future[WireReply]:
        return self._threads.submit(self.act, call, **how)

    def exchange(self, request: WireRequest) -> WireReply:
        try:
            with self.connection() as connection:
                response = connection.ask(request)
        except (OSError, Silent) as error:
            self.note(request, str(error))
            raise
        self.note(request, render(response))
        return response

    @contextmanager
    def connection(self) -> Iterator[WireConnection]:
        connection = WireConnection(self.to, self.timeout)
        try:
            yield connection
        finally:
            connection.close()

    def note(self, request: WireRequest, came: str) -> None:
        keys = "".join(f" {name}: {value}" for name, value in request.fields if name == self.header)
        script = next((value for name, value in request.fields if name == "Fixture-Script"), "")
        others = "".join(
            f" {name}: {value}"
            for name, value in request.fields
            if name not in (self.header, "Fixture-Script", "Authorization")
            and (name, value) != ("Content-Type", "application/json")
        )
        body = f" {_short(request.body)}" if request.body else ""
        self.sent.append(
            f"{request.method} {request.target}{keys}{others}{body} script {_short(script.encode())} -> {came}"
        )

    # ---------------------------------------------------------------- the controls

    def control(self, path: str) -> WireReply:
        """Ask a control request of the fixture; `Unusable` unless it answers 200."""
        with self.connection() as connection:
            response = connection.ask(WireRequest("GET", f"{self.to.prefix}/fixture{path}"))
        if response.status != 200:
            raise Unusable(f"GET {self.to.prefix}/fixture{path} answered {response.status}")
        return response

    def calls(self, id: str | None = None) -> dict[str, int]:
        response = self.control(f"/calls?id={id or self.id}")
        try:
            found = json.loads(response.body)
            executions = found["executions"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unusable(f"/fixture/calls answered {response.body[:200]!r}, not an object with executions") from error
        if not isinstance(executions, int):
            raise Unusable(f"/fixture/calls answered {executions!r} executions")
        return dict(found)

    def executions(self, id: str | None = None) -> int:
        return self.calls(id)["executions"]

    def release(self, id: str | None = None) -> None:
        self.control(f"/release?id={id or self.id}")

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for a state of the server; `RuleBroken` if it does not come within the time-out."""
        end = time.monotonic() + self.timeout
        while not done():
            if time.monotonic() > end:
                raise RuleBroken(what, f"nothing of the kind within {self.timeout:g} s")
            time.sleep(_POLL)

    def wait_for_entry(self, executions: int = 1) -> None:
        self.until(lambda: self.executions() >= executions, f"execution {executions} to begin")

    def close(self) -> None:
        """Open what the case left shut, and end its threads."""
        for id in self._gates:
            with suppress(OSError, Silent, Unusable):
                self.release(id)
        self._threads.shutdown()

    # ---------------------------------------------------------------- what should have come

    def expect(self, kept: bool, expected: str, came: str | WireReply) -> None:
        if not kept:
            raise RuleBroken(expected, render(came) if isinstance(came, WireReply) else came)

    def ran(self, times: int, expected: str, came: WireReply | None = None) -> None:
        found = self.executions()
        if found != times:
            tail = "" if came is None else f", and the answer {render(came)}"
            raise RuleBroken(f"{expected}: {_times(times)}", f"{_times(found)}{tail}")

    def first(self, call: FixtureAct = _ACT, **how: Any) -> WireReply:
        """The first request of a key: it runs, once, and answers as its script says."""
        before = self.executions(how.get("id"))
        response = self.act(call, **how)
        wanted = how.get("status", 200)
        self.expect(response.status == wanted, f"the first request to run and answer {wanted}", response)
        found = self.executions(how.get("id"))
        self.expect(
            found == before + 1, "the first request to run once", f"{_times(found - before)}, {render(response)}"
        )
        return response

    def again(self, call: FixtureAct = _ACT, **how: Any) -> WireReply:
        """A retry, asked again while it is told that the original still runs (whether that is right is R8's matter)."""
        busy = self.capabilities.choice("concurrent_status")
        end = time.monotonic() + self.timeout / 4
        response = self.act(call, **how)
        while response.status == busy and time.monotonic() < end:
            time.sleep(_POLL)
            self.sent.pop()
            response = self.act(call, **how)
        return response

    def expect_replay(self, first: WireReply, call: FixtureAct = _ACT, *, times: int = 1, **how: Any) -> WireReply:
        """A retry that gets the stored response: no further execution, the same status and body."""
        response = self.again(call, **how)
        found = self.executions(how.get("id"))
        wanted = (
            f"the retry to get the stored response, {first.status} with {_short(first.body)}, without a new execution"
        )
        same = found == times and (response.status, response.body) == (first.status, first.body) and response.whole
        self.expect(same, wanted, f"{render(response)}, {_times(found)}")
        return response

    def expect_refusal(self, status: int | None, why: str, call: FixtureAct = _ACT, **how: Any) -> WireReply:
        """A request that is refused without running: with ``status``, or with any 4xx."""
        before = self.executions(how.get("id"))
        response = self.again(call, **how)
        ran = self.executions(how.get("id")) - before
        fits = 400 <= response.status < 500 if status is None else response.status == status
        named = "a 4xx" if status is None else str(status)
        self.expect(
            fits and not ran, f"{named} without an execution for {why}", f"{render(response)}, {_times(ran)} of it"
        )
        return response

    def expect_distinction(self, what: str, call: FixtureAct, *, elsewhere: bool = False, **how: Any) -> None:
        """A request unlike the one its key was used for: refused (or, ``elsewhere``, an operation of its own)."""
        if elsewhere and self.capabilities.choice("operation") == "endpoint":
            before = self.executions()
            response = self.again(call, **how)
            ran = self.executions() - before
            kept = ran == 1 or (not ran and 400 <= response.status < 500)
            self.expect(kept, f"{what} to be another operation, or refused", response)
        else:
            self.expect_refusal(None, what, call, **how)


def is_marked(response: WireReply) -> bool:
    """Tell whether a response says that it is a replay."""
    return (response.one(MARKER) or "").lower() in ("true", "?1", "1")


def render(response: WireReply) -> str:
    told = [f"{name}: {value}" for name, value in response.fields if name.lower() in _TOLD]
    body = _short(response.body) if response.body else "no body"
    broken = "" if response.whole else ", broken off"
    return f"{response.status}{' (' + '; '.join(told) + ')' if told else ''} with {body}{broken}"


_TOLD = frozenset({MARKER.lower(), "idempotency-replay", "retry-after"})


def _short(data: bytes, most: int = 100) -> str:
    text = data[:most].decode("latin-1")
    safe = "".join(char if " " <= char <= "~" else f"\\x{ord(char):02x}" for char in text)
    return f"{safe}…({len(data)} bytes)" if len(data) > most else safe


def _times(count: int) -> str:
    return "1 execution" if count == 1 else f"{count} executions"
