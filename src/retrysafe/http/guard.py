"""The HTTP protocol of guarded requests, without a server: policy, key, fingerprint, scope, and the judged response.

Without I/O except for the claim that it makes: an integration reads the request, enters the claim, runs the handler,
and passes the response to `Guard.judge` before it leaves the claim. Settings of the options and the boundary alone
are attributes of the guard, computed when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from retrysafe.boundary import Boundary, require_boundary
from retrysafe.claims.claim import Claim
from retrysafe.claims.observers import logger
from retrysafe.claims.responses import OPERATION, ResponseCodec
from retrysafe.errors import InvalidKey, LeaseLost, Postponed, RetrysafeError, StoreMisconfigured, StoreUnavailable
from retrysafe.http import key_header, principals, worker_count
from retrysafe.http.bodies import Body, without_boundary
from retrysafe.http.messages import (
    REDIRECTS,
    Request,
    Response,
    find_dropped_fields,
    leads_to_login,
    mark_replay,
    strip_fields,
)
from retrysafe.http.policy import UNSAFE, Options, find_declared, policy_of
from retrysafe.http.problems import PROBLEMS, Refusal, refusal_of, render, report
from retrysafe.http.routes import Need
from retrysafe.protocol import canonical, fingerprint
from retrysafe.protocol.canonical import NotCanonical
from retrysafe.protocol.exception_groups import leaves
from retrysafe.protocol.fingerprint import Content, Fingerprint, content
from retrysafe.protocol.outcomes import DONE, Answered
from retrysafe.protocol.records import ROUTED

FIELDS = (b"content-type", b"content-encoding", b"if-match", b"if-none-match")
_JSON = (b"application/json", b"+json")
_REPEATED_ELSEWHERE = frozenset({307, 308})
"""Redirects after which a client sends the same request, and key, to another place (RFC 9110 section 15.4)."""
_CODEC = ResponseCodec()


class ResponseOrigin(NamedTuple):
    """The origin of a response, as far as the integration can tell."""

    raised: bool = False
    """True if it answers an exception, after which what the handler wrote is to be undone."""
    reached: bool = True
    """True if the handler may have been called: around it nothing of the operation was done."""
    wrote: bool = False
    """True if the handler has written by the claim's transaction without asking for it."""


RETURNED = ResponseOrigin()
"""The handler returned it."""


class Guard:
    """One boundary and one policy, applied to requests, which are the same if ``fields`` are, beside what all have."""

    def __init__(
        self,
        boundary: Boundary,
        options: Options,
        principal: principals.Principal,
        fields: tuple[bytes, ...] = FIELDS,
        login_pages: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        require_boundary(boundary)
        principals.check(principal)
        assert min(fields) > b"body", "parts of a fingerprint stand by name"
        self.fields = fields
        self.login_pages = login_pages
        """Finds the pages of login that the framework itself has, beside those of the options."""
        self.boundary = boundary
        self.entry = boundary.entrypoint
        self.options = options
        self.policy = policy_of(options)
        self.key_field = self.policy.header.lower().encode()
        """The name of the header with the key, as requests have it."""
        self.methods = self.policy.methods
        """The methods that are guarded."""
        self._need: Need = "required" if self.policy.required else "optional"
        """The need of a guarded request of which ``routes=`` says nothing."""
        self.transactional = boundary.effects == "transactional"
        """True if the response commits with the handler's work, so that nothing may leave before it is complete."""
        self.holds_all = self.transactional or self.policy.on_large == "error"
        """True if all of a response waits for its record, so that another one can still stand in its place."""
        self._dropped = find_dropped_fields(self.policy.secrets)
        self._largest = self.entry.largest_result
        self._compared = False
        self._of: dict[object, Guard] = {}
        """The guards of handlers that have a policy of their own."""
        self.principal: Callable[..., Any] | None = None if isinstance(principal, str) else principal
        """Finds whose a request is; None: all clients have one space of keys."""
        boundary.entrypoint.take_operation(OPERATION, "HTTP requests", key=f"{self.policy.header} of the request")
        worker_count.warn_of_memory(boundary.entrypoint)

    def under(self, need: Need, options: Options) -> Guard:
        """The guard of one route: this one's boundary and principal, its options but for ``options``.

        A route of which something is said is guarded by every method that is not safe, unless ``options`` name some.
        """
        routes: dict[str, Need] = {"/**": need}
        said: Options = {"methods": self.policy.methods | UNSAFE, **options}
        merged: Options = {**self.options, **said, "required": need == "required", "routes": routes}
        return Guard(self.boundary, merged, self.principal or principals.SHARED, self.fields, self.login_pages)

    def of(self, handler: object) -> Guard:
        """The guard of a handler: this one, or that with the handler's own policy."""
        declared = find_declared(handler)
        if declared is None:
            return self
        if handler not in self._of:
            self._of[handler] = self.under(declared.need, declared.options)
        return self._of[handler]

    # ------------------------------------------------------------ before the body is read

    def need(self, request: Request) -> Need:
        """Tell whether a request needs a key; "off" for one that is not guarded, whatever it carries."""
        if request.method not in self.methods:
            return "off"
        if self.policy.routes is None:
            return self._need
        return self.policy.need(request.method, unquote(request.path.decode("latin-1")), *request.routed)

    def warn_of_unmatched(self, served: Callable[[], Iterable[tuple[Container[str], str]]]) -> None:
        """Log, once, which patterns of ``routes=`` match none of the routes that an application has."""
        if self.policy.routes is None or self._compared:
            return
        self._compared = True
        for pattern in self.policy.routes.find_unmatched(served()):
            logger().warning("routes=: %r matches no route of the application, so that it guards nothing.", pattern)

    def admit(self, request: Request) -> str | None:
        """Return the request's key; None when it passes untouched. Raises `Refusal`."""
        policy = self.policy
        if request.method not in self.methods:
            return None
        need = self._need if policy.routes is None else self.need(request)
        if need == "off":
            return None
        try:
            key = key_header.parse(request.fields.get(self.key_field, ()), policy.key_syntax, policy.header)
            if key is not None and policy.key_policy != "any":
                key_header.check(key, policy.key_policy, policy.header)
        except InvalidKey as error:
            raise Refusal("key-invalid", f"{error.detail} Nothing was done.") from error
        if key is None and need == "required":
            raise Refusal("key-missing", f"Nothing was done. Send {request.method} with a key in {policy.header}.")
        return key

    def scope(self, principal: object, around: Sequence[object] = ()) -> str | None:
        """The scope of a request: the boundary's tenant, if it has one, and the principal.

        Raises `Refusal` without a principal.

        ``around`` is what the guards around this one, which left the request to it, found as their principals: the
        keys of two requests meet only if both agree. One that they did not find may be missing if this guard has one
        of its own.
        """
        if self.principal is None and not around:
            return None
        own = () if self.principal is None else (principal,)
        named = [found for found in (*around, *own) if principals.is_named(found)]
        if not all(map(principals.is_named, own or around)):
            raise Refusal("principal-missing")
        return principals.make_scope(self.entry.tenant(), *dict.fromkeys(named))

    # ------------------------------------------------------------ the claim

    def claim(self, request: Request, key: str, body: Body, scope: str | None, tx: Any = None) -> Claim:
        """The claim for a request whose body has been read. Raises `Refusal` for one that is no JSON but says so."""
        return self.entry.open(
            key,
            operation=OPERATION if self.policy.operation == "http" else _endpoint(request),
            fingerprint=self._fingerprint(request, body),
            scope=scope,
            tx=tx,
            annotation=request,
            codec=_CODEC,
            recorded=_name_route(request) if self.policy.operation == "http" and request.route else "",
        )

    def _fingerprint(self, request: Request, body: Body) -> Fingerprint:
        """The fingerprint of the parts that must be the same on a retry."""
        lines, fields = request.fields, []
        length = len(request.path) + len(request.query)
        for name in self.fields:
            if name in lines:
                value = without_boundary(b"\n".join(lines[name]))
                fields.append((name, value))
                length += len(value)
        known = _known_head if length <= _LONGEST_KNOWN else _head
        head = known(request.method, request.path, request.query, tuple(fields))
        if not body.length:
            body.refuse_unread()
        meant = (self._canonical(request, body) if self.policy.canonical_json else None) or body.hash.digest()
        return Fingerprint([content(_BODY, meant), *head])

    def _canonical(self, request: Request, body: Body) -> bytes | None:
        """The canonical form of a JSON body, if it is not encoded."""
        if request.lines(b"content-encoding") or not _is_json(request):
            return None
        whole = body.whole
        try:
            return canonical.of_json(whole) if whole else None
        except NotCanonical as error:
            raise Refusal("request-invalid", f"Nothing was done. {error}") from error

    # ------------------------------------------------------------ the response

    def judge(self, claim: Claim, response: Response, request: Request, origin: ResponseOrigin = RETURNED) -> None:
        """Classify a response, complete but for a body that was too large, and store it if retries get it."""
        policy, status = self.policy, response.status
        stored = strip_fields(response, policy.headers, self._dropped)
        if self._largest is not None:
            stored = self._fitting(stored, self._largest)
        answered = Answered.ABORTED if origin.raised else DONE
        if status >= 300:
            undone = origin.raised or policy.refusals == "rollback"
            if status >= 500:
                answered = Answered.FAILED if policy.on_5xx == "effects" else Answered.ABORTED
            elif status >= 400 and status in policy.store_statuses:
                answered = Answered.ABORTED if undone else Answered.REFUSED
            elif status in _REPEATED_ELSEWHERE and not (undone and self.transactional):
                answered = Answered.ELSEWHERE
            elif (
                status >= 400 or status in _REPEATED_ELSEWHERE or self._asks_to_log_in(claim, response, request, origin)
            ):
                answered = Answered.NOT_EXECUTED if undone else Answered.DECLINED
        claim._take_answer(answered, stored, f"HTTP {response.status}")

    def _asks_to_log_in(self, claim: Claim, response: Response, request: Request, origin: ResponseOrigin) -> bool:
        """Tell whether a redirect asks to log in first, and then to repeat the request.

        Never in external mode, where the work would be done twice if that is mistaken, nor when the work has written.
        """
        if response.status not in REDIRECTS or self.boundary.effects == "external":
            return False
        if not origin.reached:
            return True
        wrote = self.transactional and not origin.raised and (origin.wrote or claim._tx_taken)
        return not wrote and leads_to_login(request, response, (*self.policy.login_pages, *self.login_pages()))

    def _fitting(self, response: Response, largest: int) -> Response:
        """The response as the store can keep it."""
        if response.body is None or len(_CODEC.encode(response, None).body or b"") <= largest:
            return response
        return response._replace(body=None)

    def replay(self, claim: Claim) -> Response:
        """The response to a retry."""
        return mark_replay(claim.result)

    # ------------------------------------------------------------ the layer's own answers

    def answer(self, refusal: Refusal) -> Response:
        """The response to a refusal."""
        program = self.entry.backend.commands.program
        return render(refusal, self.status(refusal.code), self.policy.problem_base, program)

    def status(self, code: str) -> int:
        """The status of the answer of this code."""
        chosen = {"key-reused": self.policy.mismatch_status, "in-progress": self.policy.concurrent_status}
        return chosen.get(code) or PROBLEMS[code].status

    def refusal(self, error: RetrysafeError | Postponed) -> Refusal:
        """The refusal for an error of the claim; raises the error again when only a developer can correct it."""
        found = refusal_of(error)
        if found is None:
            raise error
        report(found.code, error)
        return found

    def find_restart(self, status: int, cause: BaseException) -> BaseException | None:
        """The error behind a response to ``cause`` after which the whole transaction has to run again, if any.

        Nothing of a transaction is left then, whatever was answered and whichever error was made of it.
        """
        if not self.transactional:
            return cause if status >= 500 and self.entry.restarts(cause) else None
        error: BaseException | None = cause
        seen: list[BaseException] = []
        while error is not None and error not in seen and not self.entry.restarts(error):
            seen.append(error)
            error = error.__cause__ or error.__context__
        return None if error in seen else error

    def find_lost(self, error: BaseException | None) -> Refusal | None:
        """The refusal after the handler has found that another attempt has its key, or that it has to wait."""
        if isinstance(error, Postponed):
            return refusal_of(error)
        found = [] if error is None else [leaf for leaf in leaves(error) if isinstance(leaf, LeaseLost)]
        return self.refusal(found[0]) if found else None

    def passes(self, error: RetrysafeError) -> bool:
        """Tell whether ``on_store_error="open"`` lets the handler run although its key could not be claimed."""
        if not isinstance(error, StoreUnavailable) or self.policy.on_store_error != "open":
            return False
        if isinstance(error, StoreMisconfigured):
            logger().error("A request runs without protection, because of on_store_error='open': %s", error)
        return True


((_BODY, _),) = fingerprint.of_parts({"body": b""}).parts
"""The head of the part of the body, whose name comes first among those of all parts."""
_LONGEST_KNOWN = 512
"""Bytes of a head up to which its digests are remembered: strangers choose it."""


def _head(method: str, path: bytes, query: bytes, fields: tuple[tuple[bytes, bytes], ...]) -> Sequence[Content]:
    """The parts of a fingerprint that come after the body: of the head of a request."""
    parts = {"method": method.encode(), "path": path, "query": query}
    parts |= {name.decode(): value for name, value in fields}
    return fingerprint.of_parts(parts).parts


_known_head = lru_cache(maxsize=1024)(_head)


def _name_route(request: Request) -> str:
    """The operation of a request as its record tells it; none where a store could not keep that."""
    routed = f"{ROUTED}{request.method} {request.route}"
    return routed if principals.as_name(routed) == routed else ""


def _endpoint(request: Request) -> str:
    """The operation of requests to one endpoint, where each has keys of its own."""
    endpoint = f"{OPERATION} {request.method} {request.path.decode('latin-1')}"
    named = principals.as_name(endpoint)
    return endpoint if named == endpoint else f"{OPERATION} {named}"


def _is_json(request: Request) -> bool:
    kinds = [value.split(b";")[0].strip().lower() for value in request.lines(b"content-type")]
    return any(kind.endswith(_JSON) for kind in kinds)
