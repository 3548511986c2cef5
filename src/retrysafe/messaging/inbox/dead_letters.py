"""The store of attempts and dead letters, and the redriving of dead letters, in sync and async code.

A redriven message is handled once, under its old id and in the order of its key. One consumer at a time redrives those
of a name, under a lease; others that look meanwhile find nothing to do. Letters are taken by their sequence, page
after page. One that has to come again stays marked, and so does what follows it in its lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, closing, suppress
from typing import TypeVar

from retrysafe.backends.backend import Backend
from retrysafe.backends.sql.inbox import SqlInbox
from retrysafe.backends.sql.store import keeps_messages
from retrysafe.boundary import Boundary
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.named_lease import Lease
from retrysafe.entrypoint import in_thread
from retrysafe.errors import ConfigurationError, InProgress, LeaseLost, Postponed, RetrysafeError
from retrysafe.messaging.inbox import procedures
from retrysafe.messaging.inbox.attempts import HandlerSettings, InboxAttempt, log_traceback
from retrysafe.messaging.inbox.procedures import HandlerOutcome
from retrysafe.protocol.messages import DeadLetter, InboxLetter, Turn
from retrysafe.protocol.ordering import lane
from retrysafe.protocol.records import REDRIVE
from retrysafe.protocol.redelivery_policy import HandleResult, MessageOutcome
from retrysafe.protocol.requests import Ask, Program, ask

R = TypeVar("R")


async def _arun(backend: Backend, program: Program[R]) -> R:
    """Drive a program in async code; in a thread, where the database serves sync code only."""
    if backend.serves_async:
        return await backend.arun(program)
    return await in_thread(lambda: backend.run(program))


class Letters:
    """The inbox's own tables, in a database."""

    def __init__(self, backend: Backend) -> None:
        if not keeps_messages(backend.store):
            raise ConfigurationError(
                f"A {backend.kind} store has no place for attempts and dead letters: give dead_letter_store=, a "
                "database (SQLite, PostgreSQL, MySQL or MariaDB) for them."
            )
        backend.tables.provide("inbox")
        self.backend = backend
        self.inbox = SqlInbox(backend.store)

    def run(self, program: Program[R]) -> R:
        return self.backend.run(program)

    async def arun(self, program: Program[R]) -> R:
        """`run` for async code, also where the database serves sync code only."""
        return await _arun(self.backend, program)


_LEASE = "30s"
_PAGE = 100


class _Round:
    """One go over the marked letters of a consumer: how far it has come, and what became of those it has handled."""

    def __init__(
        self, setting: HandlerSettings, letters: Letters, limit: int, stopped: Callable[[], bool] | None
    ) -> None:
        self.handled: list[HandleResult] = []
        self._stopped = stopped or (lambda: False)
        self._setting, self._letters, self._limit = setting, letters, limit
        self._after: Turn | None = None
        self._waiting: set[int] = set()
        """Lanes in which a letter has to come again: nothing overtakes it."""

    def page(self, limit: int = _PAGE) -> Ask[list[InboxLetter]]:
        of = self._setting.entry.name, self._setting.consumer
        return self._letters.inbox.list_marked(*of, after=self._after, limit=limit)

    def select(self, page: Sequence[InboxLetter]) -> Iterator[InboxLetter]:
        for letter in page:
            if self.is_over:
                return
            self._after = letter.turn
            if self._lane(letter) not in self._waiting:
                yield letter

    def conclude(self, letter: InboxLetter, handled: HandleResult | None) -> None:
        """Note the result of a letter; None: it is not to be handled any more."""
        if handled is None:
            return
        self.handled.append(handled)
        if handled.again is not None:
            self._waiting.add(self._lane(letter))

    @property
    def is_over(self) -> bool:
        """True if as many were handled as may be, or no further one may be."""
        return len(self.handled) >= self._limit or self._stopped()

    def _lane(self, letter: InboxLetter) -> int:
        envelope = letter.arrival.envelope
        return lane(envelope.topic, envelope.key, envelope.id)


def redrive(
    setting: HandlerSettings, letters: Letters, limit: int, stopped: Callable[[], bool] | None
) -> list[HandleResult]:
    """Handle marked dead letters, up to so many, and return what became of them; none, while another one is at it."""
    going = _Round(setting, letters, limit, stopped)
    if not letters.run(ask(going.page(1))):
        return []
    with suppress(InProgress, LeaseLost), closing(_leases(letters)) as leases, _lease(leases, setting) as lease:
        while not going.is_over and (page := letters.run(ask(going.page()))):
            for letter in going.select(page):
                lease.ensure_held()
                going.conclude(letter, _redrive(setting, letters, letter))
    return going.handled


async def aredrive(
    setting: HandlerSettings, letters: Letters, limit: int, stopped: Callable[[], bool] | None
) -> list[HandleResult]:
    """`redrive` for a coroutine function."""
    going = _Round(setting, letters, limit, stopped)
    if not await letters.arun(ask(going.page(1))):
        return []
    with suppress(InProgress, LeaseLost):
        async with aclosing(_leases(letters)) as leases, _lease(leases, setting) as lease:
            while not going.is_over and (page := await letters.arun(ask(going.page()))):
                for letter in going.select(page):
                    lease.ensure_held()
                    going.conclude(letter, await _aredrive(setting, letters, letter))
    return going.handled


async def acount_marked(setting: HandlerSettings, letters: Letters) -> int:
    """The number of a consumer's dead letters that are to be handled again."""
    found = await letters.arun(ask(letters.inbox.tally()))
    own = setting.entry.name, setting.consumer
    return sum(marked for boundary, consumer, _, marked, _ in found if (boundary, consumer) == own)


def _leases(letters: Letters) -> Boundary:
    """The boundary that leases the dead letters; without observers, because its claims are internal."""
    return Boundary(REDRIVE, store=letters.backend, lease=_LEASE, observers=())


def _lease(leases: Boundary, setting: HandlerSettings) -> Lease:
    """The lease on a consumer's letters; entering it raises `InProgress` when another consumer has it."""
    return leases.lease(setting.consumer, scope=setting.entry.name)


def _redrive(setting: HandlerSettings, letters: Letters, letter: InboxLetter) -> HandleResult | None:
    """None: another consumer was first."""
    try:
        taken = letters.run(ask(letters.inbox.take(letter.arrival.identity)))
        return _handle(setting, letters, letter) if taken else None
    except BaseException:  # its taking, or its outcome, is unknown: it still has to be handled
        with suppress(RetrysafeError):
            letters.run(ask(letters.inbox.mark(letter.arrival.identity)))
        raise


def _handle(setting: HandlerSettings, letters: Letters, letter: InboxLetter) -> HandleResult:
    backend, attempt = setting.entry.backend, _attempt(setting, letter)
    backend.run(procedures.reopen(backend, letter.arrival.record_key))
    try:
        end = attempt.after(setting.entry.run(attempt.claim, attempt.work))
    except (Exception, Postponed) as error:  # noqa: BLE001 - whatever a handler raises is its own
        end = log_traceback(attempt, error, attempt.outcome_of(error))
    handled = letters.run(procedures.conclude_redriven(letters.inbox, letter, end))
    return _report(setting, letter, end, handled)


async def _aredrive(setting: HandlerSettings, letters: Letters, letter: InboxLetter) -> HandleResult | None:
    try:
        taken, cancelled = await run_to_completion(letters.arun(ask(letters.inbox.take(letter.arrival.identity))))
        if cancelled is not None:
            raise cancelled
        return await _ahandle(setting, letters, letter) if taken else None
    except BaseException:  # such as that its subscription has ended meanwhile: when it is marked, no take is under way
        with suppress(RetrysafeError):
            await run_to_completion(letters.arun(ask(letters.inbox.mark(letter.arrival.identity))))
        raise


async def _ahandle(setting: HandlerSettings, letters: Letters, letter: InboxLetter) -> HandleResult:
    backend, attempt = setting.entry.backend, _attempt(setting, letter)
    await _arun(backend, procedures.reopen(backend, letter.arrival.record_key))
    try:
        end = attempt.after(await setting.entry.arun(attempt.claim, attempt.awork))
    except (Exception, Postponed) as error:  # noqa: BLE001 - whatever a handler raises is its own
        end = log_traceback(attempt, error, attempt.outcome_of(error))
    handled = await letters.arun(procedures.conclude_redriven(letters.inbox, letter, end))
    return _report(setting, letter, end, handled)


def _attempt(setting: HandlerSettings, letter: InboxLetter) -> InboxAttempt:
    return InboxAttempt(setting, letter.arrival.envelope, late=is_late(letter.letter, setting.entry.window))


def is_late(letter: DeadLetter, window: float) -> bool:
    """Tell whether the record of a dead letter is forgotten: had it been handled meanwhile, no record would say so."""
    return (letter.now - letter.dead_at) / 1e6 > window


def _report(setting: HandlerSettings, letter: InboxLetter, end: HandlerOutcome, handled: HandleResult) -> HandleResult:
    arrival = letter.arrival
    became, topic = handled.became.value, arrival.envelope.topic
    setting.entry.emit(
        *("dead_letter_handled", arrival.consumer, arrival.record_key), topic=topic, became=became, error=end.error
    )
    if handled.became is MessageOutcome.DEAD:
        again = {"side": "inbox", "topic": topic, "error": end.error}
        setting.entry.emit("dead_lettered", arrival.consumer, arrival.record_key, **again)
    return handled
