"""Every message between us and PostgreSQL is lost once: the request before it arrives, the reply before it is read.

Whatever the caller is told, repeating the same key ends with exactly one effect and its result.
FAULTS 2, 13, 14, 28.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from retrysafe import Boundary, InProgress, OutcomeUnknown, StoreUnavailable, current, wait
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, MOMENTS, Bank, Moment, Proxy, Told, driven, plain, rows_of, unique, until

pytestmark = pytest.mark.slow

MOST = 400
"""No guarded operation takes this many messages."""
UNCERTAIN: tuple[type[Exception], ...] = (StoreUnavailable, InProgress, OutcomeUnknown)
INSERT = "INSERT INTO {} VALUES ('{}', '{}')"


def _charge(table: str, key: str) -> tuple[str, str]:
    receipt = unique("receipt")
    return INSERT.format(table, key, receipt), receipt


class Points:
    """Walks through the messages of one operation, a fresh key at each.

    A connection that was cut after its last message is found dead by a later attempt, which is
    then no point of its own and is tried again.
    """

    def __init__(self, proxy: Proxy, moment: Moment) -> None:
        self._proxy = proxy
        self._moment = moment
        self._k = 0
        self.outcomes: Counter[str] = Counter()
        self.commits: Counter[str] = Counter()
        self.ended = False

    @property
    def points(self) -> int:
        """At how many messages the connection was cut."""
        return sum(self.outcomes.values())

    def __iter__(self) -> Iterator[str]:
        """A key per attempt; the body makes it, says how it ended by `note`, and repeats it until it is done."""
        self._k = 1
        while not self.ended:
            assert self._k < MOST, "the operation never ends"
            self._proxy.arm(self._k, self._moment)
            yield unique("key")

    def note(self, outcome: str) -> None:
        """Say how the attempt ended."""
        cut = self._proxy.cut
        self._proxy.disarm()
        if cut is None:
            self.ended = outcome == "done"
            return
        self._k += 1
        self.outcomes[outcome] += 1
        if b"COMMIT" in cut[1]:
            self.commits[outcome] += 1


def _try(operation: Callable[[], Any], also: tuple[type[Exception], ...] = ()) -> str:
    try:
        operation()
    except (*UNCERTAIN, *also) as error:
        return type(error).__name__
    return "done"


async def _atry(operation: Callable[[], Awaitable[Any]], also: tuple[type[Exception], ...] = ()) -> str:
    try:
        await operation()
    except (*UNCERTAIN, *also) as error:
        return type(error).__name__
    return "done"


def _done(operation: Callable[[str], Any], key: str) -> bool:
    return _try(partial(operation, key)) == "done"


def _answer(operation: Callable[[], Any]) -> Any:
    """The answer, asked for again where a pooled connection turns out to be dead."""
    found: list[Any] = []
    until(lambda: _try(lambda: found.append(operation())) == "done")
    return found[-1]


async def _aanswer(operation: Callable[[], Awaitable[Any]]) -> Any:
    """The same for async code."""
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while True:
        try:
            return await operation()
        except (StoreUnavailable, InProgress):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.002)


def _once_each(url: str, table: str, results: dict[str, str]) -> None:
    """One row per key, and every answer is the receipt in it."""
    rows = rows_of(url, table)
    assert len(rows) == len(dict(rows))
    assert dict(rows) == results


@pytest.mark.fault(2, 13, 14)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("effects", ["keyed", "external"])
def test_one_lost_message_never_shows_in_a_leased_operation(
    moment: Moment, effects: str, proxy: Proxy, make: Making, bank: Bank, told: Told
) -> None:
    boundary = make(proxy.url, effects=effects, lease="3s")

    @boundary.once(key="key")
    def charge(key: str) -> str:
        return bank.charge(key)

    charge("warm")
    points = Points(proxy, moment)
    for key in points:
        points.note(_try(partial(charge, key)))
        until(partial(_done, charge, key))
    assert points.points >= 20
    assert set(points.outcomes) == {"done"}
    assert set(bank.requests.values()) == {1}
    assert {key: _answer(partial(charge, key)) for key in bank.charges} == bank.charges
    assert not {"takeover", "result_not_stored", "lease_lost", "unknown", "released"} & set(told.names)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_one_lost_message_never_shows_in_an_async_leased_operation(
    moment: Moment, driver: str, proxy: Proxy, make: Making, bank: Bank, told: Told
) -> None:
    boundary = make(driven(proxy.url, driver), lease="3s")

    @boundary.once(key="key")
    async def charge(key: str) -> str:
        return bank.charge(key)

    await charge("warm")
    points = Points(proxy, moment)
    for key in points:
        points.note(await _atry(partial(charge, key)))
        await _aanswer(partial(charge, key))
    assert points.points >= 10
    assert set(points.outcomes) == {"done"}
    assert set(bank.requests.values()) == {1}
    assert {key: await _aanswer(partial(charge, key)) for key in bank.charges} == bank.charges
    assert not {"takeover", "result_not_stored", "lease_lost", "unknown", "released"} & set(told.names)
    await boundary.aclose()


@pytest.mark.fault(4, 13, 14, 28)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_lost_message_in_an_own_transaction_never_doubles_its_effect(
    moment: Moment, proxy: Proxy, make: Making, migrated: str, table: str
) -> None:
    boundary = make(proxy.url, effects="transactional")

    @boundary.once(key="key")
    def charge(key: str) -> str:
        sql, receipt = _charge(table, key)
        current().tx.execute(sql)
        return receipt

    charge("warm")
    points = Points(proxy, moment)
    broken = (psycopg.OperationalError,)  # the handler's own statement was lost: its own error
    for key in points:
        points.note(_try(partial(charge, key), broken))
        until(partial(_done, charge, key))
    assert points.points >= 30
    assert points.outcomes["StoreUnavailable"]
    if moment == "reply lost":
        assert points.commits, "COMMIT was among the lost messages"
    keys = [key for key, _ in rows_of(migrated, table)]
    _once_each(migrated, table, {key: _answer(partial(charge, key)) for key in keys})


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_lost_message_in_an_async_own_transaction_never_doubles_its_effect(
    moment: Moment, driver: str, proxy: Proxy, make: Making, migrated: str, table: str
) -> None:
    import asyncpg

    boundary = make(driven(proxy.url, driver), effects="transactional")

    @boundary.once(key="key")
    async def charge(key: str) -> str:
        sql, receipt = _charge(table, key)
        await current().tx.execute(sql)
        return receipt

    broken = (psycopg.OperationalError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
    await charge("warm")
    points = Points(proxy, moment)
    for key in points:
        points.note(await _atry(partial(charge, key), broken))
        await _aanswer(partial(charge, key))
    assert points.points >= 20
    assert points.outcomes["StoreUnavailable"]
    keys = [key for key, _ in rows_of(migrated, table)]
    _once_each(migrated, table, {key: await _aanswer(partial(charge, key)) for key in keys})
    await boundary.aclose()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_lost_message_in_the_callers_transaction_never_doubles_its_effect(
    moment: Moment, proxy: Proxy, make: Making, migrated: str, table: str
) -> None:
    boundary = make(plain(proxy.url), effects="transactional")

    def charge(tx: psycopg.Connection[Any], key: str) -> str:
        with tx, boundary.claim(key, tx=tx) as claim:  # `with tx` commits and closes
            if not claim.replayed:
                sql, claim.result = _charge(table, key)
                tx.execute(sql.encode())
        result: str = claim.result
        return result

    def fresh(key: str) -> str:
        return charge(psycopg.connect(proxy.url), key)

    fresh("warm")
    points = Points(proxy, moment)
    tx = psycopg.connect(proxy.url)
    for key in points:
        points.note(_try(partial(charge, tx, key), (psycopg.OperationalError,)))
        until(partial(_done, fresh, key))
        tx = psycopg.connect(proxy.url)  # ready before the next point is armed
    tx.close()
    assert points.points >= 25
    assert points.commits
    keys = [key for key, _ in rows_of(migrated, table)]
    _once_each(migrated, table, {key: fresh(key) for key in keys})


@pytest.mark.fault(28)
@pytest.mark.parametrize("driver", ["", "psycopg", "asyncpg"])
def test_a_commit_whose_reply_is_lost_is_read_back(
    driver: str, proxy: Proxy, make: Making, migrated: str, table: str, told: Told
) -> None:
    """Just COMMIT's own messages: the commit happened, so the caller gets the result and no error."""
    boundary = make(driven(proxy.url, driver) if driver else proxy.url, effects="transactional")
    lost: list[bool] = []

    def arm() -> None:
        # the settling UPDATE and COMMIT follow; cut on the first reply that says COMMIT
        lost.append(_cut_on_commit(proxy))

    if not driver:
        with boundary.claim("warm"):
            pass
        with boundary.claim("key") as claim:
            sql, claim.result = _charge(table, "key")
            claim.tx.execute(sql)
            arm()
        receipt = claim.result
    else:

        async def main() -> Any:
            async with boundary.claim("key") as claim:
                sql, claim.result = _charge(table, "key")
                await claim.tx.execute(sql)
                arm()
            await boundary.aclose()
            return claim.result

        receipt = asyncio.run(main())
    assert proxy.cut == ("<", b"C\x00\x00\x00\x0bCOMMIT\x00")
    assert rows_of(migrated, table) == [("key", receipt)]
    assert told.names["completed"] == (1 if driver else 2)


@pytest.mark.fault(2)
@pytest.mark.parametrize("before", ["absent", "released"])
def test_a_claim_still_under_way_when_its_reply_is_lost_is_found_again(
    before: str, proxy: Proxy, make: Making, migrated: str
) -> None:
    """The server is still performing our first request when we ask again: the key is ours, not a rival's."""
    from retrysafe.protocol import keys

    boundary = make(proxy.url)
    if before == "released":
        with pytest.raises(ZeroDivisionError), boundary.claim("key"):
            raise ZeroDivisionError
    with boundary.claim("warm"):
        pass
    lookup = keys.lookup(None, boundary.name, "", boundary.name, "key")
    results: list[str] = []

    def work() -> None:
        with boundary.claim("key") as claim:
            claim.result = claim.token
        results.append("done")

    with psycopg.connect(migrated) as rival, psycopg.connect(migrated, autocommit=True) as watching:
        rival.execute(_BLOCKING if before == "absent" else _LOCKING, (lookup,))

        def waiting() -> int:
            return watching.execute(_WAITING).rowcount

        caller = threading.Thread(target=work)
        caller.start()
        until(lambda: waiting() == 1)
        proxy.drop()  # the reply will never come; the server works on
        until(lambda: not caller.is_alive() or waiting() == 2)
        rival.rollback()
    caller.join(DEADLINE)
    assert results == ["done"]


_BLOCKING = "INSERT INTO retrysafe_records SELECT %s, 'r', '', '', '', 'running', 'r', 1, 1, 'keyed', 0, 0, 0, 0, 0, 1"
_LOCKING = "SELECT 1 FROM retrysafe_records WHERE key_hash = %s FOR UPDATE"
_WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def _cut_on_commit(proxy: Proxy) -> bool:
    proxy.cut_on(b"COMMIT\x00", "<")
    return True


@pytest.mark.fault(28)
def test_a_commit_whose_request_is_lost_says_that_the_effect_may_have_happened(
    proxy: Proxy, make: Making, migrated: str, table: str
) -> None:
    boundary: Boundary = make(proxy.url, effects="transactional")
    runs: list[str] = []

    def charge() -> str:
        with boundary.claim("key") as claim:
            if not claim.replayed:
                sql, claim.result = _charge(table, "key")
                claim.tx.execute(sql)
                runs.append(claim.result)
                if len(runs) == 1:
                    proxy.cut_on(b"COMMIT\x00", ">")
        result: str = claim.result
        return result

    with pytest.raises(StoreUnavailable, match="from a commit, the effect may have happened") as caught:
        charge()
    assert (caught.value.effect_happened, caught.value.retry_same_key) == ("maybe", True)
    until(lambda: _try(charge) == "done")
    assert rows_of(migrated, table) == [("key", runs[-1])]
    assert charge() == runs[-1]
    assert len(runs) == 2


@pytest.mark.fault(28)
def test_a_record_of_another_attempt_is_not_taken_for_the_own_one(
    proxy: Proxy, make: Making, migrated: str, table: str
) -> None:
    """COMMIT is lost, the server rolls back, and another attempt completes the key before we look."""
    boundary = make(proxy.url, effects="transactional")
    rival = make(migrated, effects="transactional", name=boundary.name, concurrency=wait(DEADLINE))

    def overtake() -> None:
        with rival.claim("key") as claim:
            assert not claim.replayed
            sql, claim.result = _charge(table, "key")
            claim.tx.execute(sql)

    proxy.meanwhile = overtake
    with (
        pytest.raises(StoreUnavailable, match="from a commit, the effect may have happened"),
        boundary.claim("key") as claim,
    ):
        sql, claim.result = _charge(table, "key")
        claim.tx.execute(sql)
        proxy.cut_on(b"COMMIT\x00", ">")
    with boundary.claim("key") as claim:
        assert claim.replayed
        assert rows_of(migrated, table) == [("key", claim.result)]
