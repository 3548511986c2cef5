"""One logical operation, from its first attempt to its end: a generator that asks for what only a client can do.

It asks to send, to pause and for new credentials, and is told what came of it. Time, chance and the budget are its
arguments, so that every rule can be tested without a network, and the clients differ in nothing but their libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from retrysafe.http.client import results
from retrysafe.http.client.budget import Budgets
from retrysafe.http.client.errors import RequestOutcomeUnknown
from retrysafe.http.client.headers import SECRETS
from retrysafe.http.client.hosts import IDEMPOTENT, Host, address, hide_query
from retrysafe.http.client.policy import Environment, Policy, pause
from retrysafe.http.client.redirects import RequestTarget, follow
from retrysafe.http.client.results import Result, RetryVerdict, ServerAnswer


class GuardedCall(NamedTuple):
    """A request, its key, and the known properties of both."""

    target: RequestTarget
    key: str
    """Empty when there is none."""
    hosts: Mapping[str, Host]
    resendable: bool
    """True if the body can be sent twice."""
    recognised_until: float | None
    """Wall time until which the host knows the key; None if it is not known to honour keys at all."""
    doubtful: bool = False
    """True if an earlier process may have sent it."""
    secrets: frozenset[str] = SECRETS
    """Names of headers, in lower case, that no other origin must see."""


class Send(NamedTuple):
    """Send the request as ``target`` has it; ``end`` is the deadline, by the environment's clock."""

    target: RequestTarget
    end: float
    hedge_after: float | None
    """Seconds after which a copy may be sent, if ``admits_hedge`` says so; None for never."""
    admits_hedge: Callable[[], bool]
    ended: Callable[[Result], None]
    """To be told what came of it, and of its copy: each by itself, in the order in which they came."""
    host: Host | None


class Pause(NamedTuple):
    """Wait."""

    seconds: float


class Refresh(NamedTuple):
    """Get new credentials, as headers; None if there is no way to."""


_LAST_LOOK, _TOO_LATE = 1.0, 0.2
"""Seconds before the deadline: at the first an answer is asked for at the latest, at the second no more."""

Step = Send | Pause | Refresh
Reply = Any
"""To `Send` a `Result`, to `Refresh` a mapping or None, to `Pause` nothing."""
Tell = Callable[[str, Mapping[str, Any]], None]


class OperationEnding(NamedTuple):
    """The end of an operation: the last result, and whether an effect is possible that its caller does not know of."""

    result: Result
    in_doubt: bool
    attempts: int
    limit: str
    """The limit that ended the retries: "attempts", "deadline", "budget", "unrepeatable"; empty if none did."""


class _Course:
    """The progress of an operation."""

    def __init__(
        self, call: GuardedCall, policy: Policy, budgets: Budgets, environment: Environment, tell: Tell
    ) -> None:
        self.call, self.policy, self.budgets, self.environment, self.tell = call, policy, budgets, environment, tell
        self.target = call.target
        self.deadline = environment.clock() + policy.deadline
        self.attempts = self.retries = self.redirects = 0
        self.asked = 0
        """The number of retries that only asked for the answer of a running attempt: these have the deadline alone."""
        self.doubtful = call.doubtful
        self.refreshed = False

    @property
    def host(self) -> Host | None:
        return self.call.hosts.get(address(self.target.url))

    @property
    def repeatable(self) -> bool:
        """True if the effect of what is sent now happens once, however often it arrives."""
        if not self.call.resendable and self.target.with_body:
            return False
        honoured = self.target.keyed and self.call.recognised_until is not None
        return honoured or self.target.method in IDEMPOTENT

    def send(self) -> Send:
        """The next attempt, unless it could run a second time what has run: rule C3."""
        if self.doubtful and not self._is_recognised():
            raise RequestOutcomeUnknown(
                f"{self.target.method} {hide_query(self.target.url)}: an earlier attempt may have arrived."
            )
        self.attempts += 1
        self.tell("request_sent", {"number": self.attempts})
        hedge_after = self.policy.hedge_after if self.repeatable else None
        return Send(self.target, self.deadline, hedge_after, self._admits_hedge, self._ending_of_attempt(), self.host)

    def _ending_of_attempt(self) -> Callable[[Result], None]:
        began = self.environment.clock()

        def end_with(result: Result) -> None:
            self.doubtful = results.in_doubt(self.doubtful, result, self.host)
            seconds = self.environment.clock() - began
            self.tell("request_ended", {"number": self.attempts, "outcome": result.outcome, "seconds": seconds})

        return end_with

    def _is_recognised(self) -> bool:
        until = self.call.recognised_until
        if self.target.keyed and until is not None:
            return self.environment.wall() < until
        return self.target.method in IDEMPOTENT

    @property
    def is_late(self) -> bool:
        return self.environment.clock() >= self.deadline

    def _admits_hedge(self) -> bool:
        admitted = not self.is_late and self.budgets.take(address(self.target.url))
        if admitted:
            self.attempts += 1
            self.tell("request_hedged", {"number": self.attempts})
        return admitted

    def obstacle(self, result: Result, wait: float) -> str:
        """Return the obstacle to a retry after ``wait`` seconds; empty if there is none, and then it is paid for."""
        if not results.may_repeat(result, repeatable=self.repeatable) or not self._can_send_again():
            return "unrepeatable"
        if self.retries - self.asked + 1 >= self.policy.max_attempts and not results.is_running(result):
            return "attempts"
        if self.environment.clock() + wait >= self.deadline:
            return "deadline"
        return "" if self.budgets.take(address(self.target.url)) else "budget"

    def pause_after(self, result: Result) -> float:
        """Seconds until the next attempt; one that is running may be asked for once more just before the deadline."""
        wait = pause(result, self.retries, self.policy, self.environment.chance(), self.environment.wall())
        left = self.deadline - self.environment.clock()
        return min(wait, left - min(_LAST_LOOK, left / 2)) if results.is_running(result) and left > _TOO_LATE else wait

    def _can_send_again(self) -> bool:
        return self.call.resendable or not self.target.with_body

    def ending(self, result: Result, limit: str = "") -> OperationEnding:
        if limit:
            self.tell("request_given_up", {"number": self.attempts, "outcome": result.outcome, "limit": limit})
        return OperationEnding(result, self.doubtful, self.attempts, limit)

    def follows(self, answer: ServerAnswer) -> bool:
        """Tell whether a redirect is followed. That of a request without a key is left to the client library."""
        if not self.call.key or self.redirects >= self.policy.redirects:
            return False
        target = follow(self.target, answer, self.call.secrets)
        if target is None or (target.with_body and not self.call.resendable):
            return False
        if target.method != self.target.method:
            self.doubtful = True  # "See Other" than what was done: until that has come, its caller knows nothing
        self.redirects += 1
        self.target = target
        return True

    def may_refresh(self) -> bool:
        """Tell whether new credentials are for the asking server: a declared host, and the one that was called."""
        return not self.refreshed and self.call.resendable and self.host is not None and self.target.at_home

    def refresh(self, headers: Mapping[str, str] | None, result: Result) -> OperationEnding | None:
        """Go on with new credentials; how it ends if there are none, or if what they are for can't be sent."""
        self.refreshed = True
        if headers is None:
            return self.ending(result)
        if self.is_late:
            return self.ending(result, "deadline")
        if not self.budgets.take(address(self.target.url)):
            return self.ending(result, "budget")
        self.target = self.target._replace(added={**self.target.added, **headers})
        return None


def operation(
    call: GuardedCall, policy: Policy, budgets: Budgets, environment: Environment, tell: Tell
) -> Generator[Step, Reply, OperationEnding]:
    """Drive one operation to its end.

    Raises `RequestOutcomeUnknown` instead of sending a request whose key the host may have forgotten.
    """
    budgets.deposit(address(call.target.url))
    course = _Course(call, policy, budgets, environment, tell)
    while True:
        result: Result = yield course.send()
        verdict = results.judge(result, course.host)
        if verdict is RetryVerdict.REDIRECT and isinstance(result, ServerAnswer) and not course.is_late:
            if course.follows(result):
                continue
        elif verdict is RetryVerdict.REFRESH and course.may_refresh():
            ending = course.refresh((yield Refresh()), result)
            if ending is None:
                continue
            return ending
        if verdict is not RetryVerdict.RETRY:
            return course.ending(result)
        wait = course.pause_after(result)
        limit = course.obstacle(result, wait)
        if limit:
            return course.ending(result, limit)
        course.retries += 1
        course.asked += results.is_running(result)
        told = {"number": course.attempts, "outcome": result.outcome, "pause": wait}
        tell("request_retried", told)
        yield Pause(wait)
