"""Dead letters that a person wants handled again: each once, under its old id, by one consumer alone. Twins."""

from __future__ import annotations

from contextlib import suppress

from retrysafe.claims.cancellation import run_to_completion
from retrysafe.errors import RetrysafeError
from retrysafe.messaging.inbox import procedures
from retrysafe.messaging.inbox.attempts import Attempt, Settings
from retrysafe.messaging.inbox.dead_letters import Asking, Letters
from retrysafe.messaging.inbox.procedures import HandlerOutcome
from retrysafe.protocol.asks import Ask, ask
from retrysafe.protocol.messages import DeadLetter, DeadLetterFilter, InboxLetter
from retrysafe.protocol.redelivery_policy import HandleResult


def redrive(setting: Settings, letters: Letters, limit: int) -> list[HandleResult]:
    """Handle marked dead letters, and return what became of them."""
    found = _in_sequence(letters.run(ask(_marked(setting, letters, limit))))
    return [done for letter in found if (done := _redriven(setting, letters, letter)) is not None]


async def aredrive(setting: Settings, letters: Letters, limit: int) -> list[HandleResult]:
    """The same for a coroutine function."""
    found = _in_sequence(await letters.arun(ask(_marked(setting, letters, limit))))
    return [done for letter in found if (done := await _aredriven(setting, letters, letter)) is not None]


def _redriven(setting: Settings, letters: Letters, letter: InboxLetter) -> HandleResult | None:
    """None: another consumer was first."""
    if not letters.run(ask(letters.inbox.take(letter.arrival.identity))):
        return None
    try:
        return _handled(setting, letters, letter)
    except BaseException:  # nobody knows what became of it: it is to be handled still
        with suppress(RetrysafeError):
            letters.run(ask(letters.inbox.mark(letter.arrival.identity)))
        raise


def _handled(setting: Settings, letters: Letters, letter: InboxLetter) -> HandleResult:
    backend, attempt = setting.entry.backend, _attempt(setting, letter)
    Asking(backend).run(procedures.reopen(backend.store, letter.arrival.record_key))
    try:
        end = attempt.after(setting.entry.run(attempt.claim, attempt.work))
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its own
        end = attempt.failed(error)
    handled = letters.run(procedures.conclude_redriven(letters.inbox, letter, end))
    return _told(setting, letter, end, handled)


async def _aredriven(setting: Settings, letters: Letters, letter: InboxLetter) -> HandleResult | None:
    if not await letters.arun(ask(letters.inbox.take(letter.arrival.identity))):
        return None
    try:
        return await _ahandled(setting, letters, letter)
    except BaseException:  # such as that its subscription has ended meanwhile
        with suppress(RetrysafeError):
            await run_to_completion(letters.arun(ask(letters.inbox.mark(letter.arrival.identity))))
        raise


async def _ahandled(setting: Settings, letters: Letters, letter: InboxLetter) -> HandleResult:
    backend, attempt = setting.entry.backend, _attempt(setting, letter)
    await Asking(backend).arun(procedures.reopen(backend.store, letter.arrival.record_key))
    try:
        end = attempt.after(await setting.entry.arun(attempt.claim, attempt.awork))
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its own
        end = attempt.failed(error)
    handled = await letters.arun(procedures.conclude_redriven(letters.inbox, letter, end))
    return _told(setting, letter, end, handled)


def _marked(setting: Settings, letters: Letters, limit: int) -> Ask[list[InboxLetter]]:
    return letters.inbox.letters(
        DeadLetterFilter(consumer=setting.consumer), boundary=setting.entry.name, limit=limit, marked=True
    )


def _in_sequence(found: list[InboxLetter]) -> list[InboxLetter]:
    """The oldest first, but by their sequences where they have some: the strict ones wait for each other."""
    return sorted(found, key=lambda letter: letter.arrival.envelope.sequence or 0)


def _attempt(setting: Settings, letter: InboxLetter) -> Attempt:
    return Attempt(setting, letter.arrival.envelope, late=is_late(letter.letter, setting.entry.window))


def is_late(letter: DeadLetter, window: float) -> bool:
    """Whether the record of a dead letter is forgotten: had it been handled meanwhile, nobody would know."""
    return (letter.now - letter.dead_at) / 1e6 > window


def _told(setting: Settings, letter: InboxLetter, end: HandlerOutcome, handled: HandleResult) -> HandleResult:
    arrival = letter.arrival
    became, topic = handled.became.value, arrival.envelope.topic
    setting.entry.emit(
        *("dead_letter_handled", arrival.consumer, arrival.record_key), topic=topic, became=became, error=end.error
    )
    return handled
