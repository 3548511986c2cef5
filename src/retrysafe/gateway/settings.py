"""The settings of a gateway: plain values, checked at construction, that workers can be given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from jwt.algorithms import get_default_algorithms

from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError
from retrysafe.http.principals import UNSAID, check
from retrysafe.http.routes import NEEDS, Need
from retrysafe.protocol.records import Duration

GatewayEffects = Literal["external", "keyed"]
ForwardKey = Literal["quoted", "bare", "off"]
Host = Literal["keep", "upstream"]
EVERYTHING = "/**"
_SHORTEST_SECRET = 32


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name}={value!r}: expected one of {', '.join(choices)}.")


@dataclass(frozen=True)
class Timeouts:
    """The deadlines for the upstream, in seconds.

    Attributes:
        connect: until there is a connection, a free one of the pool or a new one. Beyond it nothing was sent.
        read: without a byte from the upstream, or one that it takes. A slow client does not count.
        total: for the whole exchange, slow clients included; None: no limit.
    """

    connect: float = 5.0
    read: float = 60.0
    total: float | None = None


@dataclass(frozen=True)
class Route:
    """The policy of the requests that match a pattern.

    Attributes:
        match: a method, or none, and a path: "POST /payments", "/accounts/{id}/transfers", "/internal/**".
        key: whether a request must bring a key ("required"), is guarded when it does ("optional"), or never ("off").
        effects: what becomes of a key when a request was sent and its answer lost. "external": it is unknown, and
            nothing is sent again. "keyed": it is free, and a retry is sent with the same derived key, which the
            upstream must recognise.
        window, memory, lease: as of a `Boundary`.
        concurrency: seconds for which a simultaneous duplicate waits for the first one's response; None: it is
            refused at once.
        forward_key: how the derived key is sent to the upstream: ``"…"`` as the draft has it, bare, or not at all.
        unexecuted: statuses from 500 on by which the upstream says that nothing was done: they leave the key free.
        timeouts: how long the upstream is waited for.
        options: further `retrysafe.http.policy.Options`, such as ``body_limit``.

    Raises `ConfigurationError` for what cannot be kept.
    """

    match: str = EVERYTHING
    key: Need = "optional"
    effects: GatewayEffects = "external"
    window: Duration = "24h"
    memory: Duration | None = None
    lease: Duration = "30s"
    concurrency: float | None = None
    forward_key: ForwardKey = "quoted"
    unexecuted: frozenset[int] = frozenset()
    timeouts: Timeouts = Timeouts()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _one_of("key", self.key, NEEDS)
        if str(self.effects) == "transactional":
            raise ConfigurationError(
                "effects='transactional': a gateway cannot be part of its upstream's transaction. Use 'keyed' if the "
                "upstream recognises idempotency keys, else 'external'."
            )
        _one_of("effects", self.effects, get_args(GatewayEffects))
        _one_of("forward_key", self.forward_key, get_args(ForwardKey))
        if self.effects == "keyed" and self.forward_key == "off":
            raise ConfigurationError(
                "effects='keyed' with forward_key='off': the upstream could not recognise repeated requests."
            )
        if any(not 500 <= status <= 599 for status in self.unexecuted):
            raise ConfigurationError("unexecuted names statuses from 500 to 599; see store_statuses for the others.")
        if self.unexecuted and self.options.get("on_5xx") == "store":
            raise ConfigurationError(
                "unexecuted with on_5xx='store': one status cannot both free the key and be stored."
            )


@dataclass(frozen=True)
class TrustedHeader:
    """The principal is what a header says, in requests from these networks only: those of your own proxies."""

    header: str
    trusted: tuple[IPv4Network | IPv6Network, ...]

    def __post_init__(self) -> None:
        if not self.trusted:
            raise ConfigurationError(
                "principal: a header that every client can set proves nothing. Give in from= the networks that may set "
                'it, such as ["10.0.0.0/8"].'
            )

    def trusts(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.trusted)


@dataclass(frozen=True)
class Claims:
    """The principal is a claim of a signed JSON Web Token (RFC 7519), verified: signature, expiry, algorithm.

    Attributes:
        algorithms: the only ones that are accepted; "none" never is.
        jwks_url: where the issuer publishes its keys (RFC 7517); or
        key: one key: PEM, or the secret of an HMAC.
        claim: which claim names the principal.
        header: where the token is: ``Authorization: Bearer …``, or all of another header.
        audience, issuer: what the token must say, if given.
        leeway: seconds by which clocks may differ.
    """

    algorithms: tuple[str, ...]
    jwks_url: str | None = None
    key: str | None = field(default=None, repr=False)
    claim: str = "sub"
    header: str = "authorization"
    audience: str | None = None
    issuer: str | None = None
    leeway: float = 10.0

    def __post_init__(self) -> None:
        if (self.jwks_url is None) == (self.key is None):
            raise ConfigurationError("principal: give jwks_url or key_file to verify tokens, and not both.")
        if not self.algorithms:
            raise ConfigurationError('principal: algorithms is empty; name those of the issuer, such as ["RS256"].')
        if any(name.lower() == "none" for name in self.algorithms):
            raise ConfigurationError('principal: algorithms has "none", which accepts unsigned tokens.')
        if unknown := set(self.algorithms) - set(get_default_algorithms()):
            raise ConfigurationError(f"principal: algorithms has {min(unknown)!r}, which is not supported.")
        symmetric = {name.startswith("HS") for name in self.algorithms}
        if len(symmetric) > 1:
            raise ConfigurationError(
                "principal: algorithms mixes HS… with others: a public key could be taken for a shared secret."
            )
        if symmetric == {True} and self.jwks_url is not None:
            raise ConfigurationError("principal: HS… needs a shared secret, which is not published: give key_file.")
        if symmetric == {True} and (self.key or "").lstrip().startswith("-----BEGIN"):
            raise ConfigurationError("principal: HS… with a PEM key: a public key is not a secret.")
        if symmetric == {True} and len((self.key or "").encode()) < _SHORTEST_SECRET:
            raise ConfigurationError(
                f"principal: HS… with a secret that can be guessed: it needs {_SHORTEST_SECRET} bytes (RFC 7518, 3.2)."
            )


Principal = TrustedHeader | Claims
_PRINCIPAL = "[principal]  # in --config: a header that a proxy of yours sets, or a claim of a token"
Address = tuple[str, int]


@dataclass(frozen=True)
class Settings:
    """All that a gateway is told.

    Attributes:
        upstream: the service: ``http://host:port``, with a prefix of the path if it has one.
        store: the URL of the store, shared by all workers and gateways.
        name: the boundary: part of every key's identity. Also how the gateway calls itself in ``Via``.
        listen: where to serve; port 0: any.
        admin: where health and metrics are served; None: under ``admin_prefix`` of ``listen``.
        workers: how many processes serve.
        grace: seconds that running requests get when the gateway is stopped; then they are cut, and recorded so.
        connections: how many connections to the upstream a worker may have.
        idle: seconds for which an unused connection is kept: less than the upstream keeps it, so that no request is
            sent into a connection that is just being closed.
        host: whether the upstream sees the client's ``Host``, or its own.
        trust_forwarded: whether ``Forwarded`` and ``X-Forwarded-*`` of the client are kept (it is a proxy of yours), or
            replaced.
        trust_headers: names of header fields that tell who asks and are passed on as clients send them, such as
            "X-Client-Cert", because a proxy of yours sets or removes them. All others of their kind are dropped:
            verified certificates and logins are a proxy's to tell.
        ca_file: certificates to verify the upstream with, instead of the system's.
        principal: whose a request is, which must be said; "shared": all clients share their keys.
        defaults: the policy of requests that no route matches.
        routes: policies by pattern; the first match counts.
        secret: keys the hashes of keys, as of a `Boundary`.
        encryption: the environment variable that has the keys with which stored responses are encrypted.
    """

    upstream: str
    store: str
    name: str = "gateway"
    listen: Address = ("127.0.0.1", 8080)
    admin: Address | None = None
    admin_prefix: str = "/-"
    workers: int = 1
    grace: float = 30.0
    connections: int = 100
    idle: float = 4.0
    host: Host = "keep"
    trust_forwarded: bool = False
    trust_headers: tuple[str, ...] = ()
    ca_file: str | None = None
    principal: Principal | Literal["shared"] = UNSAID
    defaults: Route = Route()
    routes: tuple[Route, ...] = ()
    secret: str | None = field(default=None, repr=False)
    encryption: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.upstream)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            shown = without_password(self.upstream)
            raise ConfigurationError(f"upstream {shown!r} is not a URL such as http://127.0.0.1:3000.")
        if parts.username is not None:
            raise ConfigurationError("upstream: a password in the URL is not sent; leave it out.")
        if not isinstance(self.principal, TrustedHeader | Claims):
            check(self.principal, _PRINCIPAL, 'principal = "shared"  # or --principal shared')
        _one_of("host", self.host, get_args(Host))
        if self.workers < 1 or self.connections < 1:
            raise ConfigurationError("workers and connections are numbers from 1.")
        if self.workers > 1 and self.store.startswith("memory:"):
            raise ConfigurationError("workers: a memory:// store belongs to one process; use another store.")
        if self.admin is not None and self.admin[1] == self.listen[1] != 0:
            raise ConfigurationError("admin: it has the port of listen, by which the two are told apart.")
        if not self.admin_prefix.startswith("/") or self.admin_prefix.endswith("/"):
            raise ConfigurationError(
                f"admin prefix {self.admin_prefix!r}: it must begin with a slash and must not end with one."
            )
