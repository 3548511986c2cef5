"""The settings of a boundary, checked, as claims read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe import lazy
from retrysafe.backends.backend import Backend
from retrysafe.claims.codec import Codec
from retrysafe.claims.observers import NO_FIELDS, Observers
from retrysafe.claims.scopes import check_scope, scope_text
from retrysafe.claims.sealing import OVERHEAD
from retrysafe.errors import ConfigurationError, InvalidKey
from retrysafe.protocol import durations, keys
from retrysafe.protocol.durations import micros
from retrysafe.protocol.fingerprint import Secrets
from retrysafe.protocol.records import (
    Clocks,
    Concurrency,
    Duration,
    Effects,
    Key,
    Layered,
    OnExpired,
    OnMissing,
    Reject,
    Wait,
)
from retrysafe.runtime import PerProcess, new_lock

if TYPE_CHECKING:
    from retrysafe.claims.encryption import Keyring
    from retrysafe.protocol.quotas import Quota
    from retrysafe.providers import Provider


def reject() -> Reject:
    """Tell a simultaneous duplicate at once that the first is in progress."""
    return Reject()


def wait(seconds: Duration, *, at_most: int = 1000) -> Wait:
    """Let a simultaneous duplicate wait up to ``seconds`` (or a duration such as "5s") for the first one's result.

    In each process ``at_most`` duplicates of a boundary wait at a time; any more are told at once that the first is in
    progress. Sync code waits in its thread: choose fewer than the server has threads, so that others are served.

    Raises `ConfigurationError` for a number that is not positive.
    """
    if at_most < 1:
        raise ConfigurationError(f"wait(at_most={at_most!r}): expected how many duplicates may wait, 1 or more.")
    return Wait(durations.seconds(seconds, "wait"), at_most)


def layered(fast: Any, truth: Any, *, name: str, at_most: Duration = "1h") -> Layered:
    """A store for ``store=``: results of settled keys are answered from ``fast``, every claim is decided by ``truth``.

    ``fast`` is a Redis URL or client, ``truth`` anything else that ``store=`` takes. ``name`` is the truth's: the same
    in every process that uses this truth, and never that of another database behind the same Redis, whose results
    would be taken for this one's. Whatever happens to the fast one (a flush, a failover, a partition) costs time only.
    A result is served from it until the window ends, and for ``at_most`` after an operator has expired the key while
    the fast one could not be reached. Claims with ``tx=`` do not ask it: they are in the database already.
    """
    if not keys.check_name(name, "name"):
        raise ConfigurationError("layered(): name= is empty; name the truth, such as 'shop production'.")
    return Layered(fast, truth, name, durations.micros(at_most, "at_most"))


class Waiters:
    """Counts the duplicates of a boundary that wait in this process."""

    checked_snapshot = False
    """True once a claim has asked whether the isolation level hides what duplicates wait for."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._waiting: PerProcess[list[None]] = PerProcess(list)

    def join(self, at_most: int) -> bool:
        """Count one more; False when there are as many already."""
        with self._lock:
            waiting = self._waiting()
            if len(waiting) >= at_most:
                return False
            waiting.append(None)
        return True

    def leave(self) -> None:
        """Count one less."""
        self._waiting().pop()


class BoundarySettings(NamedTuple):
    """The promises of a boundary, and the means to keep them."""

    name: str
    backend: Backend
    clocks: Clocks
    concurrency: Concurrency
    effects: Effects
    scope: str | Callable[[], str] | None
    probe: Callable[[Any], Any] | None
    permanent: tuple[type[BaseException], ...]
    on_expired: OnExpired
    on_missing: OnMissing
    codec: Codec
    observers: Observers
    secret: bytes | None
    waiters: Waiters
    encryption: Keyring | None = None
    quota: Quota | None = None
    fingerprint_secrets: Secrets = Secrets()
    largest_result: int | None = None
    """The largest number of bytes of an encoded result, less those that encryption adds; None: any number."""
    providers: tuple[Provider, ...] = ()
    """The APIs that the work calls by ``key_for``."""

    def chance(self) -> float:
        """A random number in [0, 1), for jitter."""
        return lazy.random.random()

    def key(self, key: Key | None) -> str | None:
        """The key as text; None when it is missing and such calls pass."""
        if key is None or key == "":
            if self.on_missing == "pass":
                return None
            raise InvalidKey(f"The operation was called without a key, which boundary {self.name!r} requires.")
        return keys.parse(key)

    def scope_of(self, scope: str | Callable[[], str] | None) -> str:
        """The scope of a claim: its own, or the boundary's."""
        if callable(scope):
            check_scope(scope)
        found = scope if scope is not None else self.scope
        return "" if found is None else scope_text(found, self.name)

    def emit(
        self,
        name: str,
        operation: str,
        record_key: bytes,
        attempt: str,
        fields: Mapping[str, Any] = NO_FIELDS,
    ) -> None:
        """Tell the observers of something that is not part of an attempt."""
        self.observers.emit(name, self.name, operation, record_key, attempt, fields)


def fingerprint_secrets(secret: bytes | None, encryption: Keyring | None) -> Secrets:
    """Fingerprints are keyed by the secret; without one by the keyring, each of whose keys is still compared."""
    if secret is not None:
        return Secrets([secret])
    return Secrets([] if encryption is None else encryption.fingerprint_secrets)


def largest_result(backend: Backend, encryption: Keyring | None) -> int | None:
    """Return the largest number of bytes of an encoded result, less those that encryption adds; None: any number."""
    largest = backend.store.capabilities.largest_result
    return largest if largest is None or encryption is None else largest - OVERHEAD


def clocks_of(lease: Duration, window: Duration, memory: Duration | None) -> Clocks:
    """The three clocks, checked against each other."""
    clocks = Clocks(
        lease=micros(lease, "lease"),
        window=micros(window, "window"),
        memory=micros(window if memory is None else memory, "memory"),
    )
    if clocks.memory < clocks.window:
        raise ConfigurationError(
            "memory= is shorter than window=: a key must be remembered at least as long as its result."
        )
    return clocks
