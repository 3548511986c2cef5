"""Events and logs: the wishes of observers, one line per occurrence, JSON, and aliases."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from retrysafe import Boundary, Event, InProgress, KeyReused, LoggingObserver
from retrysafe.claims.observers import EVENTS, Observers
from retrysafe.claims.repeats import Repeats
from retrysafe.messaging.brokers.kafka.properties import LOG
from retrysafe.observability.json_logs import JsonFormatter
from tests.tables import each_row

BASE = {"time", "level", "logger", "message", "event", "alias", "boundary", "operation", "key", "attempt", "exception"}


class Log:
    """A logger that writes to memory."""

    def __init__(self, formatter: logging.Formatter, level: int) -> None:
        self._stream = io.StringIO()
        self.logger = logging.getLogger(f"retrysafe.test.{id(self)}")
        self.logger.propagate = False
        self.logger.setLevel(level)
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(formatter)
        self.logger.addHandler(handler)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()


def occurrence(name: str, **fields: Any) -> Event:
    return Event(name, "b", "o", "0a1b2c3d", "attempt", fields)


# ---------------------------------------------------------------- lines of text


INJECTED = "x\nERROR lease_lost\r\x1b[2J\u2028\x85\u202e key=00000000"


@each_row("name", EVENTS)
def test_no_field_can_begin_a_line_or_pass_for_another_field(name: str) -> None:
    log = Log(logging.Formatter("%(message)s"), logging.DEBUG)
    fields = dict.fromkeys(EVENTS[name].fields, INJECTED)
    LoggingObserver(log.logger)(Event(name, INJECTED, INJECTED, "0a1b2c3d", "attempt", fields))
    (line,) = log.lines
    assert line.isprintable()
    assert line.count('"x\\nERROR lease_lost\\r\\x1b[2J\\u2028\\x85\\u202e key=00000000"') == 2 + len(fields)


def test_a_value_that_looks_like_fields_is_quoted() -> None:
    log = Log(logging.Formatter("%(message)s"), logging.DEBUG)
    for operation in ("charge key=00000000", "key=00000000", 'say"', "back\\slash"):
        LoggingObserver(log.logger)(Event("completed", "b", operation, "0a1b2c3d", "attempt", {}))
    assert [line.partition("operation=")[2].partition(" key=0a")[0] for line in log.lines] == [
        '"charge key=00000000"', '"key=00000000"', r'"say\""', r'"back\\slash"',
    ]  # fmt: skip


def test_parts_that_differ_cannot_either() -> None:
    log = Log(logging.Formatter("%(message)s"), logging.DEBUG)
    LoggingObserver(log.logger)(occurrence("mismatch", differing=("amount", INJECTED, '"')))
    LoggingObserver(log.logger)(occurrence("mismatch", differing=("amount", "currency")))
    assert len(log.lines) == 2
    assert log.lines[0].isprintable()
    assert log.lines[0].endswith('key=00000000,\\""')
    assert log.lines[1] == "mismatch boundary=b operation=o key=0a1b2c3d attempt=attempt differing=amount,currency"


def test_an_operation_with_a_line_separator_is_one_line() -> None:
    log = Log(logging.Formatter("%(levelname)s %(message)s"), logging.DEBUG)
    boundary = Boundary("x\u2028ERROR", store="memory://", observers=[LoggingObserver(log.logger)])
    with boundary.claim("k", operation="charge\u2028key=1", scope="a\u2029b"):
        pass
    assert len(log.lines) == 5
    assert all(line.isprintable() for line in log.lines)
    boundary.close()


# ---------------------------------------------------------------- JSON


def test_json_of_a_call_its_replay_and_a_mismatch() -> None:
    log = Log(JsonFormatter(), logging.DEBUG)
    boundary = Boundary("charges", store="memory://", observers=[LoggingObserver(log.logger)])
    for payload in (1, 1, {"amount": "secret"}):
        try:
            with boundary.claim("secret-key", payload=payload) as claim:
                if not claim.replayed:
                    claim.result = "secret"
        except KeyReused:
            pass
    boundary.close()
    lines = [json.loads(line) for line in log.lines]
    assert [(line["event"], line.get("alias")) for line in lines if line["event"] != "store_request"] == [
        ("received", "IdempotencyKeyReceived"),
        ("started", "NewRequestProcessing"),
        ("completed", None),
        ("received", "IdempotencyKeyReceived"),
        ("replayed", "CachedResponseReturned"),
        ("received", "IdempotencyKeyReceived"),
        ("mismatch", None),
    ]
    assert {(line["boundary"], line["operation"], len(line["key"])) for line in lines} == {("charges", "charges", 8)}
    assert lines[-1]["level"] == "WARNING"
    assert lines[0]["effects"] == "keyed"
    assert lines[0]["time"].endswith("+00:00")
    assert "secret" not in "".join(log.lines)


def test_json_of_other_records_and_of_what_json_cannot_say() -> None:
    log = Log(JsonFormatter(), logging.DEBUG)
    log.logger.info("hello %s", "you\nthere")
    try:
        raise ValueError("x")
    except ValueError:
        log.logger.exception("failed")
    LoggingObserver(log.logger)(occurrence("probed", outcome={1, 2}.__iter__()))
    hello, failed, probed = (json.loads(line) for line in log.lines)
    assert hello["message"] == "hello you\nthere"
    assert "event" not in hello
    assert "ValueError: x" in failed["exception"]
    assert probed["event"] == "probed"


def test_no_field_hides_another() -> None:
    for meaning in EVENTS.values():
        assert BASE.isdisjoint(meaning.fields)


# ---------------------------------------------------------------- who is told what


class Choosy:
    """Wants only some names."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.seen: list[Event] = []

    def is_enabled(self, name: str, /) -> bool:
        return name in self.names

    def __call__(self, occurrence: Event, /) -> None:
        self.seen.append(occurrence)


def test_an_observer_is_told_what_it_wants_and_nothing_is_made_for_nobody() -> None:
    one, two = Choosy("completed"), Choosy("completed", "received")
    boundary = Boundary("x", store="memory://", observers=[one, two])
    with boundary.claim("k"):
        pass
    assert [occurrence.name for occurrence in one.seen] == ["completed"]
    assert [occurrence.name for occurrence in two.seen] == ["received", "completed"]
    assert one.seen[0] is two.seen[1]
    boundary.close()


def test_the_store_is_timed_only_for_those_who_want_to_know() -> None:
    unasked = Boundary("x", store="memory://", observers=[Choosy("completed")])
    with unasked.claim("k") as claim:
        assert type(claim._mode).__name__ == "LeaseMode"
    asked = Choosy("store_request")
    timed = Boundary("x", store="memory://", observers=[asked])
    with timed.claim("other"):
        pass
    assert [occurrence.fields["step"] for occurrence in asked.seen] == ["claim", "settle"]
    assert all(0 <= occurrence.fields["seconds"] < 10 for occurrence in asked.seen)
    assert all(occurrence.fields["answered"] for occurrence in asked.seen)
    unasked.close()
    timed.close()


@each_row("level", [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR])
def test_the_log_wants_what_its_level_takes(level: int) -> None:
    log = Log(logging.Formatter(), level)
    observer = LoggingObserver(log.logger)
    for name, meaning in EVENTS.items():
        assert observer.is_enabled(name) == (meaning.level >= level)
    assert observer.takes_details() == (level < logging.WARNING)


class Sparing(Choosy):
    """Takes every event, or warnings and errors only."""

    def __init__(self) -> None:
        super().__init__(*EVENTS)
        self.details = False

    def takes_details(self) -> bool:
        return self.details


def test_an_observer_without_details_of_an_attempt_is_told_of_its_warnings() -> None:
    sparing = Sparing()
    boundary = Boundary("x", store="memory://", observers=[sparing])
    with boundary.claim("k", payload=1):
        pass
    with pytest.raises(KeyReused), boundary.claim("k", payload=2):
        pytest.fail("not to be run")
    assert [event.name for event in sparing.seen] == ["mismatch"]
    sparing.details = True
    with boundary.claim("other"):
        sparing.details = False  # it is asked when an attempt begins
    with boundary.claim("other"):
        pass
    assert [event.name for event in sparing.seen[1:]] == [
        "received", "store_request", "started", "store_request", "completed",
    ]  # fmt: skip
    boundary.close()


def test_all_are_told_of_what_one_takes() -> None:
    sparing, other = Sparing(), Choosy("received", "completed")
    boundary = Boundary("x", store="memory://", observers=[sparing, other])
    with boundary.claim("k"):
        pass
    assert [event.name for event in other.seen] == ["received", "completed"]
    assert {"started", "completed"} <= {event.name for event in sparing.seen}, "who is told of one is told of all"
    boundary.close()


class Watching:
    """Gives watches, or fails to; each part may be broken."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.seen: list[str] = []
        self.closed: list[BaseException | None] = []

    def _fail(self, part: str) -> None:
        if self.broken == part:
            raise RuntimeError(f"broken {part}")

    def __call__(self, occurrence: Event, /) -> None:
        self.seen.append(f"not watched: {occurrence.name}")

    def watch(self, received: Event, /) -> Watching._Watch:
        self._fail("watch")
        return Watching._Watch(self)

    class _Watch:
        def __init__(self, owner: Watching) -> None:
            self._owner = owner

        def __call__(self, occurrence: Event, /) -> None:
            self._owner._fail("told")
            self._owner.seen.append(occurrence.name)

        def close(self, error: BaseException | None, /) -> None:
            self._owner._fail("close")
            self._owner.closed.append(error)


def test_a_watch_is_told_in_its_observers_place_and_closed_once() -> None:
    watching = Watching()
    boundary = Boundary("x", store="memory://", effects="external", observers=[watching])
    with boundary.claim("k"):
        pass
    error = ValueError("x")
    with pytest.raises(ValueError, match="x"), boundary.claim("other"):
        raise error
    with pytest.raises(InProgress) as conflict, boundary.claim("third"), boundary.claim("third"):
        pytest.fail("twice")
    assert boundary.resolve("other", "released")
    assert watching.seen == [
        "received", "store_request", "started", "store_request", "completed",
        "received", "store_request", "started", "store_request", "unknown",
        "received", "store_request", "started", "received", "store_request", "unknown",
        "not watched: resolved",
    ]  # fmt: skip
    assert watching.closed == [None, error, conflict.value, conflict.value]
    boundary.close()


class Undecided:
    """Cannot say what it wants."""

    def is_enabled(self, name: str, /) -> bool:
        raise RuntimeError("broken wants")

    def __call__(self, occurrence: Event, /) -> None:
        pytest.fail("told without being asked")


@pytest.mark.parametrize("part", ["wants", "watch", "told", "close"])
def test_an_observer_that_fails_in_any_part_stops_nobody(part: str, caplog: pytest.LogCaptureFixture) -> None:
    after = Choosy("completed")
    boundary = Boundary("x", store="memory://", observers=[Undecided() if part == "wants" else Watching(part), after])
    with boundary.claim("k") as claim:
        claim.result = 1
    assert [occurrence.name for occurrence in after.seen] == ["completed"]
    assert f"broken {part}" in caplog.text
    boundary.close()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    yield
    logging.getLogger("retrysafe").setLevel(logging.NOTSET)


def test_telling_nobody_makes_nothing() -> None:
    unreadable: Any = None  # a key is redacted only for somebody
    observers = Observers([Choosy()])
    observers.emit("received", "b", "o", unreadable, "a", {})
    assert not observers.is_enabled("received")


def test_an_outage_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    observer = LoggingObserver()
    observer._repeats = Repeats(lambda: now[0])

    def fails(error: str, times: int) -> None:
        for _ in range(times):
            now[0] += 30.0
            observer(Event("consumer_failed", "stock", "stock", "", "", {"error": error}))

    with caplog.at_level(logging.WARNING):
        fails("OSError: 10.0.0.1:5672 refuses", 100)
        fails("OSError: another", 1)
        now[0] += 61.0
        fails("OSError: 10.0.0.1:5672 refuses", 100)
        for attempt in range(100):
            LOG.warning("%s", f"FAIL [rdkafka#consumer-1] 10.0.0.1:9092: refused (after {attempt}ms in state CONNECT)")
    assert [line.getMessage().rpartition(": ")[2][:20] for line in caplog.records] == [
        "10.0.0.1:5672 refuse",
        'another"',
        "10.0.0.1:5672 refuse",
        "refused (after 0ms i",
    ]
