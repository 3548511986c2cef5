"""The settings of an integration, or of one handler: every choice, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack, get_args

from retrysafe.errors import ConfigurationError
from retrysafe.http.key_header import HEADER, KeyPolicy, KeySyntax, field_name
from retrysafe.http.problems import BASE
from retrysafe.http.routes import NEEDS, Need, Routes
from retrysafe.protocol.options import refuse_unknown

H = TypeVar("H", bound=Callable[..., Any])
Scoping = Literal["http", "endpoint"]
On5xx = Literal["effects", "store"]
OnLarge = Literal["omit", "error"]
OnStoreError = Literal["closed", "open"]
Refusals = Literal["commit", "rollback"]

NEVER_GUARDED = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that are safe, so that a retry needs no key (RFC 9110 section 9.2.1)."""
UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods that are guarded where a handler says itself that it wants a key."""
GUARDED_BY_DEFAULT = frozenset({"POST", "PATCH"})
"""Methods that are guarded where nothing else is said."""
Policed = Literal["guarded", "unguarded", "off"]
"""The treatment of requests to a route: "off" is a choice, "unguarded" is none."""


class ServedRoute(NamedTuple):
    """A route for POST or PATCH of an application."""

    route: str
    """Method and path, as "POST /payments"."""
    policy: Policed
    handler: object
    late: tuple[str, ...] = ()
    """Names of generators among its dependencies that end after its response has left, such as a session's commit.

    In Litestar those of ``before_send`` hooks that commit, which run when the response is recorded.
    """


PASSING = frozenset({401, 403, 408, 421, 425, 429})
"""Refusals of which a retry may fare better: the key is free again."""

_MARK = "__retrysafe_http__"
_PLAIN = frozenset({"required", "routes"})


class Options(TypedDict, total=False):
    """The choices of a guarded application or route, as keyword arguments of every integration.

    Attributes:
        required: whether a request without a key is refused with 400.
        routes: the same by method and path: patterns such as "POST /payments" or "/internal/**" to "required",
            "optional" or "off"; the first match counts, and where there is none, ``required``.
        methods: which methods are guarded; by default POST and PATCH.
        header: the request header that carries the key, such as "X-Idempotency-Key" for clients that have it already.
        key_syntax: "lenient" takes ``"k"`` and ``k`` for the same key, "strict" only the quoted form.
        key_policy: "any" key; only a "uuid" (or a ULID); or only a "strong" one, which is hard to guess.
        operation: "http": the same key at another endpoint is refused; "endpoint": it is another key.
        mismatch_status: what the same key with another request gets.
        concurrent_status: what a simultaneous duplicate gets: 409, 423, 425, 429 or 202.
        on_5xx: "effects": a 5xx is a failure, and the boundary's effects decide; "store": it is the answer.
        store_statuses: which 4xx are the answer; by default all but 401, 403, 408, 421, 425, 429, which free the key.
        refusals: what becomes of a transactional handler's work when it returns a 4xx: it commits, as it would without
            us ("commit"), or is rolled back ("rollback"), as it is whenever an exception is answered.
        login_pages: paths, or URLs, of the pages that send a client back after it has logged in: a redirect there that
            names the request's own path frees the key. In Django and Flask those of the framework are known.
        on_large: a response over ``response_limit`` is kept without its body ("omit"), or is an "error".
        on_store_error: when the store does not answer, refuse ("closed"), or run without protection ("open").
        headers: the only response headers that are stored, if given.
        secrets: which of Set-Cookie, WWW-Authenticate and other fields with credentials are stored nevertheless.
        canonical_json: whether JSON requests are compared by what they mean instead of byte by byte.
        body_memory: bytes of a request that are held in memory; the rest goes to a temporary file.
        body_limit: bytes of a request over which it is refused with 413.
        response_limit: bytes of a response over which its body is not kept.
        problem_base: where the pages are that the ``type`` of a problem names.
    """

    required: bool
    routes: Mapping[str, Need]
    methods: Iterable[str]
    header: str
    key_syntax: KeySyntax
    key_policy: KeyPolicy
    operation: Scoping
    mismatch_status: int
    concurrent_status: int
    on_5xx: On5xx
    store_statuses: Container[int]
    refusals: Refusals
    login_pages: Iterable[str]
    on_large: OnLarge
    on_store_error: OnStoreError
    headers: Iterable[str]
    secrets: Iterable[str]
    canonical_json: bool
    body_memory: int
    body_limit: int
    response_limit: int
    problem_base: str


class Policy(NamedTuple):
    """`Options`, checked and complete."""

    required: bool = False
    routes: Routes | None = None
    methods: frozenset[str] = GUARDED_BY_DEFAULT
    header: str = HEADER
    key_syntax: KeySyntax = "lenient"
    key_policy: KeyPolicy = "any"
    operation: Scoping = "http"
    mismatch_status: int = 422
    concurrent_status: int = 409
    on_5xx: On5xx = "effects"
    store_statuses: Container[int] = frozenset(range(400, 500)) - PASSING
    refusals: Refusals = "commit"
    login_pages: frozenset[str] = frozenset()
    on_large: OnLarge = "omit"
    on_store_error: OnStoreError = "closed"
    headers: frozenset[bytes] | None = None
    secrets: frozenset[bytes] = frozenset()
    canonical_json: bool = False
    body_memory: int = 1 << 20
    body_limit: int = 64 << 20
    response_limit: int = 1 << 20
    problem_base: str = BASE

    def need(self, method: str, *paths: str) -> Need:
        """Tell whether a request needs a key that may be routed by each of these paths."""
        found = None if self.routes is None else self.routes.strictest(method, paths)
        return found or ("required" if self.required else "optional")


_CHOICES: dict[str, tuple[Any, ...]] = {
    "key_syntax": get_args(KeySyntax),
    "key_policy": get_args(KeyPolicy),
    "operation": get_args(Scoping),
    "mismatch_status": (400, 409, 422),
    "concurrent_status": (202, 409, 423, 425, 429),
    "on_5xx": get_args(On5xx),
    "refusals": get_args(Refusals),
    "on_large": get_args(OnLarge),
    "on_store_error": get_args(OnStoreError),
}


def policy_of(options: Options) -> Policy:
    """Check the choices; raises `ConfigurationError` naming the argument that cannot be kept."""
    given: dict[str, Any] = dict(options)
    refuse_unknown(given, Policy._fields)
    for name, choices in _CHOICES.items():
        if name in given and given[name] not in choices:
            raise ConfigurationError(f"{name}={given[name]!r}: expected one of {', '.join(map(str, choices))}.")
    for name in ("body_memory", "body_limit", "response_limit"):
        if name in given and (not isinstance(given[name], int) or given[name] < 0):
            raise ConfigurationError(f"{name}={given[name]!r} must be a number of bytes.")
    if "methods" in given:
        given["methods"] = _methods(given["methods"])
    if "header" in given:
        field_name(given["header"])
    if "routes" in given:
        given["routes"] = Routes(given["routes"])
    for name in ("headers", "secrets", "login_pages"):
        if isinstance(given.get(name), str):
            raise ConfigurationError(f"{name}={given[name]!r}: give a list, such as [{given[name]!r}].")
    if "login_pages" in given:
        given["login_pages"] = frozenset(given["login_pages"])
    for name in ("headers", "secrets"):
        if given.get(name) is not None:
            given[name] = frozenset(header.lower().encode("latin-1") for header in given[name])
    if given.get("headers"):
        given["secrets"] = given.get("secrets", frozenset()) | given["headers"]
    return Policy(**given)


def _methods(methods: Iterable[str]) -> frozenset[str]:
    found = frozenset([methods] if isinstance(methods, str) else methods)
    for method in found:
        if not method.isupper():
            raise ConfigurationError(f"methods=: {method!r}: a method is written in capitals, such as POST.")
        if method in NEVER_GUARDED:
            raise ConfigurationError(f"methods=: {method} is safe by definition, so there is nothing to guard.")
    return found


# ------------------------------------------------------------ what a handler says of itself


class Declared(NamedTuple):
    """A handler's own policy: its need for a key, and the options that differ for it."""

    need: Need
    options: Options


def policy(need: Need, **options: Unpack[Options]) -> Callable[[H], H]:
    """Decorate a handler with a policy of its own, under the decorator that makes a route of it.

    ``need`` is "required", "optional" or "off", and holds for POST, PUT, PATCH and DELETE, unless ``methods`` says
    otherwise; ``options`` are those of `retrysafe.http.policy.Options` that differ
    from the guard around it. Raises `ConfigurationError` for what cannot be kept.
    """
    if need not in NEEDS:
        raise ConfigurationError(f"policy({need!r}): expected one of {', '.join(NEEDS)}.")
    if _PLAIN & options.keys():
        raise ConfigurationError("policy(): whether a key is required is its first argument; it has no routes.")
    refuse_unknown(options, [name for name in Policy._fields if name not in _PLAIN])

    def mark(handler: H) -> H:
        setattr(handler, _MARK, Declared(need, options))
        return handler

    return mark


def own_policy(handler: object, otherwise: Policed) -> Policed:
    """Return the treatment of requests to a handler that may declare that it needs no key."""
    declared = find_declared(handler)
    return "off" if declared is not None and declared.need == "off" else otherwise


def serving(view: object, method: str) -> object:
    """Return the function that serves a method: of a class, the method of that name."""
    return getattr(view, method.lower(), view) if isinstance(view, type) else view


def find_declared(handler: object) -> Declared | None:
    """The policy that a handler was decorated with."""
    found = getattr(handler, _MARK, None)
    return found if isinstance(found, Declared) else None
