"""A named lease, held for a block: one holder at a time, and a fencing token for what it writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from retrysafe.claims.claim import Claim
from retrysafe.claims.fences import Fence
from retrysafe.claims.plan import Plans
from retrysafe.claims.settings import BoundarySettings
from retrysafe.errors import ConfigurationError, InProgress, RetrysafeError
from retrysafe.protocol import keys
from retrysafe.protocol.durations import LONGEST, micros
from retrysafe.protocol.fingerprint import UNCHECKED
from retrysafe.protocol.outcomes import Answered
from retrysafe.protocol.records import Clocks, Duration, Key

OPERATION = "retrysafe.lease"
_KEPT = round(LONGEST * 1e6)
"""Microseconds for which the record is kept when the lease is free.

A new record begins with a token from the clock of the store. If the old one was forgotten, and that clock has been set
back or the token was taken while it was ahead, the next holder would get a lower token and be refused everywhere.
"""


class _HeldLease(Claim[None, None]):
    """The claim of a lease: `current()` is the operation around it, whose derived keys must not be the lease's."""

    is_named_lease = True


class Lease(Fence):
    """A named lease, for ``with`` and ``async with``: one holder at a time, whose token is higher than all before.

    It is renewed while the block runs, and free when the block ends, however it ends. If its holder dies, it is free
    once the time of the lease is over. A holder that lost it is refused by the writes: `update`, `put_object`, `set`.

    Entering raises `InProgress` while another one holds it; a boundary with ``concurrency=wait(…)`` waits for it.
    Leaving raises `LeaseLost` if it was lost; async code is cancelled as soon as that is known.
    """

    def __init__(
        self,
        name: str,
        claim: Claim[Any, Any],
        enter: Callable[[Claim], Awaitable[object]],
        leave: Callable[[Claim, BaseException | None], Awaitable[object]],
    ) -> None:
        self._name, self._claim = name, claim
        self._enter, self._leave = enter, leave
        self._is_inside = False

    @property
    def name(self) -> str:
        """The name of the lease."""
        return self._name

    @property
    def token(self) -> int:
        """The fencing token: higher for every later holder, also after a crash and after the lease was free."""
        self._refuse_outside()
        return self._claim.token

    def ensure_held(self) -> None:
        """Raise `LeaseLost` unless the lease is certainly still held; asks no store."""
        self._refuse_outside()
        self._claim.ensure_held()

    def _refuse_outside(self) -> None:
        if not self._is_inside:
            raise ConfigurationError(
                f"The lease {self._name!r} is not held here, so nothing was written: use it inside its block, "
                "'with boundary.lease(…) as lease:' or 'async with'."
            )

    def __enter__(self) -> Self:
        try:
            self._claim.__enter__()
        except InProgress as busy:
            raise self._refusal(busy) from None
        return self._begin()

    async def __aenter__(self) -> Self:
        try:
            await self._enter(self._claim)
        except InProgress as busy:
            raise self._refusal(busy) from None
        return self._begin()

    def _refusal(self, busy: InProgress) -> RetrysafeError:
        taken = InProgress(f"The lease {self._name!r} is held, here or elsewhere.", retry_after=busy.retry_after)
        return self._claim._sign(taken)

    def _begin(self) -> Self:
        self._claim._take_answer(Answered.NOT_EXECUTED, None)  # it is given back, however this ends
        self._is_inside = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._claim.__exit__(kind, error, trace)
        finally:
            self._is_inside = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._leave(self._claim, error)
        finally:
            self._is_inside = False


def claim_of(settings: BoundarySettings, name: Key, lease: Duration | None, scope: str | None) -> Claim[Any, Any]:
    """The claim that holds a lease: nothing of the boundary's ways with results and failures concerns it."""
    clocks = settings.clocks
    length = clocks.lease if lease is None else micros(lease, "lease")
    settings = settings._replace(
        clocks=Clocks(length, _KEPT, _KEPT, clocks.margin),
        effects="keyed",
        probe=None,
        permanent=(),
        on_expired="new",
        encryption=None,
        quota=None,
    )
    plan = Plans(settings).of(OPERATION, settings.scope_of(scope))
    return _HeldLease(plan, plan.request(keys.parse(name), UNCHECKED))
