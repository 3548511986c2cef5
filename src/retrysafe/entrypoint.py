"""The interface of a boundary for entry points, such as HTTP, webhooks and messages.

A claim is entered and left from an event loop, whichever colour the store of its boundary has: a store that serves sync
code only (a sync engine, sessionmaker, pool or client) is asked in threads, so that sync handlers can share its
transaction. Handlers of the user's, sync or async, run inside their claim, and again if its transaction must be; one
that cannot be awaited runs in a thread with its claim.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from retrysafe import lazy
from retrysafe.backends.backend import Backend
from retrysafe.cancellation import is_cancelled, is_failure, new_threads, run_in_thread
from retrysafe.claims import key_spaces
from retrysafe.claims.claim import Claim
from retrysafe.claims.codec import Codec, JSONCodec
from retrysafe.claims.decorator import Guarded
from retrysafe.claims.functions import is_coroutine_function, is_generator_function
from retrysafe.claims.observers import logger
from retrysafe.claims.outcome import decode_result, is_permanent
from retrysafe.claims.plan import Plans
from retrysafe.claims.restarts import arestarting, restarting
from retrysafe.claims.settings import BoundarySettings
from retrysafe.errors import ConfigurationError, ResultUnreadable, RetrysafeError, SchemaOutdated, StoreMisconfigured
from retrysafe.protocol import keys
from retrysafe.protocol.exception_groups import every
from retrysafe.protocol.fingerprint import Fingerprint
from retrysafe.protocol.records import Duration, Effects, Key, StoredResult, Wait
from retrysafe.runtime import PerLoop

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from retrysafe.claims.batch import BatchClaim
    from retrysafe.claims.named_lease import Lease

R = TypeVar("R")

CODEC = JSONCodec()
"""The codec for our own results, which a boundary's codec for its functions may not know."""
UNUSABLE = (SchemaOutdated, StoreMisconfigured, ConfigurationError)
"""Errors of a store that a person has to correct: a service does not start in order to wait for that."""
CANCELLED_WITHIN = "The handler was cancelled by itself, or by something that it waited for."
_MOST = 40
"""Of an event loop, and of the process that has them."""
_entering = PerLoop(lambda: new_threads(_MOST, "retrysafe-claim"))
"""Threads for statements of claims: none is held while a claim waits for another attempt."""
_leaving = PerLoop(lambda: new_threads(_MOST, "retrysafe-claim"))
"""Threads to settle in, apart from those of claims and of handlers, so that no number of either can delay an end."""


class EntryPoint:
    """The interface of a boundary for HTTP, webhooks, messages, and other sources of work.

    A boundary has one, as ``boundary.entrypoint``. A way in names the operation that it claims keys under
    (`take_operation`), opens a claim for each piece of work (`open`), runs a handler in it (`run`, `arun`,
    `run_in_threads`) or enters and leaves it itself (`enter`, `leave`), and tells observers what came to no claim
    (`emit`).
    """

    def __init__(self, settings: BoundarySettings, *, shared: bool, origin: key_spaces.Origin) -> None:
        self.settings = settings
        self.closed = False
        """True if its boundary claims nothing any more."""
        self.guarded: dict[str, Guarded] = {}
        """The functions that `Boundary.once` has decorated, by operation."""
        self.shared = shared
        """True if other boundaries of its name are to claim the same keys."""
        self.origin = origin
        """The place in the code that built the boundary."""
        self.owners: dict[str, key_spaces.KeyOwner] = {}
        """The owner of each operation's keys."""
        self.serves_async = settings.backend.serves_async
        """True if the store can be asked on an event loop; if not, it is asked in threads there."""
        self._plans = Plans(settings)
        key_spaces.enter(self)

    @property
    def name(self) -> str:
        """The boundary's name."""
        return self.settings.name

    @property
    def effects(self) -> Effects:
        """The effects that the boundary covers."""
        return self.settings.effects

    @property
    def window(self) -> float:
        """Seconds for which a retry is recognised."""
        return self.settings.clocks.window / 1e6

    @property
    def forgets_after(self) -> float:
        """Seconds after which a key is new work: the window, or the memory where late retries are refused."""
        clocks = self.settings.clocks
        return (clocks.memory if self.settings.on_expired == "refuse" else clocks.window) / 1e6

    @property
    def patience(self) -> float:
        """Seconds for which a simultaneous duplicate waits at most."""
        concurrency = self.settings.concurrency
        return concurrency.seconds if isinstance(concurrency, Wait) else 0.0

    @property
    def largest_result(self) -> int | None:
        """The largest number of bytes of a result in the store; None when it has no limit of its own."""
        return self.settings.largest_result

    @property
    def address(self) -> str:
        """The store's URL, without a password."""
        return self.settings.backend.address

    @property
    def alias(self) -> str | None:
        """The alias in Django's ``DATABASES`` that the store is; its transactions belong to the thread that began them.

        None for every other store.
        """
        return self.settings.backend.access.alias

    @property
    def backend(self) -> Backend:
        """The store with its clients, for entry points that keep more in it than records."""
        return self.settings.backend

    def list_shared_settings(self) -> Mapping[str, object]:
        """The settings that boundaries of one name must have in common unless they are ``shared``, by name."""
        settings = self.settings
        return {
            "effects": settings.effects,
            "window": settings.clocks.window,
            "memory": settings.clocks.memory,
            "on_expired": settings.on_expired,
            "secret": settings.secret,
        }

    def restarts(self, error: BaseException) -> bool:
        """Tell whether ``error`` means that the database wants the whole transaction again."""
        return self.settings.backend.restarts(error)

    def is_permanent(self, error: BaseException) -> bool:
        """Tell whether an error of the work is stored and replayed as a failure, by its type."""
        return is_permanent(error, self.settings)

    def tenant(self) -> str:
        """The scope of claims that name none."""
        return self.settings.scope_of(None)

    def find_ignored_settings(self, outer: EntryPoint) -> list[str]:
        """Names of the arguments that would be ignored if ``outer`` kept a record in this boundary's place."""
        ours, theirs = self.settings, outer.settings
        compared = [
            "clocks",
            "concurrency",
            "effects",
            "probe",
            "permanent",
            "on_expired",
            "encryption",
            "quota",
            "secret",
        ]
        if ours.scope is not None:
            compared.append("scope")
        dropped = [name for name in compared if getattr(ours, name) != getattr(theirs, name)]
        if ours.effects == "transactional" and ours.backend is not theirs.backend:
            dropped.append("store")
        return dropped

    def open(
        self,
        key: Key | None,
        *,
        operation: str,
        fingerprint: bytes | Fingerprint,
        scope: str | None = None,
        tx: Any = None,
        annotation: Any = None,
        codec: Codec | None = None,
        lease: float | None = None,
        recorded: str = "",
    ) -> Claim:
        """`claim` for entry points: with a fingerprint of their own making, and a codec for results of their kind.

        A fingerprint in bytes is stored as it is.

        The codec is the boundary's unless one is given; ``annotation`` is handed to it. ``lease``: the seconds after
        which the process will certainly not work any more, in the place of a lease that is renewed. ``recorded``: the
        operation as operators see it, in the place of the one that is a part of the key.
        """
        settings = self.settings
        if self.closed:
            raise self._refusal_of_closed()
        if tx is not None and settings.effects != "transactional":
            raise ConfigurationError(
                f"tx= needs effects='transactional'; boundary {self.name!r} has {settings.effects!r}."
            )
        plans = self._plans if codec is None else self._plans.with_codec(codec)
        text = settings.key(key) if key is None or key == "" else keys.parse(key)
        if text is None:
            return Claim(plans.of(operation, ""), None)
        plan = plans.of(operation, "" if scope is None and settings.scope is None else settings.scope_of(scope))
        claim = Claim(plan, plan.request(text, fingerprint, recorded), tx, annotation)
        return claim if lease is None else claim._hold_for(lease)

    def lease(self, name: Key, *, lease: Duration | None = None, scope: str | None = None) -> Lease:
        """`Boundary.lease`; entered from an event loop, it takes threads where the store serves sync code only."""
        from retrysafe.claims import named_lease

        if self.closed:
            raise self._refusal_of_closed()
        return named_lease.Lease(
            str(name), named_lease.claim_of(self.settings, name, lease, scope), self.enter, self.leave
        )

    def _refusal_of_closed(self) -> ConfigurationError:
        return ConfigurationError(
            f"Boundary {self.name!r} has been closed, and a closed one stays closed. Close it when the process "
            "ends; an application that starts more than once, as in tests, builds its boundaries anew each time."
        )

    def open_many(
        self, keys_: Sequence[tuple[str, bytes | Fingerprint]], *, operation: str, codec: Codec
    ) -> BatchClaim:
        """`open` for several keys and fingerprints at once, in one transaction of the boundary's own."""
        from retrysafe.claims.batch import BatchClaim

        plan = self._plans.with_codec(codec).of(operation, self.tenant())
        return BatchClaim(plan.settings, [plan.request(key, payload) for key, payload in keys_], operation)

    @property
    def supports_batch(self) -> bool:
        """True if `open_many` can be used: in transactions, on a store that can, with nothing to count or encrypt."""
        settings = self.settings
        plain = settings.quota is None and settings.encryption is None and settings.backend.cache is None
        return plain and settings.effects == "transactional" and getattr(settings.backend.store, "CLAIMS_MANY", False)

    def lookup(self, key: Key, *, operation: str) -> bytes:
        """The key under which the record of a claim with this key is stored."""
        return keys.lookup(self.settings.secret, self.name, self.tenant(), operation, keys.parse(key))

    async def find_unusable(self, *others: Backend) -> RetrysafeError | None:
        """The error with which a store would refuse everything until it is corrected, if there is one.

        ``others``: further stores that the caller needs.
        """
        for backend in dict.fromkeys((self.backend, *others)):
            try:
                await backend.check_in_loop()
            except UNUSABLE as error:
                return error
            except BaseException as error:  # any error of a user's driver or pool may be over soon
                if not is_failure(error):
                    raise
                logger().warning("The process starts, although its store cannot be checked: %s", error)
        return None

    def take_operation(
        self,
        operation: str,
        owner: object,
        *,
        origin: Any = None,
        shared: bool = False,
        key: str = "",
        codec: Codec | None = None,
    ) -> str:
        """Let ``owner``, a function or another entry point, claim keys under an operation.

        ``key`` says for people what its keys are made of; ``codec`` is that of its claims, if it is not the boundary's.
        Raises `ConfigurationError` when another one of this process does, unless both say that it is ``shared``.
        """
        keys.check_name(operation, "operation")
        origin = origin or key_spaces.origin_of(owner)
        key_spaces.take(self, operation, key_spaces.KeyOwner(owner, origin, shared, key, codec))
        return operation

    def codec_of(self, operation: str) -> Codec:
        """The codec of an operation's results."""
        owner = self.owners.get(operation)
        return self.settings.codec if owner is None or owner.codec is None else owner.codec

    def refuse_result(self, operation: str, stored: StoredResult, annotation: Any = None) -> None:
        """Raise `ConfigurationError` for a result that was given for a key, and that retries could not be given.

        ``annotation``: of an operation that is no guarded function, whose own is known.
        """
        guarded = self.guarded.get(operation)
        try:
            decode_result(
                self.codec_of(operation), stored, annotation if guarded is None else guarded.annotation, given=True
            )
        except ResultUnreadable as error:
            raise ConfigurationError(
                f"The result cannot be given to retries, so the key is still unknown. {error.detail}"
            ) from error

    def is_observed(self, name: str) -> bool:
        """Tell whether any observer has a use for events of this name."""
        return self.settings.observers.is_enabled(name)

    def emit(self, name: str, operation: str, key: bytes = b"", /, **fields: Any) -> None:
        """Tell the observers, as an entry point does, of something that came to no claim, or outlives it."""
        self.settings.emit(name, operation, key, "", fields)

    # ------------------------------------------------------------ entering and leaving

    def refuse_bound_to_threads(self) -> None:
        """Raise `ConfigurationError` for a transaction that belongs to one thread, which a loop cannot keep to."""
        if self.alias is not None and self.effects == "transactional":
            raise ConfigurationError(
                f"Boundary {self.name!r} opens its transactions on connections of Django's, each of which belongs to "
                "one thread; an ASGI middleware runs in none. Use retrysafe.http.django."
            )

    def enter(self, claim: Claim) -> Awaitable[object]:
        """Enter the claim from an event loop; one that a cancelled caller has won is given back."""
        return claim.__aenter__() if self.serves_async else claim._enter_by(_in_entering)

    def leave(self, claim: Claim, error: BaseException | None) -> Awaitable[object]:
        """Leave the claim, with what the work raised, to the end even if the caller is cancelled."""
        kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
        if self.serves_async:
            return claim.__aexit__(kind, error, trace)
        return _in(_leaving, functools.partial(claim.__exit__, kind, error, trace))

    # ------------------------------------------------------------ handlers inside their claim

    def run(self, make: Callable[[], Claim], work: Callable[[Claim], None]) -> Claim:
        """Enter a claim, do the work unless it is a replay, and leave it; again if the database wants that."""

        def attempt(claim: Claim) -> None:
            with claim:
                if not claim.replayed:
                    work(claim)

        return restarting(make, attempt)

    async def arun(self, make: Callable[[], Claim], work: Callable[[Claim], Awaitable[None]]) -> Claim:
        """`run` on an event loop, whichever colour the store has."""
        self.refuse_bound_to_threads()

        async def attempt(claim: Claim) -> None:
            await self.enter(claim)
            await self._work_and_leave(claim, work)

        return await arestarting(make, attempt)

    async def run_in_threads(self, make: Callable[[], Claim], work: Callable[[Claim], None]) -> Claim:
        """`run` for an event loop: the work is done in a thread, and none is held while its claim waits.

        Connections of Django belong to one thread: with these, the key is waited for in the thread of the work.
        """
        if self.alias is not None:
            return await in_thread(lambda: self.run(make, work))

        async def attempt(claim: Claim) -> None:
            await claim._enter_by(_in_entering)
            await in_thread(functools.partial(_work_entered, claim, work))

        return await arestarting(make, attempt)

    async def _work_and_leave(self, claim: Claim, work: Callable[[Claim], Awaitable[None]]) -> None:
        try:
            if not claim.replayed:
                await work(claim)
        except BaseException as error:
            await self.leave(claim, error)
            raise
        await self.leave(claim, None)


async def _in_entering(function: Callable[[], Any]) -> Any:
    return await _in(_entering, function)


async def _in(threads: PerLoop[ThreadPoolExecutor], function: Callable[[], Any]) -> Any:
    """Run a function in a thread, to its end even if the caller is cancelled."""
    done, cancelled = await run_in_thread(function, threads())
    if cancelled is not None:
        raise cancelled
    return done


# ---------------------------------------------------------------- handlers inside their claim


class Function(NamedTuple):
    """A function of the user's, with the parser of its argument, if it has one."""

    function: Callable[..., Any]
    parse: Callable[[Any], Any] | None
    is_async: bool

    def call(self, given: Any) -> Any:
        """Call a plain function; raises what it raises, but see `acall`."""
        try:
            return self.function(given)
        except (lazy.asyncio.CancelledError, BaseExceptionGroup) as error:
            if not _is_cancellation(error):
                raise
            raise RuntimeError(CANCELLED_WITHIN) from error

    async def acall(self, given: Any) -> Any:
        """`call` for a coroutine function.

        A cancellation that did not come from outside is an error of the function's, as any other: it must not end
        who waits for it.
        """
        try:
            return await self.function(given)
        except (lazy.asyncio.CancelledError, BaseExceptionGroup) as error:
            if is_cancelled() or not _is_cancellation(error):
                raise
            raise RuntimeError(CANCELLED_WITHIN) from error


def _is_cancellation(error: BaseException) -> bool:
    """Tell whether it is one, or a group of such and perhaps of errors, but of nothing that ends a process."""
    return every(error, (lazy.asyncio.CancelledError, Exception)) and not every(error, Exception)


def function_of(function: Callable[..., Any], parse: Callable[[Any], Any] | None) -> Function:
    """Inspect a handler.

    Raises `ConfigurationError` for a generator function, which would never run, and for one that does not take the one
    argument that it is called with.
    """
    if is_generator_function(function):
        raise ConfigurationError(
            "A handler must be a function or a coroutine function: calling a generator function runs nothing."
        )
    try:
        lazy.inspect.signature(function).bind(None)
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(
            f"The handler {name} is called with one argument, what it handles: {error}."
        ) from error
    except ValueError:  # a builtin that does not tell
        pass
    return Function(function, parse, is_coroutine_function(function))


def _work_entered(claim: Claim, work: Callable[[Claim], None]) -> None:
    try:
        if not claim.replayed:
            work(claim)
    except BaseException as error:
        claim.__exit__(type(error), error, error.__traceback__)
        raise
    claim.__exit__(None, None, None)


async def in_thread(work: Callable[[], R]) -> R:
    """Do sync work, with its claim, in a thread, and to its end even if the caller is cancelled."""
    done, cancelled = await run_in_thread(work)
    if cancelled is not None:
        raise cancelled
    return done
