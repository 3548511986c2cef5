"""Every error retrysafe raises. The docstring of a class is the message its user reads."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

MayHaveHappened = Literal["no", "yes", "maybe"]


class RetrysafeError(Exception):
    """A guarded operation could not be carried out.

    ``effect_happened`` says whether the guarded effect may have happened, ``retry_same_key``
    whether the caller may retry with the same key, and ``safe_new_key`` whether the caller
    may start over with a new key without the risk of a second effect. An error of a claim also has
    ``boundary``, ``operation``, ``key``, redacted as in the log, and ``shown_by``, the command that shows the key to
    an operator.
    """

    effect_happened: ClassVar[MayHaveHappened] = "maybe"
    retry_same_key: ClassVar[bool] = True
    safe_new_key: ClassVar[bool] = False
    shown_by: str = ""

    def __init__(self, detail: str = "") -> None:
        explanation = "\n".join(line.strip() for line in (type(self).__doc__ or "").strip().splitlines())
        super().__init__(f"{detail}\n{explanation}" if detail else explanation)
        self.detail = detail
        self.boundary = ""
        self.operation = ""
        self.key = ""

    def __str__(self) -> str:
        """The message, followed by the boundary, operation and key of the claim."""
        if not self.boundary:
            return super().__str__()
        named = f" Key {self.key}" if self.key else ""
        if self.shown_by:
            named += f": {self.shown_by}"
        return f"{super().__str__()}\n(Boundary {self.boundary!r}, operation {self.operation!r}.{named})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[RetrysafeError], args: tuple[Any, ...], fields: dict[str, Any]) -> RetrysafeError:
    """Rebuild an error that another process has pickled."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConfigurationError(RetrysafeError):
    """A setting, an argument or a use of the library is wrong, or cannot give the guarantee it asks for.

    The call that raised this did nothing. Change what is named above; a retry without a change gives the
    same error.
    """

    effect_happened = "no"
    retry_same_key = False
    safe_new_key = True


class InvalidKey(RetrysafeError):
    """The idempotency key is missing or malformed.

    The effect has not happened. A key is a string of 1 to 255 characters without control
    characters (an int or a UUID is converted). Make one key per intended operation, and reuse it for retries.
    """

    effect_happened = "no"
    retry_same_key = False
    safe_new_key = True


class _TryLater(RetrysafeError):
    """The same key may be tried again after ``retry_after`` seconds."""

    def __init__(self, detail: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(detail)
        self.retry_after = retry_after

    def __str__(self) -> str:
        """The message, with the number of whole seconds in it."""
        return super().__str__().replace("``retry_after``", f"{max(1.0, self.retry_after):.0f}")


class InProgress(_TryLater):
    """Another attempt with the same key is running.

    It may have had its effect already. Retry with the same key after ``retry_after`` seconds
    to get its result. A new key could do the work twice.
    """


class KeyReused(RetrysafeError):
    """The same key came with a different payload; nothing was run and the stored record is untouched.

    The effect of the first payload may have happened; the effect of this one has not. Use a new key for a
    new operation, or send the first payload again. ``differing`` names the parts that differ.
    """

    effect_happened = "no"
    retry_same_key = False
    safe_new_key = True

    def __init__(self, detail: str = "", *, differing: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.differing = differing


class KeyExpired(RetrysafeError):
    """The key was used before and its window has passed, so its result is no longer kept.

    Nothing was run again. The effect happened then, unless every attempt failed. For a new operation, use a new key;
    for a late retry, look up the result where the effect would be visible.
    """

    effect_happened = "maybe"
    retry_same_key = False


class OutcomeUnknown(RetrysafeError):
    """The outcome of an earlier attempt with this key is unknown: its effect may or may not have happened.

    It was not run again. Find out where the effect would be visible. If a step is named above, settle that, as
    ``retrysafe runs show`` says. Otherwise settle the key with ``retrysafe keys resolve`` or
    ``Boundary.resolve(key, "completed" | "failed" | "released", operation=…)``,
    or give the boundary a ``probe=`` function that checks. A new key could do the work twice.
    """

    retry_same_key = False


class StoredFailure(RetrysafeError):
    """An earlier attempt failed permanently, and that failure is the stored answer.

    ``type``, ``message`` and ``data`` describe the first failure. The operation was not run again;
    the same key gets the same answer until its window ends. Writes in the boundary's own transaction were
    rolled back, and steps that have a compensation undone; other effects of the first attempt may have happened. Use a
    new key for a new operation.
    """

    retry_same_key = False

    def __init__(self, type: str, message: str, data: Any = None) -> None:
        super().__init__(f"{type}: {message}")
        self.type = type
        self.message = message
        self.data = data


class LeaseLost(RetrysafeError):
    """This attempt no longer holds its key: its lease lapsed, or another attempt has taken over.

    Its effect may have happened, but its result was not stored. Retry with the same key to get
    the result of the current attempt. Work that outlasts its lease needs a longer ``lease=``, or calls
    to ``claim.ensure_held()`` before each effect.
    """


class StaleToken(LeaseLost):
    """A later holder of the lease has written this resource, so this write was refused: nothing was written.

    The lease of this holder has ended. Stop its work; if there is more to do, take the lease again and begin with
    what the resource has by then.
    """

    effect_happened = "no"


class RetryTransaction(RetrysafeError):
    """The database asked for the whole transaction to be run again (serialization failure or deadlock).

    Nothing in this transaction will be committed. Roll it back, and run it again from its beginning
    with the same key.
    """

    effect_happened = "no"


class StoreUnavailable(RetrysafeError):
    """The store did not answer, or could not be reached within its time.

    If this came from a claim, the operation was not started. If it came from storing a result or
    from a commit, the effect may have happened. Retry with the same key once the store is back.
    """

    def __init__(
        self, detail: str = "", *, unsent: bool = False, transient: bool = False, more_connections: str = ""
    ) -> None:
        super().__init__(detail)
        self.unsent = unsent or transient
        """True if nothing was done: the request was not sent, or was refused."""
        self.transient = transient
        """True if the store refused the request temporarily: the same request may soon succeed."""
        self.more_connections = more_connections
        """If no connection of a pool was free: the option that makes it larger, in words."""


class StoreMisconfigured(StoreUnavailable):
    """The store refuses this application until the configuration named above is corrected. Waiting does not help.

    If this came from a claim, the operation was not started. If it came from storing a result or
    from a commit, the effect may have happened. Correct the configuration, then retry with the same key.
    """


class ResultNotEncodable(RetrysafeError):
    """The result cannot be stored as it is, so a retry could not be given the same answer.

    In the boundary's own transaction everything was rolled back; in yours the key is left unknown
    unless you roll back; with a lease the effect happened, the key is completed, and its result is
    withheld. A step happened too, and is not written down: a retry does it again under the same keys, or finds it in
    doubt if it is external. Return JSON types, datetime, Decimal, UUID or bytes; annotate the
    return type with the dataclass, enum or pydantic model that is returned, or name it to
    ``claim()`` as ``result_type=``; or pass ``codec=``.
    """

    retry_same_key = False


class ResultUnreadable(RetrysafeError):
    """The key was used before, and its stored answer cannot be read here. Nothing was run again.

    The answer is encrypted with a key that this process does not have, was altered, was written by a newer retrysafe
    or with another codec, or does not fit the return annotation. Give the boundary the keyring with the key named
    above, upgrade, or restore the annotation, then retry with the same key. The effect may have happened, so a new key
    could do the work twice. ``failed`` is true if the stored answer is a failure.
    """

    failed = False


class QuotaExceeded(_TryLater):
    """The scope has used up its quota of keys, and this key is new. Nothing was run.

    Nothing was written. Retry with the same key after ``retry_after`` seconds. ``limit`` says
    which limit was reached: "rate" (new keys in a period) or "outstanding" (keys that are kept). Retries of
    keys that were used before are still answered.
    """

    effect_happened = "no"

    def __init__(self, detail: str = "", *, limit: str = "rate", retry_after: float = 1.0) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.limit = limit


class Postponed(BaseException):
    """The work waits for a time or a signal. The key is free: come again with it after ``retry_after`` seconds.

    Nothing is in doubt: the steps that are done are recorded, and the next attempt goes on behind them. It is no
    `Exception`, so that ``except Exception`` in the work lets it pass.
    """

    def __init__(self, detail: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(detail or "The work waits.")
        self.detail = detail
        self.retry_after = retry_after


class SchemaOutdated(RetrysafeError):
    """The store's tables are missing or older than this version of retrysafe.

    The operation was not started. Run the command named above, then retry with the same key.
    """

    effect_happened = "no"


class IllegalTransition(RetrysafeError):
    """The transition table does not allow this transition from the record's state.

    The record is unchanged. Inside retrysafe it means that a race was lost; anywhere else it
    is a defect in a store.
    """
