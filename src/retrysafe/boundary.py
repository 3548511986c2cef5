"""The front door: a boundary, and the claims and guarded functions that stand inside it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from retrysafe.backends import registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.backends.stores import Store, Tx
from retrysafe.claims import key_spaces
from retrysafe.claims.claim import BlockClaim, Claim, Result
from retrysafe.claims.codec import CheckedCodec, Codec, JSONCodec, encode_verdict
from retrysafe.claims.decorator import (
    Guarded,
    Selector,
    fingerprint_of,
    refuse_other_than_functions,
    refuse_unstorable,
    wrap,
)
from retrysafe.claims.notes import add_note
from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.claims.outcome import encode_result
from retrysafe.claims.responses import encode_answer, is_http, refuse_response
from retrysafe.claims.scopes import TAKES, check_scope
from retrysafe.claims.sealing import Bound, seal
from retrysafe.claims.settings import BoundarySettings, Waiters, clocks_of, fingerprint_secrets, largest_result, reject
from retrysafe.entrypoint import EntryPoint
from retrysafe.errors import ConfigurationError, ResultNotEncodable
from retrysafe.protocol import keys
from retrysafe.protocol.events import Observer
from retrysafe.protocol.fingerprint import UNCHECKED
from retrysafe.protocol.procedures import read, settle_doubt
from retrysafe.protocol.records import (
    Clocks,
    Concurrency,
    Duration,
    Effects,
    Key,
    OnExpired,
    OnMissing,
    Outcome,
    Reject,
    StoredResult,
    Wait,
    key_space,
)
from retrysafe.protocol.requests import Program
from retrysafe.protocol.transitions import RULES, resolution

if TYPE_CHECKING:
    from types import ModuleType
    from typing import TypedDict, Unpack, overload

    from retrysafe.backends.stores import Closable, Lending, ScopedSession
    from retrysafe.claims.declaration import Safety
    from retrysafe.claims.encryption import Keyring
    from retrysafe.claims.named_lease import Lease
    from retrysafe.claims.saga_steps import SagaStep
    from retrysafe.protocol.quotas import Quota
    from retrysafe.providers import Provider

    class _Options(TypedDict, total=False):
        """The arguments of a boundary that say nothing of its transactions."""

        window: Duration
        memory: Duration | None
        lease: Duration
        concurrency: Concurrency
        scope: str | Callable[[], str] | None
        probe: Callable[[Claim], Any] | None
        permanent: type[Exception] | Iterable[type[Exception]]
        on_expired: OnExpired
        on_missing: OnMissing
        codec: Codec | None
        observers: Iterable[Observer] | None
        quota: Quota | None
        encryption: Keyring | None
        secret: str | bytes | None
        shared: bool
        providers: Iterable[str]

    class _Claimed(TypedDict, total=False):
        """The arguments of a claim that say nothing of its transaction and result."""

        operation: str | None
        payload: Any
        scope: str | None


GivenTx = TypeVar("GivenTx", bound="Closable")
P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
T = TypeVar("T")


def _require_key(once: Callable[Q, T]) -> Callable[Q, T]:
    """Name the fix for ``@boundary.once`` without parentheses, without ``key=``, or with a ``scope=`` of its own."""

    call: Any = once

    @functools.wraps(once)
    def call_with_key(*args: Q.args, **kwargs: Q.kwargs) -> T:
        if "scope" in kwargs:
            raise ConfigurationError(
                f"once() has no scope=, it takes the scope of its boundary: Boundary(…, scope=…) takes {TAKES}. "
                'A single claim names its own: claim(key, scope="green"). Nothing was run.'
            )
        if len(args) != 1 or "key" not in kwargs:
            given = getattr(args[1], "__name__", "function") if len(args) > 1 else "function"
            raise ConfigurationError(
                "once() needs key=, the argument that is the same on every retry: @boundary.once(key='order_id') above "
                f"def {given}(order_id, …). Nothing was run."
            )
        result: T = call(*args, **kwargs)
        return result

    return call_with_key


class Boundary(Generic[Tx]):
    """A named guarantee: the state that converges, the window, the treatment of duplicates, and the effects.

    Arguments:
        name: part of every key's identity; keys of two boundaries never meet.
        store: a URL (``sqlite:///shop.db``, ``postgresql://…``, ``postgresql+asyncpg://…``,
            ``redis://…``, ``memory://``, and those of the page of each store), a SQLAlchemy engine or sessionmaker, a
            psycopg or asyncpg pool, a client of the store's own library, or an alias of Django's ``DATABASES``.
        window: how long a retry is recognised and its result kept, from the last write of its record.
        memory: how long the key itself is remembered, from the same instant; by default as long as the window.
        lease: how long an attempt is believed to be alive without a renewal. Leases are renewed while work runs.
        concurrency: what a simultaneous duplicate gets: ``reject()``, or ``wait(seconds)``.
        effects: "transactional" (the effect commits with the record, in one transaction), "keyed" (the effect is
            recognised downstream by ``claim.key_for(…)``; a dead attempt is run again) or "external" (it is not
            recognised; an attempt that ends in doubt becomes *unknown*).
        scope: tenant and principal, as text that is not empty, or a function that is called without arguments at each
            claim and returns them; keys of two scopes never meet.
        probe: called with a claim whose outcome is unknown: finds out whether the effect happened and says so by
            ``claim.result = …; claim.committed()``, ``claim.not_executed()`` or ``claim.fail(error)``.
        permanent: exception types that are stored and replayed as failures. An exception group is, if all errors in it
            are of these types.
        on_expired: what the reuse of a key after its window is: "new" work, or refused with `KeyExpired`.
        on_missing: what a missing key is: an "error" (`InvalidKey`), or let "pass" unguarded.
        codec: how results are stored; by default `JSONCodec`. Every result is decoded again before it is stored, and
            refused with `ResultNotEncodable` if it would come back different.
        observers: receive an event for every decision; by default a `LoggingObserver`.
        quota: a `Quota`: how many new keys each scope may claim in a period, and how many it may have in the store.
        encryption: a `Keyring` that encrypts stored results and failures; by default they are stored as they are.
        shared: several boundaries of this name are to claim the same keys of this store, in one process: each of them
            says so. By default a second one is refused, unless the same line of code builds it again with the same
            ``effects``, ``window``, ``memory``, ``on_expired`` and ``secret``, or the other has been closed. On another
            store a boundary of the same name has other keys.
        secret: keys the hashes under which keys are stored and derived, and by which payloads are compared; set it when
            keys or payloads are guessable and the store can be read by others. Changing it makes every stored key
            unknown.
        providers: names of the APIs that the work calls by ``key_for``, such as ["stripe"], see `retrysafe.providers`:
            `retrysafe doctor` compares their memory with the boundary's.

    Durations are seconds, `datetime.timedelta`, or text such as "30s", "5m", "48h".

    Raises `ConfigurationError` when the promise cannot be kept. No network connection is opened; a
    SQLite file is created and migrated.
    """

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, name: str, *, store: Lending[Tx], effects: Literal["transactional"], **options: Unpack[_Options]
        ) -> None: ...

        @overload
        def __init__(
            self: Boundary[None],
            name: str,
            *,
            store: Store,
            effects: Literal["keyed", "external"] = "keyed",
            **options: Unpack[_Options],
        ) -> None: ...

        @overload
        def __init__(
            self: Boundary[Any], name: str, *, store: Store, effects: Effects, **options: Unpack[_Options]
        ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        store: Store,
        window: Duration = "24h",
        memory: Duration | None = None,
        lease: Duration = "30s",
        concurrency: Concurrency = reject(),
        effects: Effects = "keyed",
        scope: str | Callable[[], str] | None = None,
        probe: Callable[[Claim], Any] | None = None,
        permanent: type[Exception] | Iterable[type[Exception]] = (),
        on_expired: OnExpired = "new",
        on_missing: OnMissing = "error",
        codec: Codec | None = None,
        observers: Iterable[Observer] | None = None,
        quota: Quota | None = None,
        encryption: Keyring | None = None,
        secret: str | bytes | None = None,
        shared: bool = False,
        providers: Iterable[str] = (),
    ) -> None:
        _check_choices(name, concurrency, effects, on_expired, on_missing)
        clocks = clocks_of(lease, window, memory)
        _check_clocks(clocks, concurrency, on_expired)
        backend = registry.connect(store)
        if effects == "transactional" and not backend.store.capabilities.transactions:
            raise ConfigurationError(
                f"effects='transactional' needs transactions, which a {backend.kind} store does not have. "
                f"Give one of {registry.with_transactions()} as store=, or effects='keyed' or 'external'."
            )
        if effects == "transactional" and backend.access.no_transactions:
            raise ConfigurationError(backend.access.no_transactions)
        _check_kinds(quota, encryption, codec, probe)
        check_scope(scope)
        _check_quota(quota, clocks, backend)
        checked = keys.check_secret(secret)
        clocks = clocks._replace(margin=backend.store.capabilities.margin)
        settings = BoundarySettings(
            name=name,
            backend=backend,
            clocks=clocks,
            concurrency=concurrency,
            effects=effects,
            scope=scope,
            probe=probe,
            permanent=exception_types(permanent, "permanent"),
            on_expired=on_expired,
            on_missing=on_missing,
            codec=JSONCodec() if codec is None or type(codec) is JSONCodec else CheckedCodec(codec),
            observers=Observers((LoggingObserver(),) if observers is None else _check_observers(observers)),
            secret=checked,
            waiters=Waiters(),
            encryption=encryption,
            quota=quota,
            fingerprint_secrets=fingerprint_secrets(checked, encryption),
            largest_result=largest_result(backend, encryption),
            providers=_providers(providers),
        )
        self.entrypoint = EntryPoint(settings, shared=shared, origin=key_spaces.origin_of_caller(1))
        """The interface for HTTP, webhooks, messages and other sources of work."""
        self._guarded = self.entrypoint.guarded
        backend.users += 1
        backend.boundaries.add(name)

    @property
    def _settings(self) -> BoundarySettings:
        return self.entrypoint.settings

    @property
    def name(self) -> str:
        """The boundary's name."""
        return self._settings.name

    @property
    def effects(self) -> Effects:
        """The effects that the boundary covers."""
        return self._settings.effects

    @property
    def address(self) -> str:
        """The store's URL, without a password."""
        return self.entrypoint.address

    @property
    def window(self) -> float:
        """Seconds for which a retry is recognised."""
        return self.entrypoint.window

    @property
    def forgets_after(self) -> float:
        """Seconds after which a key is new work: the window, or the memory where late retries are refused."""
        return self.entrypoint.forgets_after

    def __repr__(self) -> str:
        settings = self._settings
        return (
            f"Boundary({settings.name!r}, store={self.address!r}, window={settings.clocks.window / 1e6:g} s, "
            f"concurrency={settings.concurrency!r}, effects={settings.effects!r})"
        )

    # ------------------------------------------------------------ guarding

    if TYPE_CHECKING:
        # Without result_type= the default of Result holds, which pyright's rule does not know of.

        @overload
        def claim(
            self,
            key: Key | None,
            *,
            tx: ScopedSession[GivenTx],
            result_type: type[Result] = ...,  # pyright: ignore[reportInvalidTypeVarUse]
            **options: Unpack[_Claimed],
        ) -> Claim[Result, GivenTx]: ...

        @overload
        def claim(
            self,
            key: Key | None,
            *,
            tx: GivenTx,
            result_type: type[Result] = ...,  # pyright: ignore[reportInvalidTypeVarUse]
            **options: Unpack[_Claimed],
        ) -> Claim[Result, GivenTx]: ...

        @overload
        def claim(
            self,
            key: Key | None,
            *,
            tx: None = None,
            result_type: type[Result] = ...,  # pyright: ignore[reportInvalidTypeVarUse]
            **options: Unpack[_Claimed],
        ) -> Claim[Result, Tx]: ...

        @overload
        def claim(
            self, key: Key | None, *, tx: None = None, result_type: Any, **options: Unpack[_Claimed]
        ) -> Claim[Any, Tx]: ...

        @overload
        def claim(
            self, key: Key | None, *, tx: Any, result_type: Any = None, **options: Unpack[_Claimed]
        ) -> Claim[Any, Any]: ...

    def claim(
        self,
        key: Key | None,
        *,
        operation: str | None = None,
        payload: Any = ...,
        scope: str | None = None,
        tx: Any = None,
        result_type: Any = None,
    ) -> Claim[Any, Any]:
        """Claim ``key`` for a block of code, with ``with`` or ``async with``.

        ``payload`` is what must be the same on every retry: None is one as any other, and nothing is checked without
        ``payload=``. ``operation`` is by default the boundary's name: two blocks that do different things name
        theirs. ``tx`` is the caller's open transaction, which we never commit or roll back. ``result_type`` is the
        type of ``claim.result``, as the return annotation of a guarded function: with it, dataclasses, enums and
        pydantic models can be stored and come back.
        Raises `InvalidKey` here, and `ConfigurationError` for arguments that contradict the boundary; what is
        wrong with the transaction itself, and everything else, shows on entering.
        """
        if result_type is not None:
            refuse_unstorable(self._settings.codec, result_type, "result_type=")
        print_ = UNCHECKED if payload is ... else fingerprint_of(payload)
        claim = self.entrypoint.open(
            key,
            operation=operation or self.entrypoint.settings.name,
            fingerprint=print_,
            scope=scope,
            tx=tx,
            annotation=result_type,
        )
        claim.__class__ = BlockClaim  # without a call more for every claim
        return claim

    @_require_key
    def once(
        self,
        *,
        key: Selector,
        payload: Selector | Literal["arguments"] | None = "arguments",
        operation: str | None = None,
        shared: bool = False,
        sentence: str | None = None,
        safety: Safety | None = None,
        side_effects: Iterable[str] = (),
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function, method or coroutine: it runs once per key, and retries get its result.

        ``key`` is a path into the arguments ("order.id") or a callable that takes some of them. ``payload``
        is the same, by default all arguments but ``self`` and ``tx``; a retry may lack those that were at their
        defaults. ``payload=None`` switches the check off; a path or callable that finds None does not.
        ``operation`` is by default the function's module and qualified name, and for a method that a class inherits
        that class too; name it before you rename or move the function, because it is part of every key's identity.
        ``shared`` lets several functions claim keys under one named operation, when each of them says so: the first
        one that is called with a key answers for all. An argument ``tx`` of a transactional boundary is joined.

        For people, and printed by `retrysafe describe`: ``sentence`` says what the operation does and what counts as
        the same intent (by default the first line of the docstring), ``safety`` whether it is "safe", "idempotent" or
        "neither" without this decorator, and ``side_effects`` lists what it changes or causes.
        Raises `ConfigurationError` for a second function of one operation that is not shared.
        """

        if shared and operation is None:
            raise ConfigurationError("once(): shared=True needs the operation= that is shared.")

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            refuse_other_than_functions(function)
            space = operation or key_spaces.default_operation(function)
            inherit = self._inherit if operation is None and key_spaces.is_method(function) else None
            given = operation is not None
            guarded = Guarded(
                self._settings, self.entrypoint.open, function, key, payload, space, inherit, is_operation_given=given
            )
            wrapped: Callable[P, R] = wrap(guarded)
            self.entrypoint.take_operation(space, function, shared=shared)
            self._guarded.setdefault(space, guarded)
            if sentence is not None or safety is not None or side_effects:
                from retrysafe.claims.declaration import declare

                declare(sentence, safety=safety, side_effects=side_effects)(function)
            return wrapped

        return decorate

    def _inherit(self, guarded: Guarded, kind: type) -> str:
        """The operation of a method without a named one in a class that may inherit it."""
        space = key_spaces.operation_in(kind, guarded.function, guarded.operation)
        if space != guarded.operation:
            self.entrypoint.take_operation(space, kind)
            self._guarded.setdefault(space, guarded)
        return space

    # ------------------------------------------------------------ leases

    def lease(self, name: Key, /, *, lease: Duration | None = None, scope: str | None = None) -> Lease:
        """Hold a named lease for a block, with ``with`` or ``async with``: one holder at a time, on any machine.

        ``lease`` says after how long another one may take it over if its holder dies, by default as the boundary does.
        ``scope`` is as for `claim`. The writes of the `Lease` refuse a holder that has lost it: its token is higher
        than those of all holders before. A name is remembered for good, so take it from a fixed set, such as the names
        of jobs. Nothing of ``effects``, ``window``, ``probe`` and ``quota`` applies.
        """
        return self.entrypoint.lease(name, lease=lease, scope=scope)

    # ------------------------------------------------------------ steps without a claim

    def step(self, saga: Key, name: str, /, *, tx: Any, undo: bool = False, scope: str | None = None) -> SagaStep:
        """A step of a choreographed saga, whose parts are done by handlers of messages: ``with`` or ``async with``.

        ``saga`` is the id that all its messages carry, ``tx`` the transaction in which the handler works. With ``undo``
        it is the compensation of the step. The block runs always: work stands under ``if not step.replayed``, which
        leaves out what is done already, what comes after its compensation, and the undoing of what was never done.
        ``step.result`` is the step's, also in its compensation. The rows are kept for the boundary's memory.
        """
        step: SagaStep = _steps().saga_step(self._settings, saga, name, tx, undo=undo, scope=scope)
        return step

    def signal(
        self, key: Key, name: str, value: Any = None, *, operation: str | None = None, scope: str | None = None
    ) -> bool:
        """Give the work of a key the signal that its `Claim.wait_for` waits for; the first of a name counts.

        Returns False if it has one of this name already, or if no such work is under way. ``operation`` is as for
        `resolve`; of an HTTP request ``scope`` is the one that ``retrysafe keys list`` shows. A message has
        `Handler.signal`. What waits goes on when its key comes again.
        """
        done: bool = _steps().signal(self._settings, key, name, value, operation or self.name, scope)
        return done

    async def asignal(
        self, key: Key, name: str, value: Any = None, *, operation: str | None = None, scope: str | None = None
    ) -> bool:
        """`signal` for async code."""
        done: bool = await _steps().asignal(self._settings, key, name, value, operation or self.name, scope)
        return done

    # ------------------------------------------------------------ settling doubt

    def resolve(
        self,
        key: Key,
        outcome: Outcome,
        *,
        result: Any = None,
        operation: str | None = None,
        scope: str | None = None,
        result_type: Any = None,
        reason: str = "",
    ) -> bool:
        """Settle a key whose outcome is unknown, after you found out where its effect would be visible.

        "completed" stores ``result`` as the answer, "failed" a failure with ``result``, else ``reason``, as its
        message, and "released" lets the next attempt run. ``operation`` is by default the boundary's name, as for
        `claim`; for a function guarded by `once` it is that function's operation, and for HTTP requests "http", with
        or without the route behind it, whose ``result`` is a response, also when they failed:
        `retrysafe.http.respond`. ``result_type`` is the one of the claim; a guarded function's is known. ``reason``
        says to operators how you know. Returns False when the key is not unknown (any more); raises
        `ConfigurationError` for a result that retries could not be given, and for a run whose steps would never be
        undone then.
        """
        program = self._resolving(key, outcome, result, operation, scope, result_type, reason)
        return run(program, self._settings.backend.client())

    async def aresolve(
        self,
        key: Key,
        outcome: Outcome,
        *,
        result: Any = None,
        operation: str | None = None,
        scope: str | None = None,
        result_type: Any = None,
        reason: str = "",
    ) -> bool:
        """`resolve` for async code."""
        program = self._resolving(key, outcome, result, operation, scope, result_type, reason)
        return await arun(program, self._settings.backend.aclient())

    def _resolving(
        self,
        key: Key,
        outcome: Outcome,
        result: Any,
        operation: str | None,
        scope: str | None,
        result_type: Any,
        reason: str,
    ) -> Program[bool]:
        settings = self._settings
        event = resolution(outcome)
        space = key_space(operation or self.name)
        scope_text = settings.scope_of(scope)
        found = keys.lookup(settings.secret, settings.name, scope_text, space, keys.parse(key))
        guarded = self._guarded.get(space)
        annotation = result_type if guarded is None else guarded.annotation
        stored = self._answer_of(outcome, space, result, annotation, reason)
        target = RULES[event].target
        assert target is not None
        stored = seal(settings.encryption, stored, Bound(settings.name, scope_text, space, found, target))
        stored = add_note(stored, "Boundary.resolve()", reason)

        def settle() -> Program[bool]:
            seen = yield from read(settings.backend.store, found)
            if seen is not None:
                obstacle_to = import_module("retrysafe.backends.steps").obstacle_to
                if told := (yield from obstacle_to(outcome, settings.backend, seen)):
                    raise ConfigurationError(told)
            done, record = yield from settle_doubt(settings.backend.store, found, event, stored, clocks=settings.clocks)
            if done and record is not None:
                settings.emit("resolved", space, found, record.attempt, {"outcome": outcome})
            return done

        return settle()

    def _answer_of(
        self, outcome: Outcome, operation: str, result: Any, annotation: Any, reason: str
    ) -> StoredResult | None:
        if is_http(operation):
            return encode_answer(operation, outcome, result)
        refuse_response(operation, result)
        if outcome == "failed":
            return encode_verdict("Failure", result, reason, default="declared failed by a person")
        return self._encode_answer(operation, result, annotation) if outcome == "completed" else None

    def _encode_answer(self, operation: str, result: Any, annotation: Any) -> StoredResult:
        codec = self.entrypoint.codec_of(operation)
        try:
            stored = encode_result(codec, result, annotation, self._settings.largest_result)
        except ResultNotEncodable as error:
            raise ConfigurationError(
                f"result= cannot be stored, so the key is still unknown. {error.detail}. Name the operation= whose "
                "return annotation says how to store it, give result_type= as to claim(), or give plain JSON types."
            ) from error
        self.entrypoint.refuse_result(operation, stored, annotation)
        return stored

    # ------------------------------------------------------------ start and end

    def check(self) -> None:
        """Ask the store whether it can be used, as the first claim does: call it when a process starts.

        Raises `SchemaOutdated` with the command that migrates it, `StoreMisconfigured` for a password, database,
        permission or file that is wrong, `ConfigurationError` for settings of the server that break the guarantee, and
        `StoreUnavailable` if it does not answer.
        """
        self._settings.backend.ready_client()

    async def acheck(self) -> None:
        """`check` for async code."""
        await self._settings.backend.check_in_loop()

    def close(self) -> None:
        """Close the connections that no other boundary uses."""
        if self._leave():
            self._settings.backend.close()

    async def aclose(self) -> None:
        """`close` for async code: also closes what the running loop has opened."""
        if self._leave():
            await self._settings.backend.aclose()

    def _leave(self) -> bool:
        if self.entrypoint.closed:
            return False
        self.entrypoint.closed = True
        return registry.leave(self._settings.backend)


def _steps() -> ModuleType:
    """The module of steps without a claim, which most programs have no use for."""
    return import_module("retrysafe.claims.saga_steps")


def require_boundary(given: object) -> Boundary:
    """The boundary that an integration was given. Raises `ConfigurationError` for anything else, such as its store."""
    if isinstance(given, Boundary):
        return given
    kind = type(given)
    raise ConfigurationError(
        f"A {kind.__module__}.{kind.__qualname__} was given in place of a Boundary. Write "
        "boundary = Boundary('shop', store=…), where store= is a URL, an engine, a sessionmaker or a pool, and give "
        "that boundary."
    )


def _check_choices(name: object, concurrency: object, effects: str, on_expired: str, on_missing: str) -> None:
    if not keys.check_name(name, "name"):
        raise ConfigurationError("name= is empty: name what is guarded, as in Boundary('shop', store=…).")
    if not isinstance(concurrency, Reject | Wait):
        raise ConfigurationError("concurrency= is reject() or wait(seconds), called.")
    for argument, value, choices in (
        ("effects", effects, ("transactional", "keyed", "external")),
        ("on_expired", on_expired, ("new", "refuse")),
        ("on_missing", on_missing, ("error", "pass")),
    ):
        if value not in choices:
            raise ConfigurationError(f"{argument}={value!r}: expected one of {', '.join(choices)}.")


def _check_clocks(clocks: Clocks, concurrency: Concurrency, on_expired: OnExpired) -> None:
    if on_expired == "refuse" and clocks.memory == clocks.window:
        raise ConfigurationError(
            "on_expired='refuse' needs memory= longer than window=, or there is nothing to refuse by."
        )
    if isinstance(concurrency, Wait) and clocks.window <= concurrency.seconds * 1e6:
        raise ConfigurationError("window= must be longer than wait(…): a result must outlive those who wait for it.")


def _check_kinds(quota: object, encryption: object, codec: object, probe: object) -> None:
    if quota is not None:
        from retrysafe.protocol.quotas import Quota

        if not isinstance(quota, Quota):
            raise ConfigurationError('quota= is a Quota, such as Quota(rate="100/1m", outstanding=1000).')
    if encryption is not None:
        from retrysafe.claims.encryption import Keyring

        if not isinstance(encryption, Keyring):
            raise ConfigurationError("encryption= is a Keyring, such as Keyring.from_env().")
    methods = [getattr(codec, name, None) for name in ("encode", "decode")]
    if codec is not None and (isinstance(codec, type) or not all(map(callable, methods))):
        raise ConfigurationError(
            "codec= is an object with encode(value, annotation) and decode(stored, annotation), such as JSONCodec()."
        )
    if probe is not None and not callable(probe):
        raise ConfigurationError("probe= is a function that takes a claim and says whether its effect happened.")


def _providers(names: Iterable[str]) -> tuple[Provider, ...]:
    if not names:
        return ()
    from retrysafe.providers import provider

    if isinstance(names, str):
        raise ConfigurationError(f"providers={names!r}: give a list, such as [{names!r}].")
    return tuple(map(provider, names))


def _check_observers(given: Any) -> tuple[Observer, ...]:
    each: tuple[Any, ...] = () if callable(given) or not isinstance(given, Iterable) else tuple(given)
    if callable(given) or not isinstance(given, Iterable) or not all(map(callable, each)):
        raise ConfigurationError(
            f"observers={given!r}: give a list of functions that take an event, such as [LoggingObserver()]."
        )
    return each


def _check_quota(quota: Quota | None, clocks: Clocks, backend: Backend) -> None:
    if quota is None:
        return
    if not backend.store.capabilities.quotas:
        raise ConfigurationError(
            f"quota= cannot be kept by a {backend.kind} store, which cannot count the keys of a scope. Limit them "
            "before they come here, or use another store."
        )
    largest = backend.store.capabilities.largest_quota
    if largest is not None and max(quota.rate or 0, quota.outstanding or 0) > largest:
        raise ConfigurationError(f"quota= of a {backend.kind} store counts up to {largest} keys of a scope: lower it.")
    if quota.period > clocks.memory:
        raise ConfigurationError(
            f"quota= counts over {quota.period / 1e6:g} s, and keys are forgotten after {clocks.memory / 1e6:g} s: a "
            "shorter period, or a longer memory=."
        )


def exception_types(given: Any, argument: str) -> tuple[type[Exception], ...]:
    """The exception types given for an argument; raises `ConfigurationError` for anything else."""
    kinds: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise ConfigurationError(
                f"{argument}= takes exception types, such as (ValueError, KeyError), not {kind!r}."
            )
    return kinds
