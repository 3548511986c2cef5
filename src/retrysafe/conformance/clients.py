"""Checks how a client retries: a server of ours settles and hangs up, delays, refuses and lies, and writes down all.

The client is a command that makes one POST with an idempotency key to the URL in ``RETRYSAFE_UPSTREAM``. It is run once
for each rule, and whatever its exit code is, only its requests count.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from retrysafe.conformance.profiles import Profile
from retrysafe.conformance.report import Report, Result, Verdict
from retrysafe.conformance.rules import CLIENT_RULES
from retrysafe.errors import ConfigurationError
from retrysafe.http.key_header import HEADER

VARIABLE = "RETRYSAFE_UPSTREAM"
TIMEOUT = 60.0
"""Seconds that the command may take for one rule, unless told otherwise."""
_WELL = b'{"ok": true}'
_PROBLEM = b'{"title": "told so by the check", "code": "%s"}'


class PlannedAnswer(NamedTuple):
    """One answer: ``sent`` is how much of its body comes before the connection breaks, -1 for none of the answer."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    body: bytes = _WELL
    sent: int | None = None
    held: float = 0.0
    """Seconds for which it waits for another request."""


class Scenario(NamedTuple):
    """The answers in their order, of which the last is repeated, and how many requests are right.

    A header's value "@3" is the date in three seconds.
    """

    answers: tuple[PlannedAnswer, ...]
    least: int = 1
    most: int | None = None
    pause: float = 0.0
    """Seconds that must pass between the first request and the second."""


_REPLAYED = ("Idempotent-Replayed", "true")
_REPLAY = PlannedAnswer(headers=(("Content-Type", "application/json"), _REPLAYED))
_LOST = PlannedAnswer(sent=-1)


def _refuse(status: int, code: str, *headers: tuple[str, str]) -> PlannedAnswer:
    return PlannedAnswer(status, (("Content-Type", "application/problem+json"), *headers), _PROBLEM % code.encode())


SCENARIOS: Mapping[str, Scenario] = {
    "lost": Scenario((_LOST, _REPLAY), least=2),
    "cut": Scenario((PlannedAnswer(sent=4), _REPLAY), least=2),
    "delayed": Scenario((PlannedAnswer(held=5.0), _REPLAY)),
    "busy": Scenario((_refuse(409, "in-progress", ("Retry-After", "1")), _REPLAY), least=2, pause=1),
    "failed": Scenario((_refuse(500, "error"), PlannedAnswer()), least=2),
    "overloaded": Scenario((_refuse(503, "overloaded", ("Retry-After", "2")), PlannedAnswer()), pause=2),
    "throttled": Scenario((_refuse(429, "throttled", ("Retry-After", "@3")), PlannedAnswer()), pause=2),
    "reused": Scenario((_refuse(422, "key-reused"),), most=1),
    "invalid": Scenario((_refuse(400, "request-invalid"),), most=1),
    "final": Scenario((_refuse(500, "error", _REPLAYED),), most=1),
    "lie": Scenario((_LOST, _refuse(422, "key-reused")), least=2, most=2),
    "down": Scenario((_refuse(500, "error"),), most=20),
}


class Seen(NamedTuple):
    """A request as it came."""

    at: float
    line: str
    keys: tuple[str, ...]
    body: bytes | Mapping[str, Any]
    """Without the id of a JSON-RPC request, which is a new one each time."""


class _Place(NamedTuple):
    """The place of the key in a request: a header, or, for a profile that says so, the body."""

    header: str
    profile: Profile | None = None

    def __str__(self) -> str:
        return " or ".join(self.profile.keys) if self.profile else self.header

    def keys(self, headers: Message, body: Mapping[str, Any]) -> tuple[str, ...]:
        """The keys of a request. Names in the body may have a prefix, as those of MCP's ``_meta``."""
        if self.profile is None:
            return tuple(headers.get_all(self.header, []))
        found: list[str] = []
        for path in self.profile.keys:
            values: list[Any] = [body]
            for name in path.split("."):
                inner = [value.items() for value in values if isinstance(value, dict)]
                values = [value for items in inner for key, value in items if key.rpartition("/")[2] == name]
            found += map(str, values)
        return tuple(found)

    def counts(self, asked: Mapping[str, Any]) -> bool:
        return self.profile is None or asked.get("method") in (None, *self.profile.methods)

    def body_of(self, answer: PlannedAnswer, asked: Mapping[str, Any]) -> bytes:
        if self.profile is None or answer.status >= 400:
            return answer.body
        result = self.profile.result if self.counts(asked) else self.profile.other
        return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result} if "id" in asked else result).encode()


def _parse(body: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        parsed = json.loads(body)
        return parsed if isinstance(parsed, dict) else {}
    return {}


class _Upstream(ThreadingHTTPServer):
    """Answers as a scenario says."""

    daemon_threads = True

    def __init__(self, scenario: Scenario, place: _Place) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scenario, self.place = scenario, place
        self.seen: list[Seen] = []
        self.changed = threading.Condition()
        self.ended = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may leave at any time."""

    def end(self) -> None:
        """Let go of what is held, and serve no more."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def upstream(self) -> _Upstream:
        assert isinstance(self.server, _Upstream)
        return self.server

    def handle_any(self) -> None:
        upstream, length = self.upstream, self.headers.get("Content-Length", "0")
        body = self.rfile.read(int(length) if length.isdigit() else 0)
        place, asked = upstream.place, _parse(body)
        if not place.counts(asked):
            self._send(PlannedAnswer(), place.body_of(PlannedAnswer(), asked))
            return
        keys = place.keys(self.headers, asked)
        meant = {**asked, "id": None} if "jsonrpc" in asked else body
        with upstream.changed:
            upstream.seen.append(Seen(time.monotonic(), f"{self.command} {self.path}", keys, meant))
            number = len(upstream.seen)
            upstream.changed.notify_all()
        answers = upstream.scenario.answers
        answer = answers[min(number, len(answers)) - 1]
        if answer.held:
            with upstream.changed:
                upstream.changed.wait_for(lambda: len(upstream.seen) > number or upstream.ended, answer.held)
        self._send(answer, place.body_of(answer, asked))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the names that the library calls

    def _send(self, answer: PlannedAnswer, body: bytes) -> None:
        if answer.sent != -1:
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, _date_after(int(value[1:])) if value.startswith("@") else value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: answer.sent])
        self.close_connection = answer.sent is not None

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _date_after(seconds: int) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


def run_client(
    command: Sequence[str],
    *,
    header: str = HEADER,
    profile: Profile | None = None,
    only: Collection[str] = (),
    timeout: float = TIMEOUT,
) -> Report:
    """Check a client against the rules and report what became of each.

    Arguments:
        command: the client and its arguments. It makes one POST to the URL in the variable RETRYSAFE_UPSTREAM.
        header: the name of the header in which it sends its key.
        profile: the terms of a protocol, see `profiles.PROFILES`.
        only: the rules to check; by default all.
        timeout: seconds that the command may take for one rule.

    Raises `ConfigurationError` if the command can't be run, or a rule is unknown.
    """
    if unknown := sorted(set(only) - set(SCENARIOS)):
        raise ConfigurationError(f"there is no rule {unknown[0]!r} for clients; there are {', '.join(SCENARIOS)}")
    place = _Place(header, profile if profile and profile.keys else None)
    lacking = profile.unsupported if profile else {}
    results = [
        Result(rule, Verdict.SKIPPED, f"{lacking[rule]}.", CLIENT_RULES[rule].text)
        if rule in lacking
        else _check(rule, command, place, timeout)
        for rule in SCENARIOS
        if not only or rule in only
    ]
    return Report(" ".join(command), None, results)


def _check(rule: str, command: Sequence[str], place: _Place, timeout: float) -> Result:
    begun, scenario = time.monotonic(), SCENARIOS[rule]
    upstream = _Upstream(scenario, place)
    threading.Thread(target=upstream.serve_forever, args=(0.01,), daemon=True).start()
    try:
        stopped = _run(command, f"http://127.0.0.1:{upstream.server_address[1]}/orders", timeout)
    finally:
        upstream.end()
    came = _fault(scenario, upstream.seen, place) if stopped else f"the client did not end within {timeout:g} s"
    sent = [f"{one.at - begun:.2f} s {one.line} {place}: {', '.join(one.keys) or '-'}" for one in upstream.seen]
    verdict, seconds = Verdict.FAILED if came else Verdict.PASSED, time.monotonic() - begun
    return Result(rule, verdict, expected=CLIENT_RULES[rule].text, came=came, sent=sent, seconds=seconds)


def _run(command: Sequence[str], url: str, timeout: float) -> bool:
    """Run the command; whether it ended in time, or had to be killed with all that it started."""
    try:
        process = subprocess.Popen(
            command, env={**os.environ, VARIABLE: url}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise ConfigurationError(f"{command[0]} can't be run: {error.strerror or error}.") from error
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        return False
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return True


def _fault(scenario: Scenario, seen: Sequence[Seen], place: _Place) -> str:
    if not seen:
        return f"no request: the command is to send one POST to the URL in {VARIABLE}"
    first = seen[0]
    if any(len(one.keys) != 1 for one in seen):
        return f"a request without one {place}"
    if len({one.keys for one in seen}) > 1:
        return f"{len({one.keys for one in seen})} keys for one operation: each new one could have a second effect"
    if any((one.line, one.body) != (first.line, first.body) for one in seen):
        return "another request under the same key"
    if not scenario.least <= len(seen) <= (scenario.most or len(seen)):
        return f"{len(seen)} request{'' if len(seen) == 1 else 's'}"
    if len(seen) > 1 and seen[1].at - first.at < scenario.pause:
        return f"a retry after {seen[1].at - first.at:.2f} s"
    return ""
