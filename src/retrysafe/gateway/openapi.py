"""Routes from the OpenAPI document of the upstream: which of its operations know an idempotency key."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from retrysafe.errors import ConfigurationError
from retrysafe.gateway.settings import GatewayEffects, Route
from retrysafe.http.key_header import HEADER
from retrysafe.http.openapi import EXTENSION
from retrysafe.http.policy import Policy
from retrysafe.http.routes import Need

_METHODS = ("post", "put", "patch", "delete")
_GUARDED = Policy().methods
"""Methods that the defaults guard."""
_VARIABLE = re.compile(r"\{([^{}]*)\}")
_LONGEST_CHAIN = 16


def routes_of(document: Any, base: Route, upstream: str = "") -> tuple[Route, ...]:
    """A route for every operation with an unsafe method, those of concrete paths first, as OpenAPI matches them.

    Operations that declare the header Idempotency-Key, or that of ``base``, or have ``x-idempotency``, are
    ``effects="keyed"``: an upstream that declares the header recognises the key that it is sent again. A key is
    required where the document requires it; ``window`` and ``header`` are those of ``x-idempotency``, but for that as
    in ``base``. The others are what ``base`` makes of them. Paths begin with that of each of their ``servers``, less
    the path of ``upstream``. Raises `ConfigurationError` for what is no OpenAPI document, and for what is not
    understood: it could hide a route.
    """
    if not isinstance(document, dict) or "openapi" not in document or not isinstance(document.get("paths"), dict):
        raise ConfigurationError("openapi: this is not an OpenAPI document (version 3, as JSON).")
    known = {path: _item(document, path, item) for path, item in document["paths"].items() if path[:2] != "x-"}
    found: dict[str, Route] = {}
    for path in sorted(known, key=lambda path: ["{" in segment for segment in path.split("/")]):
        item = known[path]
        for method in _METHODS:
            if (operation := item.get(method)) is None:
                continue
            where = f"{method.upper()} {path}"
            said = _key_statement(document, where, item, _table(operation, where), base.options.get("header", HEADER))
            for prefix in _prefixes(where, operation, item, document):
                route = _route(f"{method.upper()} {_within(prefix, upstream)}{path}", said, base)
                found.setdefault(route.match, route)
    return tuple(found.values())


def _item(document: Mapping[str, Any], path: str, item: Any) -> Mapping[str, Any]:
    if not path.startswith("/"):
        raise _unclear(path, "it is no path")
    table = _table(item, path)
    return {**_table(_resolve(document, table, path), path), **table} if "$ref" in table else table


# ---------------------------------------------------------------- what an operation says of its key


def _key_statement(
    document: Mapping[str, Any], where: str, item: Mapping[str, Any], operation: Mapping[str, Any], header: str
) -> dict[str, Any] | None:
    """Return an operation's statement about its key; None if it has none."""
    extension = operation.get(EXTENSION)
    if extension is False:
        return None
    said = dict(extension) if isinstance(extension, dict) else {} if extension is True else None
    for one in [*_list(operation, "parameters", where), *_list(item, "parameters", where)]:
        parameter = _table(_resolve(document, one, where), where)
        named = str(parameter.get("name", "")).lower() == str((said or {}).get("header", header)).lower()
        if named and parameter.get("in") == "header":
            return {"required": parameter.get("required", False), **(said or {})}
    return said


def _resolve(document: Mapping[str, Any], value: Any, where: str) -> Any:
    """Follow a reference inside the document; return anything else unchanged."""
    for _ in range(_LONGEST_CHAIN):
        if not isinstance(value, dict) or "$ref" not in value:
            return value
        reference = str(value["$ref"])
        if not reference.startswith("#/"):
            raise _unclear(where, f"$ref {reference!r} refers to another document; bundle them into one")
        value = document
        for part in unquote(reference[2:]).split("/"):
            value = value.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
        if value is None:
            raise _unclear(where, f"$ref {reference!r} leads nowhere")
    raise _unclear(where, "$ref is circular")


# ---------------------------------------------------------------- where it is served


def _prefixes(where: str, *owners: Mapping[str, Any]) -> list[str]:
    """The paths of the servers that the first of the owners names that names any; every value of their variables."""
    servers = next((found for one in owners if (found := _list(one, "servers", where))), [{"url": "/"}])
    return list(dict.fromkeys(path for one in servers for path in _paths(where, _table(one, where))))


def _paths(where: str, server: Mapping[str, Any]) -> Iterator[str]:
    url, variables = str(server.get("url", "")), server.get("variables", {})
    names = _VARIABLE.findall(url)
    values = []
    for name in names:
        variable = variables.get(name) if isinstance(variables, dict) else None
        if not isinstance(variable, dict) or "default" not in variable:
            raise _unclear(where, f"servers: {url!r} has no value for {{{name}}}")
        values.append([str(value) for value in variable.get("enum") or [variable["default"]]])
    for chosen in itertools.product(*values):
        told = iter(chosen)
        path = urlsplit(_VARIABLE.sub(lambda _: next(told), url)).path  # noqa: B023 - called at once
        if path and not path.startswith("/"):
            raise _unclear(where, f"servers: {url!r} is relative to an unknown base URL")
        yield path.rstrip("/")


def _within(prefix: str, upstream: str) -> str:
    """A path of the upstream, as the gateway's clients ask for it."""
    inside = urlsplit(upstream).path.rstrip("/")
    return prefix[len(inside) :] if (prefix + "/").startswith(inside + "/") else prefix


def _route(match: str, said: Mapping[str, Any] | None, base: Route) -> Route:
    if said is None:
        return replace(base, match=match, key=base.key if match.split()[0] in _GUARDED else "off")
    key: Need = "required" if said.get("required") else "optional"
    window = said.get("window")
    effects: GatewayEffects = "external" if said.get("effects") == "external" else "keyed"
    header = base.options.get("header", HEADER)
    other = said.get("header", header)
    options = base.options if other == header else {**base.options, "header": other}
    found = replace(base, match=match, key=key, effects=effects, options=options)
    return found if window is None else replace(found, window=window, memory=None)


# ---------------------------------------------------------------- what is not understood


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _unclear(where, f"{value!r} is no object")
    return value


def _list(owner: Mapping[str, Any], name: str, where: str) -> list[Any]:
    found = owner.get(name) or []
    if not isinstance(found, list):
        raise _unclear(where, f"{name} is no list")
    return found


def _unclear(where: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"openapi: {where}: {what}.")
