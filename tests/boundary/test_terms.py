"""The terms of a boundary: what is refused when it is built, windows, scopes, probes, doubt, observers."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe import (
    Boundary,
    Claim,
    ConfigurationError,
    Event,
    InProgress,
    KeyExpired,
    KeyReused,
    LoggingObserver,
    OutcomeUnknown,
    StoredFailure,
    current,
    wait,
)
from retrysafe.backends.memory.store import MemoryStore
from retrysafe.claims.codec import JSONCodec
from retrysafe.claims.observers import EVENTS, Observers
from retrysafe.claims.plan import Plans
from retrysafe.protocol.fingerprint import UNCHECKED
from tests.stores.harnesses.memory import FakeClock, memory_backend
from tests.tables import each_row

# ---------------------------------------------------------------- refused when built


@each_row(
    ("terms", "names"),
    [
        ({"effects": "transactional"}, "effects='transactional'"),
        ({"effects": "exactly-once"}, "effects="),
        ({"window": "1h", "memory": "59m"}, "memory="),
        ({"on_expired": "refuse"}, "memory="),
        ({"on_expired": "never"}, "on_expired="),
        ({"on_missing": "ignore"}, "on_missing="),
        ({"lease": "soon"}, "lease="),
        ({"lease": 0}, "lease="),
        ({"lease": True}, "lease="),
        ({"window": float("nan")}, "window="),
        ({"window": "200000d"}, "window="),
        ({"concurrency": 5}, "concurrency="),
        ({"permanent": [int]}, "permanent="),
        ({"permanent": KeyboardInterrupt}, "permanent="),
        ({"store": "couchdb://x"}, "unknown kind of URL"),
        ({"store": object()}, "store="),
        ({"store": "sqlite://:memory:"}, "memory://"),
        ({"store": "sqlite:///x.db?busy=soon"}, "busy='soon' is not a duration"),
        ({"store": "sqlite:///x.db?sychronous=FULL"}, "no option 'sychronous'"),
        ({"store": "mysql://localhost"}, "write mysql://"),
        ({"store": "mysql://u:hunter2@localhost/a/b"}, r"mysql://u:\*\*\*@localhost/a/b"),
        ({"store": "mariadb+pymysql://localhost/shop?charset=latin1"}, "charset is utf8mb4"),
        ({"store": "mysql+asyncmy://localhost/shop?ssl_key=x"}, "go with ssl_ca"),
        ({"name": ""}, "name"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused(terms: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigurationError, match=names.replace("(", r"\(")):
        Boundary(**{"name": "x", "store": "memory://", **terms})


@each_row("seconds", [0, -1, float("inf"), "later", None])
def test_wait_needs_a_time(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="wait="):
        wait(seconds)


def test_a_network_store_is_not_contacted_when_built() -> None:
    boundary = Boundary("x", store="postgresql://nobody@127.0.0.1:1/nothing")
    assert "postgresql://nobody@127.0.0.1:1/nothing" in repr(boundary)
    boundary.close()


def test_passwords_are_not_shown() -> None:
    boundary = Boundary("x", store="postgresql://me:secret@127.0.0.1:1/nothing")
    assert "secret" not in repr(boundary)
    boundary.close()


# ---------------------------------------------------------------- on a clock of our own


class Timed:
    """A boundary on a memory store whose time passes only when a test says so."""

    def __init__(self, **terms: Any) -> None:
        self.clock = FakeClock()
        self.seen: list[Event] = []
        self.boundary = Boundary("timed", store="memory://", observers=[self.seen.append], **terms)
        self.use(backend=memory_backend(self.clock))

    def use(self, **terms: Any) -> None:
        """Replace some of the boundary's terms."""
        entry = self.boundary.entrypoint
        entry.settings = entry.settings._replace(**terms)
        entry._plans = Plans(entry.settings)

    def names(self) -> list[str]:
        return [occurrence.name for occurrence in self.seen]

    def die(self, key: str = "k") -> Claim:
        """Claim and leave the claim as a process that died would."""
        claim = self.boundary.claim(key)
        claim.__enter__()
        claim._context.leave()
        return claim


@pytest.mark.fault(78)
def test_result_and_key_have_separate_clocks() -> None:
    timed = Timed(window="1h", memory="3h", on_expired="refuse")
    with timed.boundary.claim("k") as claim:
        claim.result = 1
    timed.clock.elapse(3599)
    with timed.boundary.claim("k") as claim:
        assert claim.replayed
    timed.clock.elapse(2)
    with pytest.raises(KeyExpired), timed.boundary.claim("k"):
        pytest.fail("a refused claim must not run")
    timed.clock.elapse(2 * 3600)
    with timed.boundary.claim("k") as claim:
        assert not claim.replayed
    assert timed.names().count("expired_refused") == 1


def test_memory_lets_go_of_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no sweeper, so a new key makes room."""
    monkeypatch.setattr(MemoryStore, "_room", 3)
    timed = Timed(window="1h", memory="1h")
    records = timed.boundary.entrypoint.settings.backend.client().records
    sizes = []
    for number in range(12):
        with timed.boundary.claim(number):
            sizes.append(len(records))
        timed.clock.elapse(2 * 3600)
    assert max(sizes) <= 3


@pytest.mark.fault(78)
def test_an_expired_key_is_new_work_by_default() -> None:
    timed = Timed(window="1h", memory="3h")
    with timed.boundary.claim("k", payload=1) as claim:
        first = claim.token
    timed.clock.elapse(3601)
    with timed.boundary.claim("k", payload=2) as claim:
        assert not claim.replayed
        assert claim.token > first
    assert "reclaimed" in timed.names()


def test_a_dead_keyed_attempt_is_taken_over_with_the_same_derived_keys() -> None:
    timed = Timed(effects="keyed")
    dead = timed.die()
    for later, told in ((0, 1), (14, 1), (2, 14), (13.5, 1)):
        timed.clock.elapse(later)
        with pytest.raises(InProgress) as caught, timed.boundary.claim("k"):
            pytest.fail("the lease has not lapsed")
        assert caught.value.retry_after == pytest.approx(told), "half of a lease without a renewal"
    timed.clock.elapse(1)
    with timed.boundary.claim("k") as claim:
        assert claim.token > dead.token
        assert claim.attempt_id != dead.attempt_id
        assert claim.key_for("bank") == dead.key_for("bank")
        assert claim.key_for("bank") != claim.key_for("mail")
    assert "takeover" in timed.names()


def test_a_dead_external_attempt_is_quarantined() -> None:
    timed = Timed(effects="external")
    timed.die()
    timed.clock.elapse(31)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown), timed.boundary.claim("k"):
            pytest.fail("an unknown outcome must not be rerun")
    assert timed.names().count("unknown_refused") == 2


Probe = Callable[[Claim], Any]


def probe_completed(claim: Claim) -> None:
    claim.result = {"found": len(claim.key_for("bank"))}
    claim.committed()


def probe_nothing(claim: Claim) -> None:
    claim.not_executed()


def probe_failed(claim: Claim) -> None:
    claim.fail(ValueError("declined"))


def probe_clueless(claim: Claim) -> None: ...


def probe_broken(claim: Claim) -> None:
    raise ConnectionError("bank is down")


def test_a_probe_that_finds_the_effect_gives_its_result() -> None:
    timed = Timed(effects="external", probe=probe_completed)
    timed.die()
    timed.clock.elapse(31)
    for _ in range(2):
        with timed.boundary.claim("k") as claim:
            assert claim.replayed
            assert claim.result == {"found": 36}
    assert timed.names().count("probed") == 1


def test_a_probe_that_finds_nothing_lets_the_work_run() -> None:
    timed = Timed(effects="external", probe=probe_nothing)
    timed.die()
    timed.clock.elapse(31)
    with timed.boundary.claim("k") as claim:
        assert not claim.replayed
        assert claim.result is None


def test_a_probe_that_finds_a_failure_stores_it() -> None:
    timed = Timed(effects="external", probe=probe_failed)
    timed.die()
    timed.clock.elapse(31)
    for _ in range(2):
        with pytest.raises(StoredFailure, match="declined"), timed.boundary.claim("k"):
            pytest.fail("a failure must not be rerun")


@each_row("probe", [probe_clueless, probe_broken])
def test_a_probe_that_cannot_tell_leaves_the_key_unknown(probe: Probe) -> None:
    timed = Timed(effects="external", probe=probe)
    timed.die()
    timed.clock.elapse(31)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown), timed.boundary.claim("k"):
            pytest.fail("an unknown outcome must not be rerun")


def test_an_async_probe_is_awaited_in_async_code_and_refused_in_sync_code() -> None:
    async def probe(claim: Claim) -> None:
        await asyncio.sleep(0)
        probe_completed(claim)

    timed = Timed(effects="external", probe=probe)
    timed.die()
    timed.clock.elapse(31)
    with pytest.raises(ConfigurationError, match="coroutine"), timed.boundary.claim("k"):
        pytest.fail("not with an async probe")

    async def main() -> None:
        async with timed.boundary.claim("k") as claim:
            assert claim.result == {"found": 36}

    asyncio.run(main())


@each_row(("outcome", "result"), [("completed", {"id": 7}), ("failed", "declined"), ("released", None)])
def test_a_person_settles_what_is_unknown(outcome: Any, result: Any) -> None:
    timed = Timed(effects="external")
    timed.die()
    assert not timed.boundary.resolve("k", outcome, result=result), "it is still running"
    timed.clock.elapse(31)
    with pytest.raises(OutcomeUnknown), timed.boundary.claim("k"):
        pytest.fail("an unknown outcome must not be rerun")
    assert timed.boundary.resolve("k", outcome, result=result)
    assert not timed.boundary.resolve("k", outcome, result=result), "only once"
    assert timed.seen[-1].fields == {"outcome": outcome}
    if outcome == "failed":
        with pytest.raises(StoredFailure, match="declined"), timed.boundary.claim("k"):
            pytest.fail("a failure must not be rerun")
    else:
        with timed.boundary.claim("k") as claim:
            assert claim.replayed == (outcome == "completed")
            assert claim.result == result


def test_resolving_in_async_code() -> None:
    timed = Timed(effects="external")
    timed.die()
    timed.clock.elapse(31)

    async def main() -> None:
        with pytest.raises(OutcomeUnknown):
            await timed.boundary.claim("k").__aenter__()
        assert await timed.boundary.aresolve("k", "completed", result=3)
        async with timed.boundary.claim("k") as claim:
            assert claim.result == 3

    asyncio.run(main())


@each_row(
    ("effects", "said", "state"),
    [
        ("keyed", None, "released"),
        ("keyed", "committed", "unknown"),
        ("keyed", "not_executed", "released"),
        ("external", None, "unknown"),
        ("external", "committed", "unknown"),
        ("external", "not_executed", "released"),
    ],
)
@each_row("error", [ValueError, KeyboardInterrupt, asyncio.CancelledError])
def test_leased_failures(effects: Any, said: str | None, state: str, error: type[BaseException]) -> None:
    timed = Timed(effects=effects)
    with pytest.raises(error), timed.boundary.claim("k") as claim:
        if said is not None:
            getattr(claim, said)()
        raise error
    (record,) = timed.boundary._settings.backend.client().records.values()  # type: ignore[attr-defined]
    assert record.state == state


@pytest.mark.fault(74)
def test_scopes_keep_tenants_apart() -> None:
    tenant = "a"
    boundary = Boundary("scoped", store="memory://", scope=lambda: tenant)
    with boundary.claim("k") as claim:
        claim.result = "of a"
    tenant = "b"
    with boundary.claim("k") as claim:
        assert not claim.replayed
    with boundary.claim("k", scope="a") as claim:
        assert claim.result == "of a"


@each_row("unknown", [None, ""])
def test_a_scope_that_is_not_known_is_refused(unknown: Any) -> None:
    """Else all tenants that were forgotten would share one scope."""
    boundary = Boundary("scoped", store="memory://", scope=lambda: unknown)
    with pytest.raises(ConfigurationError, match="no tenant or principal"):
        boundary.claim("k")


def test_a_secret_changes_derived_keys() -> None:
    keys = set()
    for secret in (None, "one", b"two"):
        with Boundary("s", store="memory://", secret=secret).claim("k") as claim:
            keys.add(claim.key_for("bank"))
    assert len(keys) == 3


# ---------------------------------------------------------------- small contracts of a claim


def test_a_claim_is_entered_once() -> None:
    claim = Boundary("x", store="memory://").claim("k")
    with claim:
        pass
    with pytest.raises(ConfigurationError, match="only once"), claim:
        pytest.fail("a used claim must not be entered")


def test_a_claim_that_is_never_entered_is_told_of() -> None:
    boundary = Boundary("x", store="memory://")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        boundary.claim("k")
        gc.collect()  # elsewhere than in CPython it is not gone at once
    assert "boundary 'x' was never entered, so that it guarded nothing" in str(told[0].message)
    assert told[0].filename == __file__


def test_a_claim_that_could_not_be_entered_is_not_told_of() -> None:
    boundary = Boundary("x", store="memory://")
    with boundary.claim("k"), pytest.raises(InProgress), boundary.claim("k"):
        pytest.fail("another attempt is at work")
    gc.collect()  # a warning would be an error


def test_current_outside_a_guarded_operation() -> None:
    with pytest.raises(ConfigurationError, match="outside"):
        current()


def test_current_is_the_innermost_open_claim() -> None:
    boundary = Boundary("x", store="memory://")
    with boundary.claim("a") as outer:
        with boundary.claim("b") as inner:
            assert current() is inner
        assert current() is outer


def test_a_replay_holds_no_token() -> None:
    boundary = Boundary("x", store="memory://")
    with boundary.claim("a"):
        pass
    with boundary.claim("a") as claim, pytest.raises(ConfigurationError, match="does not hold"):
        assert claim.token


def test_a_closed_boundary_is_refused() -> None:
    boundary = Boundary("x", store="memory://")
    boundary.close()
    boundary.close()
    with pytest.raises(ConfigurationError, match="closed"):
        boundary.claim("k")


# ---------------------------------------------------------------- observers


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("retrysafe.test")
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.setLevel(logging.NOTSET)


def test_the_log_never_shows_a_raw_key(log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    timed = Timed()
    timed.use(observers=Observers((LoggingObserver(log), timed.seen.append)))
    secret = "card-4242424242424242"
    with timed.boundary.claim(secret, payload="topsecret") as claim:
        claim.result = "hidden result"
    with timed.boundary.claim(secret, payload="topsecret"):
        pass
    with pytest.raises(KeyReused), timed.boundary.claim(secret, payload="other"):
        pass
    assert {"started", "completed", "replayed", "mismatch"} <= set(timed.names())
    text = caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    assert "boundary=timed" in text
    for hidden in (secret, "42424242", "topsecret", "hidden result"):
        assert hidden not in text


def test_an_observer_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []

    def broken(occurrence: Event) -> None:
        raise RuntimeError("observer is broken")

    boundary = Boundary("x", store="memory://", observers=[broken, seen.append])
    with boundary.claim("k") as claim:
        claim.result = 1
    assert [occurrence.name for occurrence in seen] == [
        "received",
        "store_request",
        "started",
        "store_request",
        "completed",
    ]
    assert "observer is broken" in caplog.text


def test_every_occurrence_that_is_told_is_declared() -> None:
    package = Path(__file__).parents[2].joinpath("src/retrysafe")
    sources = (path for path in package.rglob("*.py") if "testing" not in path.parts)
    text = "".join(source.read_text() for source in sources)
    import re

    told = set(re.findall(r'\.(?:_?emit|_tell)\(\s*\*?\(?"(\w+)"', text))
    assert len(told) > 30
    assert told <= EVENTS.keys()
    for name in EVENTS:
        assert f'"{name}"' in text.replace(f'    "{name}": (logging', ""), f"{name} is declared but never told"


def test_a_relative_sqlite_url_stays_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    monkeypatch.chdir(one)
    boundary = Boundary("x", store="sqlite:///shop.db")
    monkeypatch.chdir(two)
    with boundary.claim("k") as claim:
        claim.result = 1
    assert not any(two.iterdir())
    boundary.close()
    with Boundary("x", store=f"sqlite:///{one / 'shop.db'}").claim("k") as claim:
        assert claim.replayed


def test_a_replays_answer_stands() -> None:
    boundary = Boundary("x", store="memory://")
    with boundary.claim("k") as claim:
        claim.result = 1
    with pytest.raises(ConfigurationError, match="whose stored result cannot change"), boundary.claim("k") as claim:
        claim.result = 2
    with boundary.claim("k") as claim:
        assert claim.result == 1


@each_row("operation", [["pay"], {"pay"}, 7, b"pay"])
def test_an_operation_that_is_no_text_is_refused(operation: Any) -> None:
    boundary = Boundary("shop", store="memory://", observers=())
    with pytest.raises(ConfigurationError, match="operation= must be text"):
        boundary.claim("k", operation=operation)
    boundary.close()


def test_tenants_without_number_leave_a_bounded_trace() -> None:
    boundary = Boundary("shop", store="memory://", observers=())
    for tenant in range(3000):
        with boundary.claim("k", scope=f"tenant {tenant}") as claim:
            claim.result = tenant
    with boundary.claim("k", scope="tenant 0") as claim:
        assert (claim.replayed, claim.result) == (True, 0)
    assert len(boundary.entrypoint._plans._plans) <= 1024
    boundary.close()


def test_codecs_without_number_leave_a_bounded_trace() -> None:
    boundary = Boundary("shop", store="memory://", observers=())
    for number in range(200):
        with boundary.entrypoint.open(f"k{number}", operation="o", fingerprint=UNCHECKED, codec=JSONCodec()) as claim:
            claim.result = number
    assert len(boundary.entrypoint._plans._with_codecs) <= 64
    boundary.close()


class Folded(str):
    """Text that is equal to itself in capitals."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str(self).lower() == str(other).lower()

    def __hash__(self) -> int:
        return hash(str(self).lower())


@each_row("term", ["scope", "operation"])
def test_names_that_compare_equal_and_are_not_have_keys_of_their_own(term: str) -> None:
    boundary = Boundary("shop", store="memory://", observers=())
    for name in ("Ann", "ANN"):
        terms: dict[str, Any] = {term: Folded(name)}
        with boundary.claim("k", **terms) as claim:
            assert not claim.replayed
            claim.result = name
    terms = {term: "Ann"}
    with boundary.claim("k", **terms) as claim:
        assert (claim.replayed, claim.result) == (True, "Ann")
    boundary.close()
