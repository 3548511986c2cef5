"""Common parts of the transports: the key of an operation, its place in the journal, its events, and its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.errors import ConfigurationError, InvalidKey, RetrysafeError
from retrysafe.http.client.budget import Budgets
from retrysafe.http.client.driving import ClientWire, Program, drive
from retrysafe.http.client.errors import (
    JournalUnavailable,
    RequestKeyExpired,
    RequestKeyReused,
    RequestOutcomeUnknown,
    RequestTooLarge,
)
from retrysafe.http.client.headers import secrets_among
from retrysafe.http.client.hosts import Host, address, hide_query
from retrysafe.http.client.journal import Entry, Journal, identity, select_headers
from retrysafe.http.client.operation import GuardedCall, OperationEnding, operation
from retrysafe.http.client.policy import Environment, policy_of
from retrysafe.http.client.redirects import RequestTarget, credentials_to_leave
from retrysafe.http.client.results import REDIRECTS, Failure, ServerAnswer
from retrysafe.http.key_header import HEADER, parse
from retrysafe.protocol import keys
from retrysafe.protocol.events import Observer
from retrysafe.protocol.records import Duration

MARGIN = 5.0
"""Seconds beyond its deadline for which a request is held against other processes."""
_RAISED: dict[str, type[RequestKeyReused | RequestOutcomeUnknown | RequestKeyExpired]] = {
    "key-reused": RequestKeyReused,
    "outcome-unknown": RequestOutcomeUnknown,
    "key-expired": RequestKeyExpired,
}
"""Codes of problem documents that a caller must not take for an ordinary refusal."""


class Outgoing(NamedTuple):
    """A request as a client library hands it over; ``body`` is None when it is a stream too long to keep."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None


class Retries:
    """The policy of retries, and the hosts that honour keys; one object may serve any number of clients.

    Arguments:
        hosts: the servers that honour an ``Idempotency-Key``: requests to them get one, and may be retried although
            they may have arrived.
        max_attempts: how often one request is sent at most.
        deadline: how long all attempts and pauses may take together.
        base, cap: a pause is a random time up to min(cap, base · 2ⁿ); a Retry-After is never undercut.
        overload_base: the base after 429 and 503.
        redirects: how many redirects of a request with a key are followed, by its method, body and key. One that is
            not followed is the answer, also where the client library follows redirects. 0 leaves them to the library;
            then neither a key nor a header that holds credentials goes to another origin.
        hedge_after: after so long without an answer a copy is sent, with the same key; None for never.
        body_limit: bytes of a streamed body that are kept for a retry; a longer one is sent once.
        response_limit: up to so many bytes, a response counts only when it is whole; what is longer is read by the
            caller, and not retried if it breaks off.
        journal: a `Journal` in which requests with a key survive a crash; by default there is none.
        observers: receive an event for every attempt; by default a `LoggingObserver`.
        budgets: the `Budgets` of retries per host; by default of this object's own.
        environment: clocks, chance and sleep, for tests.

    Durations are seconds, `datetime.timedelta`, or text such as "30s". Raises `ConfigurationError`.
    """

    def __init__(
        self,
        hosts: Iterable[Host] = (),
        *,
        max_attempts: int = 3,
        deadline: Duration = "60s",
        base: Duration = "100ms",
        overload_base: Duration = "1s",
        cap: Duration = "20s",
        redirects: int = 5,
        hedge_after: Duration | None = None,
        body_limit: int = 1 << 20,
        response_limit: int = 1 << 20,
        journal: Journal | None = None,
        observers: Iterable[Observer] | None = None,
        budgets: Budgets | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.hosts: dict[str, Host] = {}
        for host in hosts:
            if self.hosts.setdefault(host.origin, host) is not host:
                raise ConfigurationError(f"{host.origin} is declared twice among hosts=.")
        self.policy = policy_of(
            max_attempts=max_attempts,
            deadline=deadline,
            base=base,
            overload_base=overload_base,
            cap=cap,
            redirects=redirects,
            hedge_after=hedge_after,
            body_limit=body_limit,
            response_limit=response_limit,
        )
        self.journal = journal
        self.observers = Observers((LoggingObserver(),) if observers is None else observers)
        self.budgets = budgets or Budgets()
        self.environment = environment or Environment()

    def plan(self, outgoing: Outgoing) -> Planned:
        """Decide on a request before it is sent: its key, and whether it is journalled.

        Raises `InvalidKey`, `RequestTooLarge`.
        """
        outgoing = outgoing._replace(url=_without_user(outgoing.url))
        host = self.hosts.get(address(outgoing.url))
        header = HEADER if host is None else host.header
        lines = list(_fields(outgoing, header))
        key, field = self._key(lines, outgoing.method, host)
        secrets = self._secrets(outgoing, header)
        entry = self._entry(outgoing, host, key, lines[0] if field is None and key else field, secrets)
        call = GuardedCall(
            target=RequestTarget(outgoing.method, outgoing.url, keyed=bool(key), header=header),
            key=key,
            hosts=self.hosts,
            resendable=outgoing.body is not None,
            recognised_until=self.environment.wall() + host.retention if host and key else None,
            secrets=secrets,
        )
        return Planned(self, call, field, entry)

    def _secrets(self, outgoing: Outgoing, header: str) -> frozenset[str]:
        further = self.journal.secrets if self.journal else ()
        return secrets_among((name for name, _ in outgoing.headers), {header.lower(), *further})

    def _key(self, lines: list[str], method: str, host: Host | None) -> tuple[str, str | None]:
        """The key of a request, and how its header is to be set; None leaves the header as it is."""
        encoded = [value.encode("latin-1") for value in lines]
        if host is None:
            return _key_for_nobody(encoded), None
        key = parse(encoded, "lenient", host.header)
        if key is None:
            if method not in host.methods:
                return "", None
            if host.requires_key:
                raise InvalidKey(
                    f"{host!r} takes requests with a key of yours only: give Idempotency-Key, the same whenever this "
                    "is done again. Nothing was sent."
                )
            key = keys.parse(self.environment.new_key())
        return key, host.field(key)

    def _entry(
        self, outgoing: Outgoing, host: Host | None, key: str, field: str | None, secrets: frozenset[str]
    ) -> Entry | None:
        journal = self.journal
        if journal is None or not key:
            return None
        if outgoing.body is None:
            raise RequestTooLarge(f"{outgoing.method} {hide_query(outgoing.url)}.")
        now = self.environment.wall()
        return Entry(
            id=identity(journal.scope, outgoing.url, key),
            scope=journal.scope,
            key=key,
            method=outgoing.method,
            url=outgoing.url,
            headers=select_headers(outgoing.headers, secrets),
            body=outgoing.body,
            created=now,
            recognised_until=now + host.retention if host else None,
            field=field or "",
        )


class Planned:
    """One request that is about to be sent, from its place in the journal to the answer of its caller."""

    def __init__(self, retries: Retries, call: GuardedCall, field: str | None, entry: Entry | None) -> None:
        self.retries = retries
        self.call = call
        self.field = field
        """The value of the header with the key; None leaves it as it is."""
        scope = retries.journal.scope if retries.journal else ""
        self._id = identity(scope, call.target.url, call.key) if call.key else b""
        self._entry = entry
        self._run = os.urandom(8).hex()

    def emit(self, name: str, fields: Mapping[str, Any]) -> None:
        """Tell the observers; the key is redacted to eight digits of its hash."""
        target = self.call.target
        self.retries.observers.emit(name, address(target.url), target.method, self._id, self._run, fields)

    def begin(self) -> None:
        """Write the request into the journal, if there is one; it is on disk behind this."""
        journal, entry = self.retries.journal, self._entry
        if journal is None or entry is None:
            return
        environment, policy = self.retries.environment, self.retries.policy
        found = journal.begin(entry, environment.wall(), policy.deadline + MARGIN, self._run)
        if found is not entry:
            self.field = found.field or self.field
            self.call = self.call._replace(recognised_until=found.recognised_until, doubtful=True)

    def program(self) -> Program:
        """The operation, to be driven."""
        return operation(self.call, self.retries.policy, self.retries.budgets, self.retries.environment, self.emit)

    def stamp(self, headers: MutableMapping[str, Any]) -> None:
        """Set the key among the headers of the caller's request, in the header that its host reads."""
        if self.field is not None:
            headers.pop(HEADER, None)
            headers[self.call.target.header] = self.field

    async def carry_out(self, wire: ClientWire, stamp: Callable[[], None]) -> ServerAnswer:
        """Send the request, and again where that is safe; ``stamp`` sets its key once it is in the journal.

        Raises what its caller gets instead of a response. A caller that is cancelled while the end is written gets no
        answer, so the request stays in the journal.
        """
        _, cancelled = await wire.write(self.begin)
        if cancelled is not None:
            await wire.write(self.break_off, cancelled)
            raise cancelled
        stamp()
        try:
            ending = await drive(self.program(), wire)
        except BaseException as error:
            await wire.write(self.break_off, error)
            raise
        raised, cancelled = await wire.write(self.end, ending)
        answer = ending.result
        if cancelled is not None:
            await wire.write(self.reopen, cancelled)
            if isinstance(answer, ServerAnswer):
                await wire.discard(answer)
            raise cancelled
        if raised is not None:
            raise raised
        assert isinstance(answer, ServerAnswer)
        return answer

    def may_follow(self, answer: ServerAnswer, headers: MutableMapping[str, Any]) -> bool:
        """Tell whether the client library may follow a redirect; ``headers`` of its request are then left for it."""
        left = self.removable_headers(answer, headers)
        for name in left or ():
            headers.pop(name, None)
        return left is not None

    def removable_headers(self, answer: ServerAnswer, names: Iterable[str]) -> frozenset[str] | None:
        """The headers to take from the caller's request before its library may follow a redirect.

        None if the library must not: the redirects of a request with a key are followed here or not at all.
        """
        if answer.status not in REDIRECTS or not answer.headers.get("location"):
            return frozenset()
        if self.call.key and self.retries.policy.redirects:
            return None
        return credentials_to_leave(self.call.target.url, answer, [*names, *self.call.secrets])

    def end(self, ending: OperationEnding) -> Exception | None:
        """The operation has ended: note it in the journal; return what its caller gets instead of a response."""
        if self._entry is not None:
            self._note(ending)
        result = ending.result
        if isinstance(result, Failure):
            result.error.add_note(self._explain(ending))
            return result.error
        kind = _RAISED.get(result.code) if self.call.key else None
        return (
            kind(f"{self.call.target.method} {hide_query(self.call.target.url)}.", response=result.raw)
            if kind
            else None
        )

    def break_off(self, error: BaseException) -> None:
        """The operation was cancelled, or left by what is no failure of a request: it stays in the journal."""
        journal, entry = self.retries.journal, self._entry
        if journal is None or entry is None:
            return
        try:
            journal.release(entry.id, self._run, last=type(error).__name__)
        except JournalUnavailable as unavailable:
            self._keep_unsettled(unavailable)

    def reopen(self, error: BaseException) -> None:
        """It was noted that its caller has an answer, which was cancelled just then: it stays in the journal."""
        try:
            self.begin()
        except RetrysafeError as unavailable:
            self._keep_unsettled(unavailable)
        else:
            self.break_off(error)

    def _note(self, ending: OperationEnding) -> None:
        """An answer is not lost because the journal is: then the request is asked again one day, with its key."""
        journal, entry = self.retries.journal, self._entry
        assert journal is not None
        assert entry is not None
        try:
            if ending.in_doubt:
                journal.release(entry.id, self._run, ending.attempts, ending.result.outcome)
            else:
                journal.settle(entry.id, self._run)
        except JournalUnavailable as error:
            self._keep_unsettled(error)

    def _keep_unsettled(self, error: RetrysafeError) -> None:
        self.emit("request_unsettled", {"error": error.detail})

    def _explain(self, ending: OperationEnding) -> str:
        happened = "may have had its effect" if ending.in_doubt else "has not been carried out"
        key = f" Key {keys.redact(self._id)}." if self._id else " It had no key."
        why = f"; not sent again: {ending.limit}" if ending.limit else ""
        stays = " It stays in the journal: retrysafe requests resume." if self._entry and ending.in_doubt else ""
        return f"retrysafe: the request {happened} ({ending.attempts} sent{why}).{key}{stays}"


def _fields(outgoing: Outgoing, header: str) -> Iterator[str]:
    """Yield the values of the key's header in the request; a caller may have set the usual one."""
    names = {HEADER.lower(), header.lower()}
    return (value for name, value in outgoing.headers if name.lower() in names)


def _key_for_nobody(lines: list[bytes]) -> str:
    """The key that a caller has given for a host which is not declared: it is theirs to be right."""
    try:
        return parse(lines, "lenient") or ""
    except InvalidKey:
        return ""


def _without_user(url: str) -> str:
    """A URL without user and password, and without a fragment."""
    if "@" not in url and "#" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
