"""A scripted world for programs: every ask is labelled, and every reply to it is tried.

`every_path` walks the tree of all replies; `replay` drives one path through a real driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.records import ClaimRequest, Clocks, Effects, Ownership, Record, State, StoredResult
from retrysafe.protocol.requests import Ask, Program
from retrysafe.protocol.store import Capabilities
from retrysafe.protocol.transitions import Transition

CLOCKS = Clocks(lease=10, window=100, memory=200)
NOW = 1000
RESULT = StoredResult(b"result", "text/plain", 1)
OTHER_RESULT = StoredResult(b"other result", "text/plain", 1)


def want(effects: Effects = "keyed") -> ClaimRequest:
    """Return the claim of the attempt under test."""
    return ClaimRequest(b"key", "b", "", "op", b"payload", "me", effects, CLOCKS)


def record(state: State = State.RUNNING, attempt: str = "other", **changes: Any) -> Record:
    """A record of another attempt, live unless changed."""
    made = Record(
        key=b"key",
        boundary="b",
        scope="",
        operation="op",
        fingerprint=b"payload",
        state=state,
        attempt=attempt,
        token=7,
        attempts=1,
        effects="keyed",
        lease_until=NOW + 5,
        created=NOW,
        updated=NOW,
        expires=NOW + 100,
        tombstone_until=NOW + 200,
        version=3,
        result=RESULT if state in (State.COMPLETED, State.FAILED) else None,
        now=NOW,
    )
    return made._replace(**changes)


HELD = Ownership(b"key", "me", 7, CLOCKS, False)


class Asked(NamedTuple):
    """One labelled request."""

    kind: str
    arguments: tuple[Any, ...]


def _ask(kind: str, *arguments: Any) -> Ask[Any]:
    return Ask(Asked(kind, arguments), lambda answer: answer)


class LabellingStore:
    """A store whose requests say what was asked, and whose answers come from the script."""

    capabilities = Capabilities(
        "scripted",
        transactions=True,
        waits_in_transaction=False,
        clock="",
        durability="",
        failover="",
        cannot_survive=(),
        choose_when="",
    )

    def claim(self, want: ClaimRequest) -> Ask[Any]:
        return _ask("claim", want)

    def take(self, want: ClaimRequest, seen: Record) -> Ask[Any]:
        return _ask("take", want, seen)

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[Any]:
        return _ask("settle", ownership, event, result)

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[Any]:
        return _ask("resolve", seen, event, result, clocks)

    def renew(self, ownerships: Sequence[Ownership]) -> list[Ask[Any]]:
        return [_ask("renew", ownerships[:1]), _ask("renew", ownerships[1:])]

    def read(self, key: bytes) -> Ask[Any]:
        return _ask("read", key)

    def sweep(self, limit: int) -> list[Ask[Any]]:
        return [_ask("sweep", limit), _ask("sweep", limit)]

    def begin(self) -> Ask[Any]:
        return _ask("begin")

    def savepoint(self) -> Ask[Any]:
        return _ask("savepoint")

    def rollback_to_savepoint(self) -> Ask[Any]:
        return _ask("rollback to savepoint")

    def commit(self) -> Ask[Any]:
        return _ask("commit")

    def rollback(self) -> Ask[Any]:
        return _ask("rollback")

    def isolation(self) -> list[Ask[Any]]:
        return [_ask("isolation"), _ask("isolation")]

    def schema_version(self) -> list[Ask[Any]]:
        return [_ask("has schema"), _ask("version")]


STORE = LabellingStore()
DOWN = StoreUnavailable("scripted")
UNSENT = StoreUnavailable("scripted", unsent=True)
BROKEN = ZeroDivisionError("a defect in an executor")


class Path(NamedTuple):
    """One way through a program: what it asked, what it was told, how it ended."""

    asked: tuple[Asked, ...]
    told: tuple[Any, ...]
    outcome: Any
    error: Exception | None

    @property
    def kinds(self) -> list[str]:
        """The requests, by kind."""
        return [asked.kind for asked in self.asked]


StartProgram = Callable[[], Program[Any]]
Replies = Callable[[Asked, int], Sequence[Any]]


def every_path(program: StartProgram, replies: Replies) -> Iterator[Path]:
    """Every way through the program, each reply of ``replies`` tried at each ask."""
    waiting: list[tuple[Any, ...]] = [()]
    while waiting:
        told = waiting.pop()
        path, pending = _follow(program(), told)
        if pending is None:
            yield path
        else:
            waiting += [(*told, reply) for reply in replies(pending, len(told))]


def _follow(program: Program[Any], told: tuple[Any, ...]) -> tuple[Path, Asked | None]:
    asked: list[Asked] = []
    try:
        put = next(program)
        for reply in told:
            asked.append(put.request)
            put = program.throw(reply) if isinstance(reply, Exception) else program.send(reply)
    except StopIteration as stop:
        return Path(tuple(asked), told, stop.value, None), None
    except Exception as error:  # noqa: BLE001 - the outcome of this path
        return Path(tuple(asked), told, None, error), None
    program.close()
    return Path(tuple(asked), told, None, None), put.request


class Script:
    """An executor that gives scripted replies, sync or async, and remembers what it was asked."""

    def __init__(self, told: Sequence[Any]) -> None:
        self.asked: list[Asked] = []
        self._told = iter(told)

    def __call__(self, request: Asked) -> Any:
        self.asked.append(request)
        reply = next(self._told)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def later(self, request: Asked) -> Any:
        """The same for async code."""
        return self(request)
