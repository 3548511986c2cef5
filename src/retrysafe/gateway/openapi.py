"""Routes from the OpenAPI document of the upstream: which of its operations know an idempotency key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.gateway.settings import GatewayEffects, Route
from retrysafe.http.openapi import EXTENSION
from retrysafe.http.routes import Need

_METHODS = ("post", "put", "patch", "delete")


def routes_of(document: Any, base: Route) -> tuple[Route, ...]:
    """The routes of operations that declare the header Idempotency-Key, or have ``x-idempotency``.

    They are ``effects="keyed"``: an upstream that declares the header recognises the key that it is sent again. A key
    is required where the document requires it; ``window`` is that of ``x-idempotency``, but for that as in ``base``.
    Raises `ConfigurationError` for what is no OpenAPI document.
    """
    if not isinstance(document, dict) or "openapi" not in document or not isinstance(document.get("paths"), dict):
        raise ConfigurationError("openapi: this is no OpenAPI document (version 3, as JSON).")
    found = []
    for path, item in document["paths"].items():
        if isinstance(item, dict):
            found += [
                _route(f"{method.upper()} {path}", said, base)
                for method in _METHODS
                if isinstance(item.get(method), dict) and (said := _said(document, item, item[method])) is not None
            ]
    return tuple(found)


def _said(document: Mapping[str, Any], item: Mapping[str, Any], operation: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an operation says of its key; None if it knows none."""
    extension = operation.get(EXTENSION)
    if extension is False:
        return None
    said = dict(extension) if isinstance(extension, dict) else {} if extension is True else None
    for parameter in _parameters(document, item, operation):
        named = str(parameter.get("name", "")).lower() == "idempotency-key"
        if named and parameter.get("in") == "header":
            return {"required": parameter.get("required", False), **(said or {})}
    return said


def _parameters(
    document: Mapping[str, Any], item: Mapping[str, Any], operation: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    for one in [*operation.get("parameters", []), *item.get("parameters", [])]:
        found = _resolved(document, one) if isinstance(one, dict) and "$ref" in one else one
        if isinstance(found, dict):
            yield found


def _resolved(document: Mapping[str, Any], reference: Mapping[str, Any]) -> Any:
    """What a reference inside the document leads to; None for any other."""
    place: Any = document
    pointer = str(reference["$ref"])
    if not pointer.startswith("#/"):
        return None
    for part in pointer[2:].split("/"):
        place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place


def _route(match: str, said: Mapping[str, Any], base: Route) -> Route:
    key: Need = "required" if said.get("required") else "optional"
    window = said.get("window")
    effects: GatewayEffects = "external" if said.get("effects") == "external" else "keyed"
    found = replace(base, match=match, key=key, effects=effects)
    return found if window is None else replace(found, window=window, memory=None)
