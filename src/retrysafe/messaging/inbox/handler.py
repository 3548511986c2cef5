"""A consumer's handler: messages are handled once each, tried again within bounds, and kept when they are given up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeVar

from retrysafe.cancellation import run_to_completion, watch_cancellation
from retrysafe.claims import saga_steps
from retrysafe.entrypoint import in_thread
from retrysafe.errors import ConfigurationError, Postponed, RetrysafeError
from retrysafe.messaging.inbox import procedures
from retrysafe.messaging.inbox.attempts import HandlerSettings, InboxAttempt, key_of, log_traceback
from retrysafe.messaging.inbox.dead_letters import Letters, aredrive, redrive
from retrysafe.messaging.inbox.procedures import HandlerOutcome
from retrysafe.protocol.messages import Delivery, Envelope
from retrysafe.protocol.redelivery_policy import DONE, HandleResult, MessageOutcome
from retrysafe.protocol.requests import Program

P = ParamSpec("P")
R = TypeVar("R")


class Handler(Generic[P, R]):
    """A function that handles the messages of one consumer; called itself, it is the plain function.

    Made by `Inbox.handler`. A message is handled inside its claim, as the boundary's ``effects`` promise it: with
    ``effects="transactional"``, what the handler writes in ``message.tx`` commits together with the record that it was
    handled, or not at all.

    Attributes:
        consumer: the consumer's name.
    """

    def __init__(self, setting: HandlerSettings, letters: Letters) -> None:
        self.consumer = setting.consumer
        self.setting = setting
        self.letters = letters
        self.__wrapped__: Callable[P, R] = setting.function.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function: no claim, no record."""
        return self.__wrapped__(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """True if it is a coroutine function."""
        return self.setting.function.is_async

    # ------------------------------------------------------------ one message

    def handle(self, envelope: Envelope, *, redelivered: bool = True, alone: bool = True) -> HandleResult:
        """Handle one message and return its outcome. Acknowledge it if ``settled``; otherwise it has to come again.

        ``redelivered``: False only if the broker says that it hands the message out for the first time. Then the
        attempt is noted when it fails, not before it begins, which saves two statements; that it killed its consumer
        shows when it is redelivered. ``alone``: False if other messages are in progress. A message that may kill its
        consumer is then not tried, and the outcome is `MessageOutcome.SUSPECT`.

        Errors of the handler are counted, not raised; errors that report an outage of a service are not counted.
        Raises `StoreUnavailable` when the database does not answer: the outcome is not known, and the message has to
        come again. Raises `ConfigurationError` and `SchemaOutdated` for faults of the set-up.
        """
        _require_envelope(envelope)
        return self.carry_out(InboxAttempt(self.setting, envelope, alone=alone), redelivered=redelivered)

    def carry_out(self, attempt: InboxAttempt, *, redelivered: bool) -> HandleResult:
        """`handle` for an attempt that is made already."""
        end = self.letters.run(procedures.begin(self.letters.inbox, attempt)) if redelivered else None
        if end is None:
            try:
                try:
                    end = attempt.after(self.setting.entry.run(attempt.claim, attempt.work))
                except (Exception, Postponed) as error:  # noqa: BLE001 - whatever a handler raises is its own
                    end = log_traceback(attempt, error, attempt.outcome_of(error))
            except BaseException:
                self._withdraw(attempt)
                raise
        return self._conclude(attempt, end)

    async def ahandle(self, envelope: Envelope, *, redelivered: bool = True, alone: bool = True) -> HandleResult:
        """`handle` on an event loop. A plain function runs in a thread, with its claim, and to its end."""
        if not self.is_async:
            return await in_thread(lambda: self.handle(envelope, redelivered=redelivered, alone=alone))
        _require_envelope(envelope)
        return await self.acarry_out(InboxAttempt(self.setting, envelope, alone=alone), redelivered=redelivered)

    async def acarry_out(self, attempt: InboxAttempt, *, redelivered: bool) -> HandleResult:
        """`carry_out` for a coroutine function."""
        end = await self.letters.arun(procedures.begin(self.letters.inbox, attempt)) if redelivered else None
        if end is None:
            try:
                try:
                    end = attempt.after(await self.setting.entry.arun(attempt.claim, attempt.awork))
                except (Exception, Postponed) as error:  # noqa: BLE001 - whatever a handler raises is its own
                    end = log_traceback(attempt, error, attempt.outcome_of(error))
            except BaseException:
                await self._awithdraw(attempt)
                raise
        return await self._aconclude(attempt, end)

    # ------------------------------------------------------------ for a subscription

    portion = 1
    """The number of messages that it handles together."""
    portion_bytes = 1
    """With how many bytes of payloads and headers no more messages are handled together."""

    async def ahandle_many(self, deliveries: Sequence[Delivery], *, alone: bool = True) -> list[HandleResult]:
        """Handle deliveries in this order, and return what became of each."""
        return [await self.ahandle(one.envelope, redelivered=one.redelivered, alone=alone) for one in deliveries]

    async def ahandle_marked(
        self, limit: int = 100, *, stopped: Callable[[], bool] | None = None
    ) -> list[HandleResult]:
        """Handle up to so many dead letters that are to be handled again, and return what became of them.

        ``stopped`` is asked before each of them: once it is true, the others stay where they are. So do they when the
        caller is cancelled; of a plain function, the one in progress is handled to its end.
        """
        if not self.is_async:
            is_cancelled, is_stopped = watch_cancellation(), stopped or (lambda: False)
            return await in_thread(lambda: self.handle_marked(limit, stopped=lambda: is_cancelled() or is_stopped()))
        return await aredrive(self.setting, self.letters, limit, stopped)

    def handle_marked(self, limit: int = 100, *, stopped: Callable[[], bool] | None = None) -> list[HandleResult]:
        """`ahandle_marked` for a plain function. A dead letter is tried once; one that fails stays where it is.

        One consumer of the name does so at a time, by a lease: while another one is at it there is nothing to do here.
        """
        return redrive(self.setting, self.letters, limit, stopped)

    def signal(self, source: str, message_id: str, name: str, value: Any = None) -> bool:
        """Give the handling of a message the signal that its `Claim.wait_for` waits for; the first of a name counts.

        Returns False if it has one of this name already, or if it is not under way. What waits goes on when the message
        comes again.
        """
        key = key_of(source, message_id)
        return saga_steps.signal(self.setting.entry.settings, key, name, value, self.consumer)

    async def asignal(self, source: str, message_id: str, name: str, value: Any = None) -> bool:
        """`signal` for async code."""
        key = key_of(source, message_id)
        return await saga_steps.asignal(self.setting.entry.settings, key, name, value, self.consumer)

    async def agive_up(self, envelope: Envelope, error: str) -> HandleResult:
        """Make a message whose attempt has failed with this error a dead letter, however many attempts it has left."""
        attempt = InboxAttempt(self.setting, envelope)
        end = HandlerOutcome(MessageOutcome.DEAD, error)
        if not self.is_async:
            return await in_thread(lambda: self._conclude(attempt, end))
        return await self._aconclude(attempt, end)

    def emit(self, name: str, **fields: Any) -> None:
        """Tell the observers of what concerns no message."""
        self.setting.entry.emit(name, self.consumer, **fields)

    # ------------------------------------------------------------ after

    def _conclude(self, attempt: InboxAttempt, end: HandlerOutcome) -> HandleResult:
        handled = HandleResult(end.became)
        if attempt.counted or end.became not in DONE:
            handled = self.letters.run(self._concluding(attempt, end))
        if handled.became is MessageOutcome.DEAD and attempt.has_record:
            with suppress(RetrysafeError):  # it has failed before, or another delivery of it is being handled
                if self.setting.entry.run(attempt.claim, attempt.settle(handled.error)).replayed:
                    handled = self.letters.run(procedures.revive(self.letters.inbox, attempt.arrival))
        return self._report(attempt, handled)

    async def _aconclude(self, attempt: InboxAttempt, end: HandlerOutcome) -> HandleResult:
        handled = HandleResult(end.became)
        if attempt.counted or end.became not in DONE:
            handled = await self.letters.arun(self._concluding(attempt, end))
        if handled.became is MessageOutcome.DEAD and attempt.has_record:
            settle = attempt.settle(handled.error)

            async def fail(claim: Any) -> None:
                settle(claim)

            with suppress(RetrysafeError):
                if (await self.setting.entry.arun(attempt.claim, fail)).replayed:
                    handled = await self.letters.arun(procedures.revive(self.letters.inbox, attempt.arrival))
        return self._report(attempt, handled)

    def _concluding(self, attempt: InboxAttempt, end: HandlerOutcome) -> Program[HandleResult]:
        return procedures.conclude(self.letters.inbox, attempt, end, self.setting.limits, random.random())

    def _withdraw(self, attempt: InboxAttempt) -> None:
        """Withdraw an attempt that is given up on the way, such as by Ctrl-C: it does not count as a crash."""
        if attempt.counted:
            with suppress(RetrysafeError):
                self.letters.run(self._withdrawing(attempt))

    async def _awithdraw(self, attempt: InboxAttempt) -> None:
        if attempt.counted:
            with suppress(RetrysafeError):
                await run_to_completion(self.letters.arun(self._withdrawing(attempt)))

    def _withdrawing(self, attempt: InboxAttempt) -> Program[HandleResult]:
        return self._concluding(attempt, HandlerOutcome(MessageOutcome.BEHIND))

    def _report(self, attempt: InboxAttempt, handled: HandleResult) -> HandleResult:
        """Tell the observers what the claim has not told them."""
        became, again, error = handled
        if became is not MessageOutcome.STALLED:
            self.setting.stalls.end(attempt.arrival.identity)
        self._tell_late(attempt, became)
        if became is MessageOutcome.DEAD:
            self._emit("dead_lettered", attempt, side="inbox", error=error)
        elif became is MessageOutcome.STALLED:
            self._emit("message_stalled", attempt, pause=again, error=error)
        elif again is not None and became is not MessageOutcome.SUSPECT:
            self._emit("message_retry_scheduled", attempt, became=became.value, pause=again, error=error)
        return handled

    def _tell_late(self, attempt: InboxAttempt, became: MessageOutcome) -> None:
        if attempt.late and became is MessageOutcome.HANDLED:
            self._emit("message_late", attempt)

    def _emit(self, name: str, attempt: InboxAttempt, **fields: Any) -> None:
        arrival = attempt.arrival
        self.setting.entry.emit(name, arrival.consumer, arrival.record_key, topic=arrival.envelope.topic, **fields)


def _require_envelope(message: object) -> None:
    """Raise `ConfigurationError` for what is no message, such as the dictionary of a framework."""
    if not isinstance(message, Envelope):
        raise ConfigurationError(
            f"handle() takes an Envelope, not a {type(message).__qualname__}: Envelope(id, topic, key, type, source, "
            "sequence, headers, payload, media_type), with the id that stays the same when the message comes again."
        )
    payload: object = message.payload
    if isinstance(payload, str):
        raise ConfigurationError("The payload of an Envelope is bytes, as they arrived: encode the text to UTF-8.")
