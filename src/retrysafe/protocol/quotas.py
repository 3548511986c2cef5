"""Quotas: how many new keys a scope may claim in a period, and how many it may have in the store."""

from __future__ import annotations

import hashlib
import re

from retrysafe.errors import ConfigurationError
from retrysafe.protocol.durations import micros
from retrysafe.protocol.records import Allowance, Micros, QuotaRefusal

_RATE = re.compile(r"(\d+)\s*/\s*(\S+)")
_SOONEST = 1.0
_UNKNOWN_END = 60.0
"""Seconds until asking again, where the time at which a key is forgotten is unknown: all of them are in use."""


class Quota:
    """The limits of each scope of a boundary, for ``Boundary(quota=…)``: give one limit, or both.

    Arguments:
        rate: how many new keys in which period: "100/1m" for 100 in any minute.
        outstanding: how many keys the store keeps at once. A key is kept until its memory ends, or, when it is
            running or unknown, until it is settled and that time has passed: so this bounds what a client can
            store.

    Only the claim of a key without a record is counted, and can be refused. A key that has one is answered as ever.
    """

    __slots__ = ("outstanding", "period", "rate")

    def __init__(self, *, rate: str | None = None, outstanding: int | None = None) -> None:
        if rate is None and outstanding is None:
            raise ConfigurationError('A quota needs a limit: rate="100/1m", or outstanding=1000, or both.')
        self.rate: int | None = None
        self.period: Micros = 0
        if rate is not None:
            self.rate, self.period = _parse(rate)
        self.outstanding = None if outstanding is None else _check(outstanding, "outstanding")

    def __repr__(self) -> str:
        shown = [] if self.rate is None else [f"rate='{self.rate}/{self.period / 1e6:g}s'"]
        shown += [] if self.outstanding is None else [f"outstanding={self.outstanding}"]
        return f"Quota({', '.join(shown)})"

    def allowance(self, boundary: str, scope: str) -> Allowance:
        """The limits of one scope, and the name under which its keys are counted."""
        return Allowance(holder(boundary, scope), self.rate, self.period, self.outstanding)


def holder(boundary: str, scope: str) -> bytes:
    """The name under which the keys of a scope are counted: 16 bytes of a hash, which do not tell the scope."""
    message = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in ("quota.v1", boundary, scope))
    return hashlib.sha256(message).digest()[:16]


def judge(
    allowance: Allowance, now: Micros, filling: Micros | None, kept: int, next_forgotten: Micros | None
) -> QuotaRefusal | None:
    """Tell whether one more key would be too many, and when to ask again.

    ``filling`` is when the key was made that fills the rate: the ``rate``-th, counted back from the newest.
    ``next_forgotten`` is when the next key will be forgotten that is kept.
    """
    found: list[QuotaRefusal] = []
    if allowance.rate is not None and filling is not None and filling > now - allowance.period:
        found.append(_refusal("rate", (filling + allowance.period - now) / 1e6))
    if allowance.outstanding is not None and kept >= allowance.outstanding:
        found.append(_refusal("outstanding", (next_forgotten - now) / 1e6 if next_forgotten else _UNKNOWN_END))
    return max(found, key=lambda refusal: refusal.retry_after, default=None)


def room_again(allowance: Allowance) -> QuotaRefusal:
    """The refusal of a claim that found no room, where there is room by now."""
    return _refusal("outstanding" if allowance.rate is None else "rate", 0.0)


def _refusal(limit: str, seconds: float) -> QuotaRefusal:
    return QuotaRefusal(limit, max(_SOONEST, seconds))


def _parse(rate: object) -> tuple[int, Micros]:
    match = _RATE.fullmatch(rate.strip()) if isinstance(rate, str) else None
    if match is None:
        raise ConfigurationError(f'rate={rate!r} is not a number of keys in a period: write "100/1m" or "5000/24h".')
    return _check(int(match[1]), "rate"), micros(match[2], "rate")


def _check(count: object, argument: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < 1 << 31:
        raise ConfigurationError(f"{argument}={count!r}: a number of keys, at least one.")
    return count
