"""The constant part of all claims of one operation and scope, computed once."""

from __future__ import annotations

from retrysafe.claims import attempt_ids
from retrysafe.claims.codec import Codec
from retrysafe.claims.modes import LeaseMode, lease_mode
from retrysafe.claims.settings import BoundarySettings
from retrysafe.protocol import keys
from retrysafe.protocol.fingerprint import Fingerprint
from retrysafe.protocol.outcomes import ModeKind
from retrysafe.protocol.records import ClaimRequest

_MOST = 1024
"""The number of plans that are kept: the number of scopes, such as tenants, is unbounded."""
_MOST_CODECS = 64
"""The number of codecs whose plans are kept: an entry point has one, unless it makes one for every call."""


class Plan:
    """The constant part of claims: settings, operation, scope, and the hash of what their keys begin with."""

    __slots__ = ("_identity", "_lookup", "_scoped", "_secrets", "_terms", "lease_mode", "operation", "settings")

    def __init__(
        self,
        settings: BoundarySettings,
        operation: str,
        scope: str,
        lease_mode: LeaseMode | None,
        *,
        scope_is_tenant: bool,
    ) -> None:
        self.settings = settings
        self._scoped = settings.scope is not None or (scope_is_tenant and scope != "")
        self.operation = keys.check_name(operation, "operation")
        self.lease_mode = lease_mode
        """The mode of all claims of a boundary with leases; None for a transactional one: each claim has its own."""
        self._identity = settings.name, scope, operation
        quota = None if settings.quota is None else settings.quota.allowance(settings.name, scope)
        self._terms = settings.effects, settings.clocks, settings.on_expired, quota
        self._secrets = settings.fingerprint_secrets
        self._lookup = keys.Lookup(settings.secret, *self._identity)

    def request(self, key: str, payload: Fingerprint | bytes, recorded: str = "") -> ClaimRequest:
        """The request of a new attempt at a key, with a fingerprint that is keyed, or one that is stored as it is."""
        record_key, secrets, plain = self._lookup.of(key), self._secrets, None
        if isinstance(payload, bytes):
            stored = payload
        else:
            stored, plain = secrets.hashed_for(payload, record_key), payload
        attempt, scoped = attempt_ids.new(), self._scoped
        return tuple.__new__(  # by place: twice as quick as `ClaimRequest(…)`
            ClaimRequest,
            (record_key, *self._identity, stored, attempt, *self._terms, plain, secrets, scoped, recorded),
        )


class Plans:
    """The plans of a boundary, or of an entry point with a codec of its own."""

    def __init__(self, settings: BoundarySettings, *, scope_is_tenant: bool = True) -> None:
        self.settings = settings
        self._scope_is_tenant = scope_is_tenant
        """True if a scope that a claim names is a tenant: entry points name principals."""
        self._with_codecs: dict[int, Plans] = {}
        self._plans: dict[tuple[str, str], Plan] = {}
        kind = ModeKind.KEYED if settings.effects == "keyed" else ModeKind.EXTERNAL
        self._lease_mode = None if settings.effects == "transactional" else lease_mode(settings.backend, kind)

    def of(self, operation: str, scope: str) -> Plan:
        """The plan of an operation and scope. Raises `ConfigurationError` for a name that cannot be one."""
        if operation.__class__ is not str:  # it may not even be hashable, or be text that is equal to another
            operation = str.__str__(keys.check_name(operation, "operation"))
        if scope.__class__ is not str:
            scope = str.__str__(scope)
        found = self._plans.get((operation, scope))
        if found is None:
            found = Plan(self.settings, operation, scope, self._lease_mode, scope_is_tenant=self._scope_is_tenant)
            if len(self._plans) >= _MOST:
                self._plans.clear()
            self._plans[operation, scope] = found
        return found

    def with_codec(self, codec: Codec) -> Plans:
        """The plans of an entry point with results, and scopes, of its own, as HTTP has; they live as long as these."""
        found = self._with_codecs.get(id(codec))
        if found is None:
            if len(self._with_codecs) >= _MOST_CODECS:
                self._with_codecs.clear()
            found = self._with_codecs[id(codec)] = Plans(self.settings._replace(codec=codec), scope_is_tenant=False)
        return found
