"""The policies of a gateway as guards: one for each route, on boundaries that share one name and one store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote

from retrysafe import Boundary
from retrysafe.backends.driver import arun, run
from retrysafe.backends.registry import connect
from retrysafe.claims.encryption import Keyring
from retrysafe.claims.observers import LoggingObserver
from retrysafe.claims.settings import reject, wait
from retrysafe.gateway.settings import EVERYTHING, Route, Settings
from retrysafe.http.guard import FIELDS, Guard
from retrysafe.http.messages import Request
from retrysafe.http.policy import Options
from retrysafe.http.principals import SHARED
from retrysafe.http.routes import Patterns, alike, fold
from retrysafe.protocol.events import Observer
from retrysafe.protocol.procedures import read

_TEMPLATE = re.compile(r"\{[^/{}]*\}")


class GuardedRoute(NamedTuple):
    """A route, and the guard that keeps its policy."""

    route: Route
    guard: Guard


_NO_KEY = bytes(32)


class Guards:
    """The guard of every request.

    All boundaries have the same name, so that a key that was used on one route is refused on every other, whatever
    their policies. Raises `ConfigurationError` for what a boundary or the HTTP contract refuses, naming the route.
    """

    def __init__(self, settings: Settings, observers: Iterable[Observer] = ()) -> None:
        self._settings = settings
        self._observers = (LoggingObserver(), *observers)
        self._backend = connect(settings.store)
        self._boundaries: dict[tuple[Any, ...], Boundary] = {}
        self._fields = (*FIELDS, b"host") if settings.host == "keep" else FIELDS
        defaults = settings.defaults
        required: Options = {
            "required": defaults.key == "required",
            "routes": {EVERYTHING: "off"} if defaults.key == "off" else {},
        }
        self.defaults = GuardedRoute(defaults, self._guard(defaults, {**_options(defaults), **required}))
        routes: dict[str, GuardedRoute] = {}
        for route in settings.routes:
            routes.setdefault(pattern_of(route), self._guard_route(route))
        ranked = {pattern: (rank, guarded) for rank, (pattern, guarded) in enumerate(routes.items())}
        self._routes = Patterns(ranked)
        strict = {pattern: said for pattern, said in ranked.items() if said[1].route.key == "required"}
        self._alike = Patterns(alike(strict))
        self.all = (*routes.values(), self.defaults)

    def open(self, principal: Any) -> None:
        """From now on ``principal`` says whose requests are."""
        for one in self.all:
            one.guard.principal = principal

    def of(self, request: Request) -> GuardedRoute:
        """The policy of a request: the first route that matches, or the defaults.

        Services route other spellings to the same place (a doubled or a final slash, another case), so a route that
        requires a key holds for these too, unless a route before it matches the path as it is.
        """
        path = unquote(request.path.decode("latin-1"))
        exact, other = self._routes.find(request.method, path), self._alike.find(request.method, fold(path))
        found = other if exact is None or (other is not None and other[0] < exact[0]) else exact
        return self.defaults if found is None else found[1]

    @property
    def boundary(self) -> Boundary:
        return self.defaults.guard.boundary

    async def ask_store(self) -> None:
        """Read a key that cannot be there; raises `RetrysafeError` when no key can be claimed."""
        backend = self.boundary._settings.backend
        if backend.serves_async:
            await arun(read(backend.store, _NO_KEY), backend.aclient())
        else:
            await asyncio.to_thread(lambda: run(read(backend.store, _NO_KEY), backend.client()))

    async def aclose(self) -> None:
        for boundary in self._boundaries.values():
            await boundary.aclose()

    def _guard_route(self, route: Route) -> GuardedRoute:
        options = _options(route)
        method = pattern_of(route).partition("/")[0].strip()
        if method and route.key != "off":
            options["methods"] = [method]
        return GuardedRoute(route, self._guard(route, {}).under(route.key, options))

    def _guard(self, route: Route, options: Options) -> Guard:
        return Guard(self._boundary(route), options, SHARED, self._fields)

    def _boundary(self, route: Route) -> Boundary:
        """A boundary with the terms of a route; routes that want the same share it."""
        terms = (route.effects, route.window, route.memory, route.lease, route.concurrency)
        found = self._boundaries.get(terms)
        if found is None:
            settings = self._settings
            found = self._boundaries[terms] = Boundary(
                settings.name,
                store=self._backend,
                window=route.window,
                memory=route.memory,
                lease=route.lease,
                concurrency=reject() if route.concurrency is None else wait(route.concurrency),
                effects=route.effects,
                observers=self._observers,
                encryption=None if settings.encryption is None else Keyring.from_env(settings.encryption),
                secret=settings.secret,
                shared=True,  # the route is part of the fingerprint: a key is never answered by another route's terms
            )
        return found


def pattern_of(route: Route) -> str:
    """The pattern as `Patterns` have it: a template's ``{name}`` stands for one segment."""
    return _TEMPLATE.sub("*", route.match)


def _options(route: Route) -> Options:
    return {**route.options}  # type: ignore[typeddict-item]
