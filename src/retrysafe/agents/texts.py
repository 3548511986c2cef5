"""Texts for models: the meaning of each error, and the next thing to do, as one table."""

from __future__ import annotations

import re

from retrysafe.errors import (
    InProgress,
    InvalidKey,
    KeyExpired,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    Postponed,
    QuotaExceeded,
    ResultNotEncodable,
    ResultUnreadable,
    RetrysafeError,
    RetryTransaction,
    StoredFailure,
    StoreUnavailable,
)


class NotApproved(RetrysafeError):
    """The approval was given for a call with other arguments, or another call has used it. Nothing was done.

    Ask the user again, with the arguments that are meant now.
    """

    effect_happened = "no"
    retry_same_key = False


_LATER = "Call it again with exactly the same arguments in {after:.0f} s."
_LOOK = "Do NOT call it again. Look the effect up with a read-only tool, or tell the user."
SAYS: dict[type[BaseException], str] = {
    InProgress: "This call is running already. "
    + _LATER
    + " That returns its result; other arguments are another call.",
    Postponed: "This call waits for something, and nothing is wrong. " + _LATER,
    QuotaExceeded: "Nothing was done: too many calls. " + _LATER,
    StoreUnavailable: "It is not known yet whether this was done. " + _LATER + " It is not done twice.",
    RetryTransaction: "Nothing was done. " + _LATER,
    LeaseLost: "This took too long, and may have been done. " + _LATER + " That returns its result.",
    OutcomeUnknown: "An earlier call with this meaning may have had its effect, and nobody knows. " + _LOOK,
    KeyExpired: "This was called long ago, and its result is no longer kept. " + _LOOK,
    ResultUnreadable: "This was called before, and its result cannot be read. " + _LOOK,
    ResultNotEncodable: "The result cannot be kept, and the effect may have happened. " + _LOOK,
    KeyReused: "Nothing was done now. The same key came before with other arguments ({differing}). If you meant that "
    "call, call with exactly those arguments. Use a new key only if the user wants a second effect.",
    NotApproved: "Nothing was done: the user's approval was for another call, or is used up. Ask the user again.",
    StoredFailure: "This call failed for good: {detail}. The same call gets the same answer.",
    InvalidKey: "Nothing was done. {detail}",
    RetrysafeError: "The call could not be guarded. Do not call it again. Tell the user: a person has to look.",
}
"""The text for each error; for one that is not named, that of its nearest base."""
REFUSED_CODES = frozenset({-32700, -32600, -32601, -32602, -32042})
"""Codes of JSON-RPC errors that come before a tool runs; the last one sends the user to a page first (MCP)."""
_REFUSED_ARGUMENTS = re.compile(
    r"(MCP error -32602: )?Input validation error: |Error executing tool .+: \d+ validation errors? for \w+Arguments\n"
)
"""Beginnings of the error that the official SDKs make of arguments which do not fit the schema."""


def tell(error: BaseException) -> str:
    """Return the text that a model is given in place of a result."""
    text = next(SAYS[kind] for kind in type(error).__mro__ if kind in SAYS)
    return text.format(
        after=max(1.0, getattr(error, "retry_after", 1.0)),
        differing=", ".join(getattr(error, "differing", ())) or "unnamed",
        detail=getattr(error, "detail", ""),
    )


def refuses_arguments(text: str) -> bool:
    """Tell whether a tool's error says that its arguments did not fit, so that it was not run."""
    return _REFUSED_ARGUMENTS.match(text) is not None
