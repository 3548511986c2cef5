"""One delivery of a task: its claim, what became of it, and what its queue is told.

A task is handled as a message of the inbox is (`retrysafe.messaging.inbox`): the same claim, the same counts of
attempts that ended with their process, the same dead letters. Three things differ. The key comes from the task's
arguments, the result is stored, and an error of the function is tried again by the queue's own retries. `TOLD` is the
rest: the same for each queue, whose module says it in that queue's words.

A queue delivers a copy of a running task if its worker was silent for too long. The copy is handed back, never dropped:
it is the only one that is left if that worker dies. Being handed back is no error and spends no retry.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from retrysafe.backends import registry
from retrysafe.backends.sql.store import keeps_messages
from retrysafe.boundary import Boundary, require_boundary
from retrysafe.claims.claim import Claim
from retrysafe.claims.decorator import Guarded, Selector
from retrysafe.claims.functions import is_coroutine_function
from retrysafe.entrypoint import Function
from retrysafe.errors import (
    ConfigurationError,
    InProgress,
    InvalidKey,
    KeyExpired,
    KeyReused,
    OutcomeUnknown,
    Postponed,
    QuotaExceeded,
    ResultUnreadable,
    SchemaOutdated,
    StoredFailure,
    StoreUnavailable,
)
from retrysafe.messaging.errors import MessageDead
from retrysafe.messaging.inbox.attempts import HandlerSettings, Identity, InboxAttempt, error_text, pause
from retrysafe.messaging.inbox.dead_letters import Letters
from retrysafe.messaging.inbox.handler import Handler
from retrysafe.messaging.inbox.procedures import HandlerOutcome
from retrysafe.messaging.inbox.stalls import Stalls
from retrysafe.protocol.fingerprint import UNCHECKED
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.options import refuse_unknown
from retrysafe.protocol.redelivery_policy import Counts, HandleResult, MessageOutcome, RetryLimits
from retrysafe.tasks.publisher import AS_TEXT

if TYPE_CHECKING:
    from retrysafe.claims.declaration import Safety


class Told(Enum):
    """The answers that a queue understands."""

    RETURN = "it is done: return its result"
    HAND_BACK = "it comes again after a pause, and no retry is spent"
    GIVE_UP = "it would get the same answer each time: no retry"
    ERROR = "the function has raised: the queue's own retries decide"


TOLD: Mapping[MessageOutcome, Told] = {
    MessageOutcome.HANDLED: Told.RETURN,
    MessageOutcome.DUPLICATE: Told.RETURN,
    MessageOutcome.PASSED: Told.RETURN,
    MessageOutcome.BUSY: Told.HAND_BACK,
    MessageOutcome.DEAD: Told.GIVE_UP,
    MessageOutcome.FAILED: Told.ERROR,
}
WAITS = (InProgress, StoreUnavailable, QuotaExceeded, SchemaOutdated)
"""Errors by which nothing was run, and the work may still have to be; `Postponed` is no error, and means the same."""
GIVE_UP = (OutcomeUnknown, KeyReused, KeyExpired, InvalidKey, StoredFailure, ResultUnreadable, MessageDead)
"""The errors of a task that is given up, for what a queue's retries take no notice of."""
LONGEST = 300.0
"""Seconds for which a task is handed back at most: brokers deliver one again that a worker has held for long."""
_ANY_NUMBER = 1 << 62


class TaskOptions(TypedDict, total=False):
    """The options of a guarded task.

    operation: the name under which its keys are claimed; by default the function's name, without its module.
    payload, sentence, safety, side_effects: as those of `Boundary.once`.
    max_crashes: how many attempts may end with their worker before the task is given up; by default 3.
    max_attempts: how many may end by an error before the task is given up and kept as a dead letter; by default the
        queue's own retries decide alone.
    dead_letter_store: the database for attempts and dead letters; by default the boundary's store if it is one for
        that. Without, crashes are not counted, and a task that is given up is an error of the queue's.
    """

    operation: str
    payload: Selector | Literal["arguments"] | None
    sentence: str
    safety: Safety
    side_effects: Iterable[str]
    max_crashes: int
    max_attempts: int
    dead_letter_store: Any


_OPTIONS = tuple(TaskOptions.__annotations__)
_OF_ONCE = ("payload", "sentence", "safety", "side_effects")


class Call(NamedTuple):
    """A call as the queue makes it: the arguments of the function, and the id and name of the task.

    ``sent`` and ``headers`` are what a dead letter keeps: the arguments as they were sent, written by the queue's own
    ``dumps``, and where it came from. ``lease``: see `EntryPoint.open`.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    id: str
    name: str
    sent: tuple[Any, Any]
    lease: float | None = None
    headers: Mapping[str, str] = {}
    dumps: Callable[[Any], str] = json.dumps


class Reply(NamedTuple):
    """The answer to one delivery: with the result, the error, or the seconds until it comes again."""

    told: Told
    value: Any
    error: BaseException
    pause: float


def refuse_task(function: object, kinds: type | tuple[type, ...], theirs: str, key: Selector) -> None:
    """Refuse to decorate a task of the queue, made by the decorator ``theirs``: no worker would meet the guard."""
    if isinstance(function, kinds):
        raise ConfigurationError(
            f"once() is above {theirs.partition('(')[0]}, so that no worker meets it. Put it below, next to the "
            f"function:\n    {theirs}\n    @once(…, key={'…' if callable(key) else repr(key)})"
        )


class TaskAttempt(InboxAttempt):
    """One delivery of one task."""

    def __init__(self, setting: HandlerSettings, guarded: Guarded, source: str, call: Call, *, kept: bool) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._guarded, self._call = guarded, call
        self._refused: InvalidKey | None = None
        identity = Identity(None, UNCHECKED)
        try:
            key, print_ = guarded.identify(call.args, call.kwargs)
            identity = Identity(setting.entry.settings.key(key), print_)
        except InvalidKey as error:
            self._refused = error
        sent: dict[str, Any] = dict(zip(("args", "kwargs"), call.sent, strict=True))
        payload = _serialize(sent, call.dumps).encode() if kept else b""
        name = setting.consumer
        envelope = Envelope(
            call.id, call.name, identity.key, name, source, None, call.headers, payload, "application/json"
        )
        super().__init__(setting, envelope, identity=identity)

    def claim(self) -> Claim:
        """The claim of the task's key, whose result is the function's."""
        if self._refused is not None:
            raise self._refused
        key, print_ = self.identity
        name, annotation = self._setting.consumer, self._guarded.annotation
        return self._setting.entry.open(
            key, operation=name, fingerprint=print_, annotation=annotation, lease=self._call.lease
        )

    def message_for(self, tx: Any, claim: Claim | None = None) -> Any:
        """The call."""
        return self._call

    def result_of(self, answer: Any) -> Any:
        """The result that is stored."""
        return answer

    def decide_to_try(self, counts: Counts) -> HandlerOutcome | None:
        """A task that lies in the dead letters is judged by its record: its key may have been settled meanwhile."""
        return super().decide_to_try(counts._replace(dead=False))

    def after(self, claim: Claim) -> HandlerOutcome:
        """The outcome after the claim was left without an error."""
        self.value, self.error = claim.result, self.failure
        return super().after(claim)

    def outcome_of(self, error: Exception | Postponed) -> HandlerOutcome:
        """The outcome after an error; one of the function's is left to the queue, whatever it says of the message."""
        self.error, of_function = error, error is self.raised
        if of_function and isinstance(error, WAITS):  # of a claim within the function
            return HandlerOutcome(MessageOutcome.BUSY, error_text(error), pause(getattr(error, "retry_after", 1.0)))
        end = super().outcome_of(error)
        if of_function:
            self.raised = None  # so that the handler leaves its traceback to the queue to log
        return end if end.became in TOLD else HandlerOutcome(MessageOutcome.FAILED, end.error)


def _serialize(sent: dict[str, Any], dumps: Callable[[Any], str]) -> str:
    try:
        return dumps(sent)
    except (TypeError, ValueError):
        return json.dumps({**sent, AS_TEXT: True}, default=repr, skipkeys=True)


class TaskHandler(Handler[..., Any]):
    """A function that handles the deliveries of one task."""

    def __init__(
        self, boundary: Boundary, function: Callable[..., Any], key: Selector, source: str, options: TaskOptions
    ) -> None:
        refuse_unknown(options, _OPTIONS)
        entry = require_boundary(boundary).entrypoint
        name = options.get("operation") or function.__name__
        of_once: Any = {name: value for name, value in options.items() if name in _OF_ONCE}
        self.call_guarded: Callable[..., Any] = boundary.once(key=key, operation=name, **of_once)(function)
        """The function for callers in this process, guarded as any other."""
        self._guarded, self._source = entry.guarded[name], source
        most = options.get("max_attempts", _ANY_NUMBER), options.get("max_crashes", RetryLimits().max_crashes)
        numbers: tuple[object, ...] = most
        if not all(isinstance(one, int) and one >= 1 for one in numbers):
            raise ConfigurationError("max_attempts= and max_crashes= are numbers from 1.")
        limits = RetryLimits(*most, grace=RetryLimits().grace + entry.patience)
        wanted = Function(lambda call: function(*call.args, **call.kwargs), None, is_coroutine_function(function))
        setting = HandlerSettings(entry, name, wanted, limits, True, (), Stalls(0.0, time.monotonic))
        given = options.get("dead_letter_store")
        self.keeps = given is not None or keeps_messages(entry.backend.store)
        letters: Any = Letters(entry.backend if given is None else registry.connect(given)) if self.keeps else None
        super().__init__(setting, letters)

    def deliver(self, call: Call, *, redelivered: bool = True) -> Reply:
        """Handle one delivery. ``redelivered``: False only if the queue says that it is the first."""
        attempt = self._attempt(call)
        try:
            return _reply(attempt, self.carry_out(attempt, redelivered=redelivered and self.keeps))
        except WAITS as error:
            return _hand_back(error)

    async def adeliver(self, call: Call, *, redelivered: bool = True) -> Reply:
        """`deliver` for a coroutine function."""
        attempt = self._attempt(call)
        try:
            return _reply(attempt, await self.acarry_out(attempt, redelivered=redelivered and self.keeps))
        except WAITS as error:
            return _hand_back(error)

    def _attempt(self, call: Call) -> TaskAttempt:
        return TaskAttempt(self.setting, self._guarded, self._source, call, kept=self.keeps)

    def _conclude(self, attempt: InboxAttempt, end: HandlerOutcome) -> HandleResult:
        return super()._conclude(attempt, end) if self.keeps else self._report(attempt, _unkept(end))

    async def _aconclude(self, attempt: InboxAttempt, end: HandlerOutcome) -> HandleResult:
        return await super()._aconclude(attempt, end) if self.keeps else self._report(attempt, _unkept(end))


def _unkept(end: HandlerOutcome) -> HandleResult:
    return HandleResult(end.became, end.again, end.error)


def _reply(attempt: TaskAttempt, handled: HandleResult) -> Reply:
    told = TOLD[handled.became]
    if told is Told.RETURN and attempt.error is not None:  # it has a result, which cannot be read
        told = Told.GIVE_UP
    error = attempt.error
    if error is None:
        error = InProgress(handled.error) if told is Told.HAND_BACK else MessageDead(handled.error)
    return Reply(told, attempt.value, error, min(handled.again or 0.0, LONGEST))


def _hand_back(error: Exception) -> Reply:
    return Reply(Told.HAND_BACK, None, error, min(pause(getattr(error, "retry_after", 1.0)), LONGEST))
